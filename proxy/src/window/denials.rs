//! What was refused lately, the latest first.

use std::fmt;

use report::Target;
use serde::Serialize;

use super::page::NOTE;
use crate::recent::{Recent, Refusals};

/// What is remembered of the refused attempts.
#[derive(Debug, Serialize)]
pub(super) struct Denials {
    /// All attempts that this proxy has refused, shown below or not.
    attempts: u64,
    #[serde(rename = "denials")]
    shown: Vec<Shown>,
    not_among_them: &'static str,
    note: &'static str,
}

#[derive(Debug, Serialize)]
struct Shown {
    /// A name, or an address where no name was used; absent where the attempt named nothing.
    host: Option<String>,
    port: Option<u16>,
    proto: report::Transport,
    reason: policy::DenyReason,
    count: u64,
    first_ms: u64,
    last_ms: u64,
    hint: Option<String>,
}

pub(super) fn of(recent: &Recent) -> Denials {
    Denials {
        attempts: recent.attempts(),
        shown: recent.kinds().map(Shown::of).collect(),
        not_among_them: NOT_AMONG_THEM,
        note: NOTE,
    }
}

impl Shown {
    fn of(kind: &Refusals) -> Self {
        let Target {
            host,
            address,
            port,
        } = &kind.target;
        let name = host.as_ref().map(ToString::to_string);
        Self {
            host: name.or_else(|| address.map(|address| address.to_string())),
            port: *port,
            proto: kind.proto,
            reason: kind.reason,
            count: kind.count,
            first_ms: kind.first_ms,
            last_ms: kind.last_ms,
            hint: kind.hint.as_ref().map(ToString::to_string),
        }
    }
}

impl fmt::Display for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {NOTE}")?;
        writeln!(f, "# not among them: {NOT_AMONG_THEM}")?;
        writeln!(f, "# refused attempts: {}; the latest first", self.attempts)?;
        self.shown.iter().try_for_each(|shown| shown.fmt(f))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            reason,
            count,
            first_ms,
            last_ms,
            ..
        } = self;
        let host = self.host.as_deref().unwrap_or("-");
        write!(f, "{count} {reason} {host}")?;
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        writeln!(f, ", from {first_ms} to {last_ms} ms into the run")?;
        match &self.hint {
            Some(hint) => writeln!(f, "  {hint}"),
            None => Ok(()),
        }
    }
}

const NOT_AMONG_THEM: &str = "packets that the packet filter refused, what is older than the last \
    start of the proxy, and all but the latest 64 kinds";

#[cfg(test)]
mod tests {
    use policy::DenyReason;
    use report::{Denied, Printable, Transport};

    use super::*;

    fn recent() -> Recent {
        let mut recent = Recent::default();
        let target = Target {
            host: Some(Printable::new("gist.example")),
            address: None,
            port: Some(443),
        };
        let mut denied = Denied {
            target,
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 2,
            first: 5,
            last: 9,
            uid: None,
        };
        recent.note(&denied, Some("add `gist.example`"));
        denied.target = Target::default();
        denied.reason = DenyReason::Malformed;
        recent.note(&denied, None);
        recent
    }

    #[test]
    fn the_text_has_a_line_for_each_kind_and_one_for_its_hint() {
        let text = of(&recent()).to_string();
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "# refused attempts: 4; the latest first",
                "2 malformed -, from 5 to 9 ms into the run",
                "2 not_allowed gist.example port 443, from 5 to 9 ms into the run",
                "  add `gist.example`",
            ]
        );
    }

    #[test]
    fn the_json_spells_its_fields_as_the_session_log_does() {
        let json = serde_json::to_value(of(&recent())).unwrap();
        assert_eq!(json["attempts"], 4);
        let expected = serde_json::json!({
            "host": "gist.example", "port": 443, "proto": "tcp", "reason": "not_allowed",
            "count": 2, "first_ms": 5, "last_ms": 9, "hint": "add `gist.example`",
        });
        assert_eq!(json["denials"][1], expected);
        assert!(json["denials"][0]["host"].is_null());
    }

    #[test]
    fn where_nothing_was_refused_the_number_is_zero() {
        let none = of(&Recent::default());
        assert!(none.to_string().contains("refused attempts: 0;"));
        let json = serde_json::to_value(none).unwrap();
        assert_eq!(json["denials"], serde_json::json!([]));
    }

    #[test]
    fn an_address_stands_where_no_name_was_used() {
        let mut recent = Recent::default();
        let target = Target {
            address: Some([203, 0, 113, 7].into()),
            ..Target::default()
        };
        recent.note(
            &Denied {
                target,
                proto: Transport::Udp,
                reason: DenyReason::AddressLiteral,
                count: 1,
                first: 1,
                last: 1,
                uid: None,
            },
            None,
        );
        let json = serde_json::to_value(of(&recent)).unwrap();
        assert_eq!(json["denials"][0]["host"], "203.0.113.7");
    }
}
