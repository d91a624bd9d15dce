//! Reads the log back, newest line first, over all generations.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    string::FromUtf8Error,
    vec,
};

use super::generations;
use crate::session::Session;

/// A line of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As it stands there, without its end: JSON.
    pub line: String,
    /// As it is understood.
    pub session: Session,
}

/// The lines of a log. What is no line is skipped and counted.
#[derive(Debug)]
pub struct Entries {
    files: vec::IntoIter<File>,
    content: Vec<u8>,
    skipped: u64,
}

impl Entries {
    /// Opens all files that there are. A log that does not exist is an empty one.
    ///
    /// Without a lock: the files are opened newest first, so that one which is rotated meanwhile is
    /// met twice at worst, and known by its inode.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let mut seen = HashSet::new();
        let mut files = Vec::new();
        for file in generations::newest_first(dir).filter_map(|path| File::open(path).ok()) {
            let identity = file.metadata().map(|meta| (meta.dev(), meta.ino()));
            if identity.is_ok_and(|identity| seen.insert(identity)) {
                files.push(file);
            }
        }
        Self {
            files: files.into_iter(),
            content: Vec::new(),
            skipped: 0,
        }
    }

    /// The lines of a file with this content.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(content: Vec<u8>) -> Self {
        Self {
            files: Vec::new().into_iter(),
            content,
            skipped: 0,
        }
    }

    /// Lines that were skipped so far.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Cuts the last line off what is left of a file.
    fn last_line(&mut self) -> Option<Vec<u8>> {
        if self.content.is_empty() {
            return None;
        }
        let start = self
            .content
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |at| at + 1);
        let line = self.content.split_off(start);
        self.content.pop();
        Some(line)
    }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let Some(line) = self.last_line() else {
                self.content = read(self.files.next()?).unwrap_or_default();
                continue;
            };
            match parse(line) {
                Ok(entry) => return Some(entry),
                Err(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                Err(_) => self.skipped = self.skipped.saturating_add(1),
            }
        }
    }
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut content)?;
    Ok(content)
}

fn parse(line: Vec<u8>) -> Result<Entry, Vec<u8>> {
    let line = String::from_utf8(line).map_err(FromUtf8Error::into_bytes)?;
    match serde_json::from_str(&line) {
        Ok(session) => Ok(Entry { line, session }),
        Err(_) => Err(line.into_bytes()),
    }
}

/// A file is rotated at 8 MiB; what is larger than this is not ours.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

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
}
