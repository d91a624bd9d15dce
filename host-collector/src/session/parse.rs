//! Reads a line of the log, or says what stands there in its place.

use serde_json::error::Category;

use super::Session;

/// What is no line of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// The beginning of one: its writer died, or the disk was full.
    Half,
    /// No text, or no JSON.
    Corrupt,
    /// JSON of something else.
    Foreign,
}

impl Session {
    /// Reads leniently: lines of earlier and later versions are lines.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, NoSession> {
        let session: Self =
            serde_json::from_slice(line).map_err(|error| match error.classify() {
                Category::Eof if line.first() == Some(&b'{') => NoSession::Half,
                Category::Data => NoSession::Foreign,
                Category::Eof | Category::Syntax | Category::Io => NoSession::Corrupt,
            })?;
        // Every field may be absent, so any object is read. A run has a time or a name.
        if session.time.is_empty() && session.run_id.is_none() {
            return Err(NoSession::Foreign);
        }
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_line_is_told_apart() {
        for (line, expected) in [
            (&b"{\"run_id\":\"a"[..], NoSession::Half),
            (b"{", NoSession::Half),
            (b"", NoSession::Corrupt),
            (b"{\"run_id\":}", NoSession::Corrupt),
            (b"{\"run_id\":\"\xff\"}", NoSession::Corrupt),
            (b"\0\0\0\0", NoSession::Corrupt),
            (b"7", NoSession::Foreign),
            (b"null", NoSession::Foreign),
            (b"{}", NoSession::Foreign),
            (b"{\"level\":\"info\"}", NoSession::Foreign),
            (b"{\"time\":3}", NoSession::Foreign),
        ] {
            assert_eq!(Session::parse(line), Err(expected), "{line:?}");
        }
    }

    #[test]
    fn a_time_or_a_name_makes_a_run() {
        for line in [
            "{\"run_id\":\"a\"}",
            "{\"time\":\"2024-05-01T10:00:00Z\",\"new\":1}",
        ] {
            assert!(Session::parse(line.as_bytes()).is_ok(), "{line}");
        }
    }
}
