//! The end of a log file: the digest of its last line, and whether that was written to its end.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use sha2::{Digest as _, Sha256};

use super::lines::Digest;

/// How a file ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// What the next line carries as `prev`; none if there is no line.
    pub(crate) last: Option<Digest>,
    /// Whether the end is missing: a writer died, or the disk was full.
    pub(crate) torn: bool,
}

impl Tail {
    /// Reads backwards from the end, as far as it must. A line of any length takes no memory: what
    /// somebody else has put there must not end the collector.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        if size == 0 {
            return Ok(Self::default());
        }
        let mut end = [0];
        file.read_exact_at(&mut end, size - 1)?;
        let torn = end != *b"\n";
        let end = if torn { size } else { size - 1 };
        let start = start_of_line(file, end)?;
        Ok(Self {
            last: Some(digest(file, start, end)?),
            torn,
        })
    }
}

/// Where the line begins that ends at `end`.
fn start_of_line(file: &File, end: u64) -> io::Result<u64> {
    let (mut before, mut step) = (end, FIRST);
    while before > 0 {
        let (chunk, start) = chunk(file, before.saturating_sub(step), before)?;
        step = CHUNK;
        if let Some(at) = chunk.iter().rposition(|&b| b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        before = start;
    }
    Ok(0)
}

fn digest(file: &File, start: u64, end: u64) -> io::Result<Digest> {
    let mut digest = Sha256::new();
    let mut from = start;
    while from < end {
        let (chunk, _) = chunk(file, from, end.min(from + CHUNK))?;
        digest.update(&chunk);
        from += chunk.len() as u64;
    }
    Ok(digest.finalize().into())
}

fn chunk(file: &File, from: u64, to: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut chunk = vec![0; usize::try_from(to - from).unwrap_or_default()];
    file.read_exact_at(&mut chunk, from)?;
    Ok((chunk, from))
}

/// As much as holds most lines: every append reads it.
const FIRST: u64 = 4 * 1024;
const CHUNK: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::run_id::hex;

    fn tail(content: &[u8]) -> Tail {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        Tail::of(&file).unwrap()
    }

    #[test]
    fn the_last_line_is_found_whole_or_torn() {
        let long = vec![b'x'; 200_000];
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
            let last = Some(Sha256::digest(last).into());
            assert_eq!(tail(content), Tail { last, torn }, "{}", content.len());
        }
    }

    #[test]
    fn an_empty_file_has_no_last_line() {
        assert_eq!(tail(b""), Tail::default());
    }

    #[test]
    fn the_digest_is_that_of_the_line_without_its_end() {
        // From coreutils: printf 'a' | sha256sum
        let known = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        for content in ["x\na\n", "x\na"] {
            assert_eq!(hex(&tail(content.as_bytes()).last.unwrap()), known);
        }
    }

    #[test]
    fn reading_a_directory_is_an_error_and_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tail::of(&File::open(dir.path()).unwrap()).is_err());
    }
}
