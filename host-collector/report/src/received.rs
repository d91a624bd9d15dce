//! Reads a report that may come from anybody: what it means, and a copy that is safe to store.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Body, FrameError, Message, Printable, Reason, frame::depth_is_at_most};

/// A message as a collector reads it.
pub type Received = Message<Reason>;

/// The deepest nesting of a report that is read. Every known one needs four levels.
pub const MAX_DEPTH: usize = 8;

/// One line of the report channel, understood and made harmless.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What it says.
    pub message: Received,
    /// The whole of it for the journal: fields that this version ignores are there, every string is
    /// [`Printable`], and the secret of a hello is not.
    pub record: Value,
}

impl Report {
    /// Reads one line without its end.
    ///
    /// A message of a newer shape that at least carries its sequence number is read as
    /// [`Body::Unknown`], so that it leaves no hole in the sequence.
    ///
    /// # Errors
    /// [`FrameError::TooDeep`] before anything is parsed, [`FrameError::Json`] for what is no
    /// message at all.
    pub fn read(line: &[u8]) -> Result<Self, FrameError> {
        if !depth_is_at_most(line, MAX_DEPTH) {
            return Err(FrameError::TooDeep { limit: MAX_DEPTH });
        }
        // Parsed once: two parsers might disagree about a key that stands there twice.
        Self::of(serde_json::from_slice(line)?)
    }

    /// The same of a line that is parsed already, and was not too deep.
    pub(crate) fn of(value: Value) -> Result<Self, FrameError> {
        let message = Received::deserialize(&value)
            .or_else(|_| Envelope::deserialize(&value).map(Into::into))?;
        Ok(Self {
            message,
            record: harmless_message(value),
        })
    }

    /// The line of the journal, with its end.
    #[must_use]
    pub fn journal_line(&self) -> String {
        format!("{}\n", self.record)
    }
}

/// What every message of every version has.
#[derive(Deserialize)]
struct Envelope {
    seq: u64,
    t: u64,
}

impl From<Envelope> for Received {
    fn from(envelope: Envelope) -> Self {
        Self {
            body: Body::Unknown,
            seq: envelope.seq,
            t: envelope.t,
        }
    }
}

fn harmless_message(value: Value) -> Value {
    match harmless(value) {
        Value::Object(mut fields) => {
            fields.remove("nonce");
            Value::Object(fields)
        }
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)) => other,
    }
}

/// Recursion is bounded by [`MAX_DEPTH`].
fn harmless(value: Value) -> Value {
    match value {
        Value::String(raw) => Value::String(printable(&raw)),
        Value::Array(items) => Value::Array(items.into_iter().map(harmless).collect()),
        Value::Object(fields) => {
            let fields: Map<_, _> = fields
                .into_iter()
                .map(|(key, value)| (printable(&key), harmless(value)))
                .collect();
            Value::Object(fields)
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

fn printable(raw: &str) -> String {
    Printable::new(raw).as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use policy::DenyReason;
    use proptest::prelude::*;

    use super::*;

    fn read(line: &str) -> Report {
        Report::read(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn a_denial_of_a_newer_reason_keeps_its_count() {
        let line = r#"{"type":"denied","host":"a.example","port":443,"proto":"tcp","reason":"quota","count":7,"first":1,"last":2,"seq":3,"t":9}"#;
        let Body::Denied(denied) = read(line).message.body else {
            panic!("{line}")
        };
        assert_eq!((denied.count, denied.reason.as_str()), (7, "quota"));
    }

    #[test]
    fn totals_keep_newer_reasons_beside_known_ones() {
        let line = r#"{"type":"totals","denied":{"quota":2,"packet":3},"connections":0,"failures":0,"bytes_up":0,"bytes_down":0,"seq":3,"t":9}"#;
        let Body::Totals(totals) = read(line).message.body else {
            panic!("{line}")
        };
        assert_eq!(
            totals.denied.get(&Reason::Known(DenyReason::Packet)),
            Some(&3)
        );
        assert_eq!(totals.denied.values().sum::<u64>(), 5);
    }

    #[test]
    fn an_unknown_type_or_shape_keeps_its_place_in_the_sequence() {
        for line in [
            r#"{"type":"process","pid":7,"seq":4,"t":5}"#,
            r#"{"type":"exit","end_reason":"abducted","seq":4,"t":5}"#,
            r#"{"seq":4,"t":5}"#,
        ] {
            assert_eq!(
                read(line).message,
                Received {
                    body: Body::Unknown,
                    seq: 4,
                    t: 5
                },
                "{line}"
            );
        }
    }

    #[test]
    fn the_record_has_what_is_ignored_but_neither_escapes_nor_the_secret() {
        let line = r#"{"type":"hello","protocol":1,"nonce":"secret","version":"1","guest_uid":1,"new\u001b[0m":["a\u202eb",{"k":"\n"}],"seq":1,"t":0}"#;
        let record = read(line).journal_line();
        assert!(!record.contains("secret"), "{record}");
        assert_eq!(
            record.trim_end().chars().filter(|c| c.is_control()).count(),
            0,
            "{record}"
        );
        assert!(
            record.contains(r#"["a\\u{202e}b",{"k":"\\u{a}"}]"#),
            "{record}"
        );
    }

    #[test]
    fn nesting_is_refused_before_it_is_parsed() {
        let deep = format!("{}{}", "[".repeat(9), "]".repeat(9));
        assert!(matches!(
            Report::read(deep.as_bytes()),
            Err(FrameError::TooDeep { .. })
        ));
        let shallow = format!(
            r#"{{"a":{}{},"seq":1,"t":1}}"#,
            "[".repeat(7),
            "]".repeat(7)
        );
        assert!(Report::read(shallow.as_bytes()).is_ok());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for line in [
            "",
            "[]",
            "null",
            "{}",
            "{\"seq\":-1,\"t\":0}",
            "{\"seq\":1}",
            "{\"seq\":1,\"t\":0",
            "\u{0}",
        ] {
            assert!(Report::read(line.as_bytes()).is_err(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_panic_the_reader(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Report::read(&line);
        }

        #[test]
        fn reading_the_journal_gives_the_same_message(host in ".{0,40}", count in any::<u64>()) {
            let line = serde_json::json!({
                "type": "denied", "host": host, "proto": "tcp", "reason": "not_allowed",
                "count": count, "first": 0, "last": 0, "seq": 2, "t": 0,
            });
            let report = Report::read(line.to_string().as_bytes()).unwrap();
            let again = Report::read(report.journal_line().trim_end().as_bytes()).unwrap();
            prop_assert_eq!(again, report);
        }
    }
}
