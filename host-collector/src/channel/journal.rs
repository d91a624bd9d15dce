//! Every report as it came, in a file, before its sender is told that it may forget it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// The journal of one run. A guest that makes noise cannot fill a disk with it, and a disk that is
/// full costs the detail, never the numbers, which are in the account.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    limit: u64,
    skipped: u64,
    broken: Option<io::ErrorKind>,
}

impl Journal {
    /// The greatest size of a journal, in bytes: some 80 000 reports.
    pub const LIMIT: u64 = 16 * 1024 * 1024;

    /// Opens the journal of a run, and returns the lines that another collector has left in it.
    ///
    /// A last line without its end was not acknowledged: it is cut off, and its sender sends it
    /// again.
    pub(crate) fn open(path: &Path, limit: u64) -> io::Result<(Self, Vec<u8>)> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let mut lines = Vec::new();
        (&mut file)
            .take(limit.saturating_mul(2))
            .read_to_end(&mut lines)?;
        let whole = lines
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |at| at + 1);
        if whole < lines.len() {
            lines.truncate(whole);
            file.set_len(whole as u64)?;
        }
        let journal = Self {
            path: path.to_owned(),
            file,
            bytes: whole as u64,
            limit,
            skipped: 0,
            broken: None,
        };
        Ok((journal, lines))
    }

    /// The lines that stand in the journal of a run that another process attends to; none if there is
    /// no journal.
    pub(crate) fn peek(path: &Path) -> io::Result<Vec<u8>> {
        let mut lines = Vec::new();
        match File::open(path) {
            Ok(file) => drop(file.take(Self::LIMIT).read_to_end(&mut lines)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let whole = lines
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |at| at + 1);
        lines.truncate(whole);
        Ok(lines)
    }

    /// Writes whole lines, or counts them as skipped.
    pub(crate) fn append(&mut self, lines: &str) {
        let size = lines.len() as u64;
        if self.broken.is_none() && self.bytes.saturating_add(size) <= self.limit {
            match self.file.write_all(lines.as_bytes()) {
                Ok(()) => return self.bytes = self.bytes.saturating_add(size),
                // Not tried again: what follows half a line could not be read anyway.
                Err(error) => self.broken = Some(error.kind()),
            }
        }
        self.skipped = self.skipped.saturating_add(lines.lines().count() as u64);
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reports that are not in it.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Why writing it ended early, where it did.
    #[must_use]
    pub const fn broken(&self) -> Option<io::ErrorKind> {
        self.broken
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn what_is_over_the_bound_is_counted_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&dir.path().join("j"), 10).unwrap().0;
        journal.append("12345\n");
        journal.append("1\n2\n3\n");
        journal.append("123\n");
        assert_eq!(fs::read_to_string(journal.path()).unwrap(), "12345\n123\n");
        assert_eq!((journal.skipped(), journal.broken()), (3, None));
    }

    #[test]
    fn a_full_disk_is_noted_and_costs_no_more_than_the_lines() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut journal = Journal {
            path: "/dev/full".into(),
            file: full,
            bytes: 0,
            limit: 100,
            skipped: 0,
            broken: None,
        };
        journal.append("1\n2\n");
        journal.append("3\n");
        assert_eq!(
            (journal.skipped(), journal.broken()),
            (3, Some(io::ErrorKind::StorageFull))
        );
    }

    #[test]
    fn only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let _journal = Journal::open(&path, 10).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn a_journal_is_gone_on_with_after_its_last_whole_line_wherever_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let whole = b"{\"a\":1}\n{\"b\":2}\n";
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, lines) = Journal::open(&path, 100).unwrap();
            let kept = if cut == whole.len() {
                whole.len()
            } else {
                cut / 8 * 8
            };
            assert_eq!(lines, &whole[..kept], "{cut}");
            journal.append("{}\n");
            let text = fs::read(&path).unwrap();
            assert_eq!(text, [&whole[..kept], b"{}\n"].concat(), "{cut}");
        }
    }

    #[test]
    fn the_bound_holds_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        Journal::open(&path, 10).unwrap().0.append("1234567\n");
        let (mut journal, _) = Journal::open(&path, 10).unwrap();
        journal.append("12\n");
        assert_eq!(journal.skipped(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1234567\n");
    }

    #[test]
    fn who_only_looks_sees_whole_lines_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        assert_eq!(Journal::peek(&path).unwrap(), b"");
        fs::write(&path, "{}\n{\"half").unwrap();
        assert_eq!(Journal::peek(&path).unwrap(), b"{}\n");
        assert_eq!(fs::read(&path).unwrap().len(), 9);
    }
}
