//! How a host introduces itself where it comes into the container, since that cannot come out.

use serde::{Deserialize, Serialize};

use crate::{FrameError, MAX_DEPTH, frame::depth_is_at_most};

/// The first line that PID 1 hears from whoever comes in to take its reports: that is the host, and
/// no other process of root's in the container. What follows is what is said over a socket.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "attach")]
pub struct Attach {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// The nonce, where nobody was welcomed yet; the resume token after that.
    pub secret: String,
}

impl Attach {
    /// Reads one line without its end.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn read(line: &[u8]) -> Result<Self, FrameError> {
        if !depth_is_at_most(line, MAX_DEPTH) {
            return Err(FrameError::TooDeep { limit: MAX_DEPTH });
        }
        let read: Tagged = serde_json::from_slice(line)?;
        let Tagged::Attach(attach) = read;
        Ok(attach)
    }
}

/// Serde reads a struct under any tag, and an enum under its own.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Tagged {
    Attach(Attach),
}

impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attach(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROTOCOL;

    fn attach() -> Attach {
        Attach {
            protocol: PROTOCOL,
            secret: "s3cret".into(),
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let line = serde_json::to_vec(&attach()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&line),
            r#"{"type":"attach","protocol":1,"secret":"s3cret"}"#
        );
        assert_eq!(Attach::read(&line).unwrap(), attach());
    }

    #[test]
    fn what_is_anything_else_is_an_error_and_nothing_deep_is_parsed() {
        for line in [
            &br#"{"type":"resume","protocol":1,"secret":"s3cret"}"#[..],
            br#"{"protocol":1,"secret":"s3cret"}"#,
            br#"{"type":"attach","secret":"s3cret"}"#,
            br#"{"type":"attach","protocol":1,"secret":null}"#,
            br#""attach""#,
            b"",
            b"\xff",
        ] {
            let read = Attach::read(line);
            assert!(matches!(read, Err(FrameError::Json(_))), "{read:?}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        let read = Attach::read(deep.as_bytes());
        assert!(matches!(read, Err(FrameError::TooDeep { .. })), "{read:?}");
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", attach()).contains("s3cret"));
    }
}
