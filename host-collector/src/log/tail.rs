//! The end of a log file: its last line, and whether that was written to its end.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use sha2::{Digest as _, Sha256};

use crate::run_id::hex;

/// How a file ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The last line without its end.
    pub(crate) last: Option<Vec<u8>>,
    /// Whether the end is missing: a writer died, or the disk was full.
    pub(crate) torn: bool,
}

impl Tail {
    /// Reads backwards from the end, as far as it must.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let (mut start, mut tail) = (size, Vec::new());
        // The end of the last line is no separator before it.
        while start > 0 && !tail.iter().rev().skip(1).any(|&b| b == b'\n') {
            let step = start.min(CHUNK);
            start -= step;
            let mut chunk = vec![0; usize::try_from(step).unwrap_or_default()];
            file.read_exact_at(&mut chunk, start)?;
            chunk.append(&mut tail);
            tail = chunk;
        }
        let torn = tail.last().is_some_and(|&b| b != b'\n');
        if !torn {
            tail.pop();
        }
        let last = tail
            .rsplit(|&b| b == b'\n')
            .next()
            .unwrap_or_default()
            .to_vec();
        Ok(Self {
            last: (size > 0).then_some(last),
            torn,
        })
    }

    /// What the next line carries as `prev`.
    pub(crate) fn digest(&self) -> Option<String> {
        self.last.as_ref().map(|line| hex(&Sha256::digest(line)))
    }
}

const CHUNK: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn tail(content: &[u8]) -> Tail {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        Tail::of(&file).unwrap()
    }

    #[test]
    fn the_last_line_is_found_whole_or_torn() {
        let long = vec![b'x'; 100_000];
        let two = [b"first\n", long.as_slice(), b"\n"].concat();
        for (content, last, torn) in [
            (&b"a\n"[..], &b"a"[..], false),
            (b"a\nbc\n", b"bc", false),
            (b"a\nbc", b"bc", true),
            (b"abc", b"abc", true),
            (b"\n", b"", false),
            (b"a\n\n", b"", false),
            (&two, &long, false),
            (&two[..two.len() - 1], &long, true),
        ] {
            assert_eq!(
                tail(content),
                Tail {
                    last: Some(last.to_vec()),
                    torn
                },
                "{}",
                content.len()
            );
        }
    }

    #[test]
    fn an_empty_file_has_no_last_line() {
        assert_eq!(tail(b""), Tail::default());
        assert_eq!(tail(b"").digest(), None);
    }

    #[test]
    fn the_digest_is_that_of_the_line_without_its_end() {
        // From coreutils: printf 'a' | sha256sum
        let known = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(tail(b"x\na\n").digest().as_deref(), Some(known));
        assert_eq!(tail(b"x\na").digest().as_deref(), Some(known));
    }

    #[test]
    fn reading_a_directory_is_an_error_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tail::of(&File::open(dir.path()).unwrap()).is_err());
    }
}
