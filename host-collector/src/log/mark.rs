//! The lock of the log, and in it the mark: which line was written last.
//!
//! A chain shows what is missing between two lines, never what is missing after the last. The mark
//! does. It stands in the file of the lock, because whoever may write it holds that already.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::Duration,
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

    /// As [`Self::take`], but not for long.
    pub(crate) fn take_soon(dir: &Path) -> Option<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(dir.join(NAME));
        let file = file.ok()?;
        for _ in 0..ATTEMPTS {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Some(Self { file });
            }
            thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Notes a line that is on the disk, unless a later one is noted already: flushes overtake each
    /// other. `current` is the inode of the file that is written to.
    ///
    /// It is about a hundred bytes within one sector, written over those before: a crash leaves the
    /// old or the new mark, and either one's line is in the log.
    pub(crate) fn mark(&self, line: &Written, current: Option<u64>) {
        let is_later = match self.marked() {
            Some((file, end)) if file == line.file => end < line.end,
            _ => current == Some(line.file),
        };
        if is_later {
            let (digest, Written { file, end, .. }) = (hex(&line.digest), line);
            let mark = format!("{digest}\n{file:020} {end:020}\n");
            // Without its mark a log says less of itself, and is as good otherwise.
            let _ = self.file.write_all_at(mark.as_bytes(), 0);
        }
    }

    /// In which file the marked line is, and where that ends.
    fn marked(&self) -> Option<(u64, u64)> {
        let mut place = [0; PLACE];
        self.file.read_exact_at(&mut place, DIGEST).ok()?;
        let (file, end) = str::from_utf8(&place).ok()?.trim_end().split_once(' ')?;
        Some((file.parse().ok()?, end.parse().ok()?))
    }
}

/// A line that was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    digest: Digest,
    /// The inode of its file.
    file: u64,
    /// Where it ends there.
    end: u64,
}

impl Written {
    /// The last line of a file.
    pub(crate) fn of(file: &File, digest: Digest) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self {
            digest,
            file: meta.ino(),
            end: meta.size(),
        })
    }
}

/// The digest of the line that was written last, in hexadecimal; none where nobody has noted it, as
/// the log's first writer does not.
pub(crate) fn mark(dir: &Path) -> Option<String> {
    let mut mark = String::new();
    let file = File::open(dir.join(NAME)).ok()?;
    file.take(DIGEST).read_to_string(&mut mark).ok()?;
    let digest = mark.strip_suffix('\n')?;
    (digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digest.to_owned())
}

const NAME: &str = "sessions.lock";
/// Bytes of the digest with its end, and of what follows.
const DIGEST: u64 = 65;
const PLACE: usize = 42;
/// A lock is held for as long as a write takes.
const ATTEMPTS: u32 = 250;

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
        lock.mark(&line(1, 7, 100), Some(7));
        lock.mark(&line(0xab, 7, 200), Some(7));
        assert_eq!(mark(dir.path()), Some("ab".repeat(32)));
    }

    fn line(digit: u8, file: u64, end: u64) -> Written {
        Written {
            digest: [digit; 32],
            file,
            end,
        }
    }

    #[test]
    fn a_flush_that_was_overtaken_does_not_take_the_mark_back() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        for (written, current, expected) in [
            (line(2, 7, 200), 7, 2),
            (line(1, 7, 100), 7, 2),
            // The file was rotated: its last line is still later than the one before.
            (line(3, 7, 300), 8, 3),
            (line(4, 8, 100), 8, 4),
            (line(3, 7, 300), 8, 4),
        ] {
            lock.mark(&written, Some(current));
            let expected = hex(&[expected; 32]);
            assert_eq!(mark(dir.path()), Some(expected), "{written:?}");
        }
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::take_soon(dir.path()).is_none());
        let held = Lock::take(dir.path()).unwrap();
        assert!(Lock::take_soon(dir.path()).is_none());
        drop(held);
        assert!(Lock::take_soon(dir.path()).is_some());
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
