//! A process of its own for one run: it outlives whoever started it, and that one's terminal.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    process::Stdio,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{ChildStdout, Command},
};

use super::registration::Registration;
use crate::run_dir::RunDir;

/// What such a process says to whoever started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum Word {
    /// It attends: the container may be started.
    Ready,
    /// The guest was started.
    Launched {
        /// Why that is not in the log, if it should be and is not.
        unrecorded: Option<String>,
    },
    /// The guest was not and will not be started.
    NoRun {
        /// The code to exit with.
        code: i32,
        /// What to say, where nobody else has.
        line: Option<String>,
        /// Whether the engine may have refused to mount the report channel.
        #[serde(default)]
        is_unmounted: bool,
    },
}

impl Word {
    /// Says it on standard output. If nobody listens any more nobody is told.
    pub(crate) fn say(&self) {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        let mut out = io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// A process that attends to one run.
#[derive(Debug)]
pub(crate) struct Attender {
    words: Lines<BufReader<ChildStdout>>,
}

impl Attender {
    /// Starts it, and hands the run's directory over to it: the lock goes along as its standard
    /// input, so that there is no moment in which nobody holds it.
    ///
    /// Must be called within the runtime.
    pub(crate) fn start(run_dir: RunDir, registration: &Registration) -> io::Result<Self> {
        // Whatever it has to complain of while nobody listens.
        let complaints = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(run_dir.path().join("attend.log"))?;
        let mut child = Command::new("/proc/self/exe")
            .args(["attend", "--inherited", registration.run_id.as_str()])
            .stdin(Stdio::from(run_dir.lock()?))
            .stdout(Stdio::piped())
            .stderr(Stdio::from(complaints))
            .envs(&registration.engine_environment)
            // So that no directory is kept from being unmounted.
            .current_dir("/")
            .spawn()?;
        run_dir.leave();
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            words: BufReader::new(out).lines(),
        })
    }

    /// The next word; `None` if there will be none.
    pub(crate) async fn word(&mut self) -> Option<Word> {
        let line = self.words.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}

/// Leaves the terminal and the session of whoever started this process, and lets go of whatever that
/// left open: somebody may wait for the end of a pipe, or for a lock.
///
/// Must be called before this process has opened anything.
pub(crate) fn detach() {
    // A process that leads its group has been detached by somebody else.
    let _ = rustix::process::setsid();
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|&number| number > STDERR) {
        // That of the listing itself is closed already.
        let _ = nix::unistd::close(descriptor);
    }
}

const STDERR: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_line_whatever_it_says() {
        for word in [
            Word::Ready,
            Word::Launched { unrecorded: None },
            Word::NoRun {
                code: 125,
                line: Some("a\nb".into()),
                is_unmounted: true,
            },
        ] {
            let line = serde_json::to_string(&word).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Word>(&line).unwrap(), word);
        }
    }
}
