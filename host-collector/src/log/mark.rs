//! The lock of the log, and in it the mark: which line was written last.
//!
//! A chain shows what is missing between two lines, never what is missing after the last. The mark
//! does. It stands in the file of the lock, because whoever may write it holds that already.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use super::{LogError, lines::Digest};
use crate::run_id::hex;

/// The log's lock, until it is dropped: also by a crash.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Waits for everybody else.
    pub(crate) fn take(dir: &Path) -> Result<Self, LogError> {
        let path = dir.join(NAME);
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = open.map_err(LogError::io("open", &path))?;
        super::append::close_to_others(&path, 0o600)
            .map_err(LogError::io("close to others", &path))?;
        let locked = flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from);
        locked.map_err(LogError::io("lock", &path))?;
        Ok(Self { file })
    }

    /// A reader's share, without waiting: a writer that hangs must not keep anybody from reading.
    pub(crate) fn share(dir: &Path) -> Option<Self> {
        let file = File::open(dir.join(NAME)).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(Self { file })
    }

    /// Whether there is one to wait for.
    pub(crate) fn is_there(dir: &Path) -> bool {
        dir.join(NAME).exists()
    }

    /// Notes the line that was just written. It is 65 bytes within one sector, written over those
    /// before: a crash leaves the old or the new mark, and either one's line is in the log.
    pub(crate) fn mark(&self, line: &Digest) {
        // Without its mark a log says less of itself, and is as good otherwise.
        let _ = self
            .file
            .write_all_at(format!("{}\n", hex(line)).as_bytes(), 0);
    }
}

/// The digest of the line that was written last, in hexadecimal; none where nobody has noted it, as
/// the log's first writer does not.
pub(crate) fn mark(dir: &Path) -> Option<String> {
    let mut mark = String::new();
    let file = File::open(dir.join(NAME)).ok()?;
    file.take(65).read_to_string(&mut mark).ok()?;
    let digest = mark.strip_suffix('\n')?;
    (digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digest.to_owned())
}

const NAME: &str = "sessions.lock";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_mark_is_that_of_the_last_line_and_of_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mark(dir.path()), None);
        let lock = Lock::take(dir.path()).unwrap();
        assert_eq!(mark(dir.path()), None);
        lock.mark(&[1; 32]);
        lock.mark(&[0xab; 32]);
        assert_eq!(mark(dir.path()), Some("ab".repeat(32)));
    }

    #[test]
    fn what_is_no_mark_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for content in [
            "",
            "ab\n",
            &"x".repeat(65),
            &format!("{}\n", "g".repeat(64)),
            &"ab".repeat(32),
        ] {
            fs::write(dir.path().join(NAME), content).unwrap();
            assert_eq!(mark(dir.path()), None, "{content}");
        }
    }

    #[test]
    fn readers_share_and_do_not_wait_for_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::share(dir.path()).is_none());
        drop(Lock::take(dir.path()).unwrap());
        let readers = (Lock::share(dir.path()), Lock::share(dir.path()));
        assert!(readers.0.is_some() && readers.1.is_some());
        drop(readers);
        let _writer = Lock::take(dir.path()).unwrap();
        assert!(Lock::share(dir.path()).is_none());
    }
}
