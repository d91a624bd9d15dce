//! What a launcher knows of the end of a run that it was given.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use report::EndReason;
use serde::{Deserialize, Serialize};

use super::registration::write_whole;

/// The launcher's word, for whoever attends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finish {
    /// The code with which the container, or the engine's client, ended.
    pub(crate) exit_code: Option<i32>,
    /// How it came to its end.
    pub(crate) end_reason: Option<EndReason>,
}

impl Finish {
    /// Tells whoever attends.
    pub(crate) fn store(self, run_dir: &Path) -> io::Result<()> {
        write_whole(&file(run_dir), &serde_json::to_vec(&self)?)
    }

    /// What the launcher has told, if it has.
    pub(crate) fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file(run_dir)).ok()?).ok()
    }
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("finish.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Finish::read(dir.path()), None);
        let finish = Finish {
            exit_code: Some(124),
            end_reason: Some(EndReason::TimedOut),
        };
        finish.store(dir.path()).unwrap();
        assert_eq!(Finish::read(dir.path()), Some(finish));
        fs::write(file(dir.path()), "{").unwrap();
        assert_eq!(Finish::read(dir.path()), None);
    }
}
