//! Messages on a stream: one JSON object a line, of bounded size.

use serde::Serialize;

/// The greatest size of a report with its line end, in bytes.
pub const MAX_FRAME: usize = 16 * 1024;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer sent a longer line than was agreed, or none at all.
    #[error("a frame of more than {limit} bytes")]
    TooLong {
        /// What this reader accepts.
        limit: usize,
    },
    /// Nested deeper than any message: a parser that recurses could be made to fall over.
    #[error("a frame nested more than {limit} levels deep")]
    TooDeep {
        /// What this reader accepts.
        limit: usize,
    },
    /// The line is not the JSON that was expected.
    #[error("a frame that is not a message: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes one message as one line.
///
/// # Errors
/// [`FrameError::TooLong`] when the line would be over `limit`: the reader at the other end would
/// give up the stream.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, FrameError> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > limit {
        Err(FrameError::TooLong { limit })
    } else {
        Ok(line)
    }
}

/// Cuts a byte stream into lines, however the stream was split on its way.
#[derive(Debug)]
pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    /// How much behind `start` is known to have no line end: long lines come in many parts.
    searched: usize,
    limit: usize,
}

impl FrameReader {
    /// A reader that accepts lines of up to `limit` bytes, line end included.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            limit,
        }
    }

    /// Adds what was read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line without its line end, or `None` until more bytes come.
    ///
    /// # Errors
    /// [`FrameError::TooLong`]: nothing after it can be trusted to start a line.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        let unsearched = rest.get(self.searched..).unwrap_or_default();
        let found = unsearched.iter().position(|&b| b == b'\n');
        match found.map(|end| self.searched + end) {
            Some(end) if end < self.limit => {
                (self.start, self.searched) = (self.start + end + 1, 0);
                Ok(rest.get(..end))
            }
            None if rest.len() < self.limit => {
                self.searched = rest.len();
                Ok(None)
            }
            Some(_) | None => Err(FrameError::TooLong { limit: self.limit }),
        }
    }
}

/// Whether no array or object of `line` lies deeper than `limit`, found without parsing. Where the
/// bytes are not JSON the answer means nothing, and the parser says so next.
pub(crate) fn depth_is_at_most(line: &[u8], limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]], limit: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut reader = FrameReader::new(limit);
        let mut out = Vec::new();
        for chunk in chunks {
            reader.push(chunk);
            while let Some(line) = reader.next_line()? {
                out.push(line.to_vec());
            }
        }
        Ok(out)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_lines(body in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
            let cut = cut.min(body.len());
            let whole = lines(&[&body], 1000).unwrap();
            prop_assert_eq!(lines(&[&body[..cut], &body[cut..]], 1000).unwrap(), whole);
        }
    }

    #[test]
    fn a_line_over_the_limit_is_refused_with_and_without_its_end() {
        assert!(lines(&[b"12345678\n"], 8).is_err());
        assert!(lines(&[b"12345678"], 8).is_err());
        assert_eq!(lines(&[b"1234567\n"], 8).unwrap(), [b"1234567"]);
    }

    #[test]
    fn brackets_in_strings_are_not_depth() {
        for (line, depth) in [
            (r#"{"a":"[[[["}"#, 1),
            (r#"{"a":"\"[["}"#, 1),
            (r#"["\\",[[]]]"#, 3),
            ("1", 0),
        ] {
            assert!(depth_is_at_most(line.as_bytes(), depth), "{line}");
            assert!(
                depth == 0 || !depth_is_at_most(line.as_bytes(), depth - 1),
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_too_long_to_read_is_not_written() {
        assert!(encode(&"x".repeat(100), 50).is_err());
    }

    #[test]
    fn a_long_line_is_found_whole_however_small_its_parts_and_so_is_the_next() {
        let mut reader = FrameReader::new(100_000);
        let line = "x".repeat(50_000);
        for part in line.as_bytes().chunks(7) {
            reader.push(part);
            assert_eq!(reader.next_line().unwrap(), None);
        }
        reader.push(b"\nshort\n");
        assert_eq!(reader.next_line().unwrap(), Some(line.as_bytes()));
        assert_eq!(reader.next_line().unwrap(), Some(&b"short"[..]));
        assert_eq!(reader.next_line().unwrap(), None);
    }
}
