//! Follows the log: hands on what is appended, across rotations.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::{generations, lines::LONGEST, read::Entry};
use crate::session::Session;

/// A place in the log, behind which nothing was handed on yet.
#[derive(Debug)]
pub struct Follower {
    dir: PathBuf,
    /// The file that is read; none while there is none.
    at: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    file: File,
    offset: u64,
    /// Whether the line that begins at `offset` is too long, and is passed over to its end.
    skipping: bool,
}

/// What has come since the last look.
#[derive(Debug, Default)]
pub struct News {
    /// Lines of runs, oldest first.
    pub entries: Vec<Entry>,
    /// Lines that were none.
    pub skipped: u64,
    /// Whether lines may have been missed: the log was rotated out of sight, or cut.
    pub missed: bool,
}

impl Follower {
    /// From the end of the log as it is now.
    #[must_use]
    pub fn from_end(dir: &Path) -> Self {
        let at = File::open(generations::file(dir, 0)).ok().and_then(|file| {
            let offset = file.metadata().ok()?.len();
            Some(Reading::new(file, offset))
        });
        Self {
            dir: dir.to_owned(),
            at,
        }
    }

    /// Looks once, without waiting.
    pub fn look(&mut self) -> News {
        let mut news = News::default();
        let Some(reading) = &mut self.at else {
            self.at = File::open(generations::file(&self.dir, 0))
                .ok()
                .map(|file| Reading::new(file, 0));
            if let Some(reading) = &mut self.at {
                reading.drain(&mut news);
            }
            return news;
        };
        // Which files have come since is asked before reading on: a writer that rotates has written
        // its last line to this one.
        let newer = newer_than(&self.dir, &reading.file);
        reading.drain(&mut news);
        match newer {
            Newer::None => {}
            Newer::Files(files) => {
                for file in files {
                    let mut next = Reading::new(file, 0);
                    next.drain(&mut news);
                    self.at = Some(next);
                }
            }
            Newer::Lost(current) => {
                news.missed = true;
                let mut next = Reading::new(current, 0);
                next.drain(&mut news);
                self.at = Some(next);
            }
        }
        news
    }
}

/// The files that have taken a file's place.
enum Newer {
    None,
    /// Oldest first.
    Files(Vec<File>),
    /// It was rotated away altogether.
    Lost(File),
}

fn newer_than(dir: &Path, file: &File) -> Newer {
    let Some(ours) = identity(file) else {
        return Newer::None;
    };
    let mut newer = Vec::new();
    for path in generations::newest_first(dir) {
        let Ok(file) = File::open(path) else {
            continue;
        };
        if identity(&file) == Some(ours) {
            newer.reverse();
            return if newer.is_empty() {
                Newer::None
            } else {
                Newer::Files(newer)
            };
        }
        newer.push(file);
    }
    // Gone: moved on between two of these looks, or removed. With no file at all, one will come.
    newer.into_iter().next().map_or(Newer::None, Newer::Lost)
}

fn identity(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

impl Reading {
    const fn new(file: File, offset: u64) -> Self {
        Self {
            file,
            offset,
            skipping: false,
        }
    }

    /// Hands on every line that is there to its end.
    fn drain(&mut self, news: &mut News) {
        let size = self.file.metadata().map_or(0, |meta| meta.len());
        if size < self.offset {
            // Somebody has cut it: what is there now is read again rather than missed.
            (self.offset, self.skipping, news.missed) = (0, false, true);
        }
        let mut held = Vec::new();
        let mut end = self.offset;
        while end < size {
            let Ok(chunk) = self.chunk(end, size) else {
                return;
            };
            end += chunk.len() as u64;
            held.extend_from_slice(&chunk);
            self.lines(&mut held, news);
            if held.len() as u64 > LONGEST {
                self.skipping = true;
                self.offset = end;
                held.clear();
            }
        }
    }

    fn lines(&mut self, held: &mut Vec<u8>, news: &mut News) {
        let mut used = 0;
        for line in held.split_inclusive(|&b| b == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else {
                break;
            };
            used += line.len() + 1;
            if std::mem::take(&mut self.skipping) {
                news.skipped += 1;
                continue;
            }
            match (Session::parse(line), String::from_utf8(line.to_vec())) {
                (Ok(session), Ok(line)) => news.entries.push(Entry { line, session }),
                _ if line.is_empty() => {}
                _ => news.skipped += 1,
            }
        }
        self.offset += used as u64;
        held.drain(..used);
    }

    fn chunk(&self, from: u64, size: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(size - from).map_or(CHUNK, |left| left.min(CHUNK));
        let mut chunk = vec![0; length];
        self.file.read_exact_at(&mut chunk, from)?;
        Ok(chunk)
    }
}

const CHUNK: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;
    use crate::log::{Limits, Log};

    fn session(run: usize) -> Session {
        Session {
            run_id: Some(run.to_string()),
            ..Session::default()
        }
    }

    fn runs(news: &News) -> Vec<String> {
        let runs = news.entries.iter();
        runs.filter_map(|entry| entry.session.run_id.clone())
            .collect()
    }

    fn append(dir: &Path, bytes: &[u8]) {
        let path = generations::file(dir, 0);
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(bytes).unwrap();
    }

    #[test]
    fn only_what_comes_after_is_handed_on_and_each_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        log.append(&session(1)).unwrap();
        let mut follower = Follower::from_end(dir.path());
        assert_eq!(runs(&follower.look()), [""; 0]);
        for n in 2..4 {
            log.append(&session(n)).unwrap();
        }
        assert_eq!(runs(&follower.look()), ["2", "3"]);
        assert_eq!(runs(&follower.look()), [""; 0]);
    }

    #[test]
    fn a_log_that_does_not_exist_yet_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut follower = Follower::from_end(dir.path());
        assert_eq!(runs(&follower.look()), [""; 0]);
        Log::open(dir.path(), Limits::default())
            .unwrap()
            .append(&session(1))
            .unwrap();
        let news = follower.look();
        assert_eq!((runs(&news), news.missed), (vec!["1".to_owned()], false));
    }

    #[test]
    fn no_line_is_missed_over_up_to_five_rotations() {
        for per_look in 1..=5 {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), Limits { file: 1 }).unwrap();
            log.append(&session(0)).unwrap();
            let mut follower = Follower::from_end(dir.path());
            let mut seen = Vec::new();
            for n in 1..=20 {
                log.append(&session(n)).unwrap();
                if n % per_look == 0 {
                    let news = follower.look();
                    assert!(!news.missed, "{per_look} rotations a look");
                    seen.extend(runs(&news));
                }
            }
            let expected: Vec<_> = (1..=20 / per_look * per_look)
                .map(|n| n.to_string())
                .collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_log_that_was_rotated_out_of_sight_says_that_lines_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits { file: 1 }).unwrap();
        log.append(&session(0)).unwrap();
        let mut follower = Follower::from_end(dir.path());
        for n in 1..=9 {
            log.append(&session(n)).unwrap();
        }
        let news = follower.look();
        assert_eq!((runs(&news), news.missed), (vec!["9".to_owned()], true));
    }

    #[test]
    fn half_a_line_waits_for_its_other_half() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), b"");
        let mut follower = Follower::from_end(dir.path());
        for (bytes, expected) in [
            (&b"{\"run_id\""[..], vec![]),
            (b":\"1\"}\n{\"run", vec!["1"]),
            (b"_id\":\"2\"}\n", vec!["2"]),
        ] {
            append(dir.path(), bytes);
            assert_eq!(runs(&follower.look()), expected);
        }
    }

    #[test]
    fn what_is_no_line_is_counted_and_a_gigantic_one_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), b"");
        let mut follower = Follower::from_end(dir.path());
        append(dir.path(), b"null\n\n{\"run_id\":\"1\"}\n");
        append(dir.path(), &vec![b'x'; 3_000_000]);
        let news = follower.look();
        assert_eq!((runs(&news), news.skipped), (vec!["1".to_owned()], 1));
        append(dir.path(), b"xx\n{\"run_id\":\"2\"}\n");
        let news = follower.look();
        assert_eq!((runs(&news), news.skipped), (vec!["2".to_owned()], 1));
    }

    #[test]
    fn a_log_that_was_cut_is_read_again_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), &b"{\"run_id\":\"1\"}\n".repeat(3));
        let mut follower = Follower::from_end(dir.path());
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(generations::file(dir.path(), 0))
            .unwrap();
        append(dir.path(), b"{\"run_id\":\"2\"}\n");
        let news = follower.look();
        assert_eq!((runs(&news), news.missed), (vec!["2".to_owned()], true));
    }
}
