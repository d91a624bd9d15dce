//! The files of the log: the one that is written, and those that were.

use std::path::{Path, PathBuf};

/// Rotated files that are kept besides the current one.
pub(crate) const KEPT: usize = 5;

/// The file of a generation: 0 is written to, 1 was before it, up to [`KEPT`].
pub(crate) fn file(dir: &Path, generation: usize) -> PathBuf {
    match generation {
        0 => dir.join(NAME),
        n => dir.join(format!("{NAME}.{n}")),
    }
}

/// All files, newest first, whether they exist or not.
pub(crate) fn newest_first(dir: &Path) -> impl Iterator<Item = PathBuf> {
    (0..=KEPT).map(|generation| file(dir, generation))
}

const NAME: &str = "sessions.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_file_has_no_number() {
        let names: Vec<_> = newest_first(Path::new("/a")).collect();
        assert_eq!(names.len(), 6);
        assert_eq!(names.first().unwrap(), Path::new("/a/sessions.jsonl"));
        assert_eq!(names.last().unwrap(), Path::new("/a/sessions.jsonl.5"));
    }
}
