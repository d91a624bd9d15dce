//! The first line of a connection: a container that introduces itself, or one that comes back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{FrameError, MAX_DEPTH, Report, frame::depth_is_at_most};

/// How a container that was welcomed once takes up its account again, after its collector was
/// restarted. It has no number: it is said of the connection, not of the run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "resume")]
pub struct Resume {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// What the welcome gave it.
    pub resume_token: String,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resume(…)")
    }
}

/// What the first line of a connection says.
#[derive(Debug, Clone, PartialEq)]
pub enum Opening {
    /// A numbered message, which must be a hello.
    Report(Report),
    /// A container that comes back.
    Resume(Resume),
}

impl Opening {
    /// Reads one line without its end.
    ///
    /// # Errors
    /// As [`Report::read`].
    pub fn read(line: &[u8]) -> Result<Self, FrameError> {
        if !depth_is_at_most(line, MAX_DEPTH) {
            return Err(FrameError::TooDeep { limit: MAX_DEPTH });
        }
        let value: Value = serde_json::from_slice(line)?;
        // Asked for here, since serde reads a struct under any tag.
        if value.get("type").and_then(Value::as_str) == Some("resume") {
            return Ok(Self::Resume(Resume::deserialize(&value)?));
        }
        Report::of(value).map(Self::Report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, PROTOCOL};

    fn resume() -> Resume {
        Resume {
            protocol: PROTOCOL,
            resume_token: "s3cret".into(),
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let line = serde_json::to_vec(&resume()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&line),
            r#"{"type":"resume","protocol":1,"resume_token":"s3cret"}"#
        );
        assert_eq!(Opening::read(&line).unwrap(), Opening::Resume(resume()));
    }

    #[test]
    fn any_other_type_is_a_report() {
        let line =
            br#"{"type":"totals","denied":{},"resume_token":"x","protocol":1,"seq":3,"t":4}"#;
        let Opening::Report(report) = Opening::read(line).unwrap() else {
            panic!("no report")
        };
        assert_eq!(report.message.seq, 3);
        assert!(!matches!(report.message.body, Body::Hello(_)));
    }

    #[test]
    fn what_is_neither_is_an_error_and_nothing_deep_is_parsed() {
        for line in [
            &br#"{"type":"resume"}"#[..],
            br#"{"type":"resume","protocol":-1,"resume_token":"x"}"#,
            br#"{"type":"resume","protocol":1,"resume_token":["x"]}"#,
            br#"["resume"]"#,
            br"null",
            b"\xff",
        ] {
            let read = Opening::read(line);
            assert!(matches!(read, Err(FrameError::Json(_))), "{read:?}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        let read = Opening::read(deep.as_bytes());
        assert!(matches!(read, Err(FrameError::TooDeep { .. })), "{read:?}");
    }

    #[test]
    fn the_token_is_not_printed() {
        assert!(!format!("{:?}", resume()).contains("s3cret"));
    }
}
