//! Orders to a run that goes on: another allowlist, an end; and what the container says came of it.

use serde::{Deserialize, Serialize};

use crate::Printable;

/// An order to put another allowlist in the place of the one in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyOrder {
    /// Greater than that of every list before it; the launch's is 1.
    pub generation: u64,
    /// Digest of the list, in hexadecimal: whoever reads it must arrive at the same.
    pub digest: Printable,
    /// The list.
    #[serde(flatten)]
    pub list: List,
}

/// Where the entries of a list are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Here, in their canonical spelling.
    Allow(Vec<String>),
    /// In the file of this name beside the channel's socket, since no frame holds so many.
    File(String),
}

/// What became of a [`PolicyOrder`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Which one.
    pub generation: u64,
    /// Digest of the list, as the container understood it.
    pub digest: Printable,
    /// Whether it is in force.
    pub outcome: PolicyOutcome,
    /// Why not, where it is not; and where it is, what of it does not work as it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Printable>,
}

/// Whether a list came into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyOutcome {
    /// It is, from the time of the message that says so.
    InForce,
    /// It is not, and the one before it still is.
    Refused,
    /// A word that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The first generation: the list that a run is launched with.
pub const FIRST_GENERATION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostMessage, MAX_FRAME, encode};

    fn order(list: List) -> HostMessage {
        HostMessage::Policy(PolicyOrder {
            generation: 2,
            digest: Printable::new("ab"),
            list,
        })
    }

    #[test]
    fn the_spelling_of_an_order_is_stable() {
        for (message, wire) in [
            (
                order(List::Allow(vec!["a.example".into()])),
                r#"{"type":"policy","generation":2,"digest":"ab","allow":["a.example"]}"#,
            ),
            (
                order(List::File("policy-2".into())),
                r#"{"type":"policy","generation":2,"digest":"ab","file":"policy-2"}"#,
            ),
            (
                HostMessage::Stop { grace_ms: 500 },
                r#"{"type":"stop","grace_ms":500}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&message).unwrap(), wire);
            assert_eq!(serde_json::from_str::<HostMessage>(wire).unwrap(), message);
        }
    }

    #[test]
    fn an_order_without_a_list_is_no_order() {
        for line in [
            r#"{"type":"policy","generation":2,"digest":"ab"}"#,
            r#"{"type":"policy","digest":"ab","allow":[]}"#,
            r#"{"type":"stop"}"#,
        ] {
            assert!(serde_json::from_str::<HostMessage>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_list_that_no_frame_holds_is_not_sent_as_one() {
        let long = vec!["a".repeat(200); 100];
        assert!(encode(&order(List::Allow(long)), MAX_FRAME).is_err());
    }

    #[test]
    fn an_outcome_of_a_later_version_is_no_error() {
        let line = r#"{"generation":2,"digest":"ab","outcome":"postponed"}"#;
        let report: PolicyReport = serde_json::from_str(line).unwrap();
        assert_eq!(report.outcome, PolicyOutcome::Unknown);
    }
}
