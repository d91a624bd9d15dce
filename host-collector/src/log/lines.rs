//! The lines of a file, from either end, in bounded memory whatever stands there.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Take},
    os::unix::fs::FileExt as _,
};

use sha2::{Digest as _, Sha256};

/// The greatest line that is read as one, in bytes. Ours are a sixteenth of it.
pub(crate) const LONGEST: u64 = 1024 * 1024;

/// The SHA-256 of a line without its end.
pub(crate) type Digest = [u8; 32];

/// What stands between two line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its bytes without the end.
    pub(crate) length: u64,
    /// Its digest, if it was too long to be held.
    pub(crate) too_long: Option<Digest>,
    /// Whether the end is there.
    pub(crate) ended: bool,
}

/// Reads a file from its beginning, up to the size that it had.
#[derive(Debug)]
pub(crate) struct Forwards {
    reader: BufReader<Take<File>>,
    size: u64,
}

impl Forwards {
    /// What is appended meanwhile is not read: it may be half a line still.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self {
            reader: BufReader::with_capacity(CHUNK, file.take(size)),
            size,
        })
    }

    /// The size that it had.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Puts the next line into `content`, which stays empty if it is too long.
    pub(crate) fn next_into(&mut self, content: &mut Vec<u8>) -> io::Result<Option<Line>> {
        content.clear();
        let mut part = self.reader.by_ref().take(LONGEST);
        if part.read_until(b'\n', content)? == 0 {
            return Ok(None);
        }
        if content.len() as u64 == LONGEST && content.last() != Some(&b'\n') {
            return self.skip(content).map(Some);
        }
        let ended = content.pop_if(|last| *last == b'\n').is_some();
        Ok(Some(Line {
            length: content.len() as u64,
            too_long: None,
            ended,
        }))
    }

    /// Reads to the end of a line without holding it. The next line names its digest all the same.
    fn skip(&mut self, content: &mut Vec<u8>) -> io::Result<Line> {
        let (mut digest, mut length, mut ended) = (Sha256::new(), 0, false);
        loop {
            digest.update(&content);
            length += content.len() as u64;
            content.clear();
            if ended
                || self
                    .reader
                    .by_ref()
                    .take(LONGEST)
                    .read_until(b'\n', content)?
                    == 0
            {
                break;
            }
            ended = content.pop_if(|last| *last == b'\n').is_some();
        }
        Ok(Line {
            length,
            too_long: Some(digest.finalize().into()),
            ended,
        })
    }
}

/// Reads a file from its end.
#[derive(Debug)]
pub(crate) struct Backwards {
    file: File,
    /// Where in the file what is held begins.
    start: u64,
    held: Vec<u8>,
    /// Whether what is before `start` belongs to a line that is too long.
    skipping: bool,
}

impl Backwards {
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let start = file.metadata()?.len();
        let mut lines = Self {
            file,
            start,
            held: Vec::new(),
            skipping: false,
        };
        lines.load()?;
        // The end of the last line does not begin another.
        lines.held.pop_if(|last| *last == b'\n');
        Ok(lines)
    }

    /// The line before those that were given; `Ok(None)` in the place of one that is too long.
    pub(crate) fn previous(&mut self) -> Option<io::Result<Option<Vec<u8>>>> {
        loop {
            if let Some(at) = self.held.iter().rposition(|&b| b == b'\n') {
                let mut line = self.held.split_off(at);
                line.remove(0);
                return Some(Ok(self.unless_skipped(line)));
            }
            if self.start == 0 {
                let rest = std::mem::take(&mut self.held);
                return (self.skipping || !rest.is_empty()).then(|| Ok(self.unless_skipped(rest)));
            }
            if self.held.len() as u64 > LONGEST {
                self.skipping = true;
            }
            if self.skipping {
                self.held.clear();
            }
            if let Err(error) = self.load() {
                self.start = 0;
                self.held.clear();
                return Some(Err(error));
            }
        }
    }

    fn unless_skipped(&mut self, line: Vec<u8>) -> Option<Vec<u8>> {
        (!std::mem::take(&mut self.skipping)).then_some(line)
    }

    /// Puts what stands before `start` in front of what is held.
    fn load(&mut self) -> io::Result<()> {
        let step = usize::try_from(self.start).map_or(CHUNK, |left| left.min(CHUNK));
        let mut chunk = vec![0; step];
        self.file
            .read_exact_at(&mut chunk, self.start - step as u64)?;
        self.start -= step as u64;
        chunk.append(&mut self.held);
        self.held = chunk;
        Ok(())
    }
}

const CHUNK: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use proptest::prelude::*;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        file
    }

    fn forwards(content: &[u8]) -> Vec<(Vec<u8>, Line)> {
        let mut lines = Forwards::of(file(content)).unwrap();
        let mut line = Vec::new();
        std::iter::from_fn(|| Some((lines.next_into(&mut line).unwrap()?, line.clone())))
            .map(|(kind, line)| (line, kind))
            .collect()
    }

    fn backwards(content: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Backwards::of(file(content)).unwrap();
        std::iter::from_fn(|| lines.previous())
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn a_line_without_its_end_is_told_from_one_with_it() {
        for (content, ended) in [
            (&b"a\nbc"[..], vec![true, false]),
            (b"a\n\n", vec![true, true]),
            (b"", vec![]),
        ] {
            let found: Vec<bool> = forwards(content)
                .iter()
                .map(|(_, line)| line.ended)
                .collect();
            assert_eq!(found, ended, "{content:?}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_not_held_and_hides_no_neighbour() {
        for extra in [0, 1, 5_000_000] {
            let long = vec![b'x'; usize::try_from(LONGEST).unwrap() + extra];
            let content = [b"a\n", long.as_slice(), b"\nb\n"].concat();
            let there = forwards(&content);
            assert_eq!(
                (there[0].0.as_slice(), there[2].0.as_slice()),
                (&b"a"[..], &b"b"[..])
            );
            let line = there[1].1;
            assert_eq!((line.length, line.ended), (long.len() as u64, true));
            assert_eq!(line.too_long, Some(Sha256::digest(&long).into()), "{extra}");
            if extra > CHUNK {
                assert_eq!(
                    backwards(&content),
                    [Some(b"b".to_vec()), None, Some(b"a".to_vec())]
                );
            }
        }
    }

    #[test]
    fn a_file_that_is_one_line_too_long_is_read_from_either_end() {
        let long = vec![b'x'; 3_000_000];
        assert_eq!(backwards(&long), [None]);
        let there = forwards(&long);
        assert_eq!(
            (there.len(), there[0].1.ended, there[0].0.len()),
            (1, false, 0)
        );
    }

    #[test]
    fn a_file_that_becomes_shorter_meanwhile_is_an_error_and_no_end() {
        let file = file(&vec![b'\n'; 200_000]);
        let mut lines = Backwards::of(file.try_clone().unwrap()).unwrap();
        file.set_len(10).unwrap();
        let failed = std::iter::from_fn(|| lines.previous())
            .filter(Result::is_err)
            .count();
        assert_eq!(failed, 1);
    }

    proptest! {
        #[test]
        fn both_ways_find_the_same_lines(lines in proptest::collection::vec("[a-z]{0,9}", 0..40), long in 0usize..200_000, at in 0usize..40) {
            let mut lines = lines;
            if let Some(line) = lines.get_mut(at) {
                *line = "y".repeat(long);
            }
            let content: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            let there: Vec<_> = forwards(content.as_bytes()).into_iter().map(|(line, _)| Some(line)).collect();
            let mut back = backwards(content.as_bytes());
            back.reverse();
            let expected: Vec<_> = lines.iter().map(|line| Some(line.clone().into_bytes())).collect();
            prop_assert_eq!(&there, &expected);
            // An empty first line cannot be told from the beginning of the file.
            let skipped = usize::from(expected.first().is_some_and(|line| line.as_ref().is_some_and(Vec::is_empty)));
            prop_assert_eq!(&back[..], &expected[skipped.min(expected.len() - back.len())..]);
        }
    }
}
