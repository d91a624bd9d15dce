//! Reads the log back, newest line first, over all generations.

use std::{collections::HashSet, fs::File, os::unix::fs::MetadataExt as _, path::Path, vec};

use super::{generations, lines::Backwards};
use crate::session::{NoSession, Session};

/// A line of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As it stands there, without its end: JSON.
    pub line: String,
    /// As it is understood.
    pub session: Session,
}

/// The lines of a log. What is no line is skipped and counted.
///
/// Files are read from their ends, so that the newest runs of a long history cost no more than those
/// of a short one.
#[derive(Debug)]
pub struct Entries {
    files: vec::IntoIter<File>,
    current: Option<Backwards>,
    skipped: u64,
}

impl Entries {
    /// Opens all files that there are. A log that does not exist is an empty one.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        Self {
            files: files(dir).into_iter(),
            current: None,
            skipped: 0,
        }
    }

    /// The lines of a file with this content.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(content: &[u8]) -> Self {
        let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC);
        let mut files = Vec::from_iter(file.map(File::from));
        for file in &mut files {
            // A file in memory takes what memory takes.
            let _ = std::io::Write::write_all(file, content);
        }
        Self {
            files: files.into_iter(),
            current: None,
            skipped: 0,
        }
    }

    /// Lines that were skipped so far.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    fn skip(&mut self) {
        self.skipped = self.skipped.saturating_add(1);
    }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let previous = self.current.as_mut().and_then(Backwards::previous);
            let Some(previous) = previous else {
                self.current = Backwards::of(self.files.next()?).ok();
                continue;
            };
            match previous.ok().flatten().map(parse) {
                Some(Ok(entry)) => return Some(entry),
                Some(Err(blank)) if blank.iter().all(u8::is_ascii_whitespace) => {}
                Some(Err(_)) | None => self.skip(),
            }
        }
    }
}

/// The files of the log that there are, newest first.
///
/// Without a lock: one that is rotated meanwhile is met twice at worst, and known by its inode.
pub(crate) fn files(dir: &Path) -> Vec<File> {
    let mut seen = HashSet::new();
    let open = |path| {
        let file = File::open(path).ok()?;
        let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        seen.insert((meta.dev(), meta.ino())).then_some(file)
    };
    generations::newest_first(dir).filter_map(open).collect()
}

fn parse(line: Vec<u8>) -> Result<Entry, Vec<u8>> {
    match Session::parse(&line) {
        Ok(session) => match String::from_utf8(line) {
            Ok(line) => Ok(Entry { line, session }),
            Err(error) => Err(error.into_bytes()),
        },
        Err(NoSession::Half | NoSession::Corrupt | NoSession::Foreign) => Err(line),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(dir: &Path, generation: usize, content: &str) {
        fs::write(generations::file(dir, generation), content).unwrap();
    }

    fn runs(entries: &mut Entries) -> Vec<String> {
        entries.filter_map(|entry| entry.session.run_id).collect()
    }

    #[test]
    fn the_newest_run_comes_first_over_all_generations() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "{\"run_id\":\"5\"}\n{\"run_id\":\"6\"}\n");
        write(dir.path(), 1, "{\"run_id\":\"3\"}\n{\"run_id\":\"4\"}\n");
        write(dir.path(), 5, "{\"run_id\":\"1\"}\n{\"run_id\":\"2\"}\n");
        assert_eq!(
            runs(&mut Entries::open(dir.path())),
            ["6", "5", "4", "3", "2", "1"]
        );
    }

    #[test]
    fn what_is_no_line_is_skipped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            0,
            "{\"run_id\":\"1\"}\n\n{\"run_id\":\nnull\n7\n{\"time\":3}\n{\"run_id\":\"2\"}",
        );
        let mut entries = Entries::open(dir.path());
        assert_eq!(runs(&mut entries), ["2", "1"]);
        assert_eq!(entries.skipped(), 4);
    }

    #[test]
    fn a_file_that_is_rotated_while_it_is_read_is_not_read_twice() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "{\"run_id\":\"1\"}\n");
        fs::hard_link(
            generations::file(dir.path(), 0),
            generations::file(dir.path(), 1),
        )
        .unwrap();
        assert_eq!(runs(&mut Entries::open(dir.path())), ["1"]);
    }

    #[test]
    fn a_log_that_does_not_exist_is_empty() {
        assert_eq!(Entries::open(Path::new("/nowhere")).count(), 0);
    }

    #[test]
    fn a_line_that_is_not_text_is_skipped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            generations::file(dir.path(), 0),
            b"{\"run_id\":\"\xff\"}\n{\"run_id\":\"1\"}\n",
        )
        .unwrap();
        let mut entries = Entries::open(dir.path());
        assert_eq!(
            (runs(&mut entries), entries.skipped()),
            (vec!["1".to_owned()], 1)
        );
    }

    #[test]
    fn a_directory_in_the_place_of_a_file_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(generations::file(dir.path(), 0)).unwrap();
        write(dir.path(), 1, "{\"run_id\":\"1\"}\n");
        assert_eq!(runs(&mut Entries::open(dir.path())), ["1"]);
    }

    #[test]
    fn an_entry_keeps_its_line_as_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "{\"z\":1.50, \"run_id\":\"1\"}\n");
        assert_eq!(
            Entries::open(dir.path()).next().unwrap().line,
            "{\"z\":1.50, \"run_id\":\"1\"}"
        );
    }

    #[test]
    fn what_is_gigantic_hides_no_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(5_000_000);
        write(
            dir.path(),
            0,
            &format!("{{\"run_id\":\"1\"}}\n{long}\n{{\"run_id\":\"2\"}}\n"),
        );
        write(dir.path(), 1, &long);
        write(dir.path(), 2, "{\"run_id\":\"0\"}\n");
        let mut entries = Entries::open(dir.path());
        assert_eq!(runs(&mut entries), ["2", "1", "0"]);
        assert_eq!(entries.skipped(), 2);
    }
}
