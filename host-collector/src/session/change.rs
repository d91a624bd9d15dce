//! Which allowlist a run was held to, and how that changed while it lasted.

use serde::{Deserialize, Serialize};

use super::{is_false, is_zero};

/// Which allowlist was in force, at the end of the run or so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyIdentity {
    /// SHA-256 of the canonical entries, in hexadecimal.
    pub digest: String,
    /// 1 at the launch; one more with every change that was asked for while the run lasted.
    pub generation: u64,
    /// The digest of the list of the launch, which is the one in `egress_allow`; absent where no
    /// change was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_digest: Option<String>,
    /// The changes that were asked for, oldest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<PolicyChange>>,
    /// Whether some of them are not shown.
    #[serde(skip_serializing_if = "is_false")]
    pub changes_truncated: bool,
    /// Lists that the container spoke of and was never given.
    #[serde(skip_serializing_if = "is_zero")]
    pub unasked: u64,
}

/// A change that was asked for while a run lasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Which list it made.
    pub generation: u64,
    /// That list's digest.
    pub digest: String,
    /// What came of it.
    pub state: PolicyState,
    /// When it was asked for, RFC 3339.
    pub time: String,
    /// Since when it was in force, in milliseconds since the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Entries that the list before did not have.
    #[serde(default)]
    pub added: Vec<String>,
    /// Entries that it had.
    #[serde(default)]
    pub removed: Vec<String>,
    /// Whether some of these are not shown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub entries_truncated: bool,
    /// Why it did not come into force, or what of it does not work as it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What came of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyState {
    /// The container said that it is in force.
    InForce,
    /// The container said that it is not, and why.
    Refused,
    /// The container did not say.
    Unconfirmed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_list_did_not_change_has_the_line_that_it_always_had() {
        let identity = PolicyIdentity {
            digest: "aa".into(),
            generation: 1,
            ..PolicyIdentity::default()
        };
        let line = serde_json::to_string(&identity).unwrap();
        assert_eq!(line, r#"{"digest":"aa","generation":1}"#);
        assert_eq!(
            serde_json::from_str::<PolicyIdentity>(&line).unwrap(),
            identity
        );
    }

    #[test]
    fn a_change_that_lacks_what_it_may_lack_is_read() {
        let line = r#"{"generation":2,"digest":"bb","state":"unconfirmed","time":"t"}"#;
        let change: PolicyChange = serde_json::from_str(line).unwrap();
        assert_eq!(change.state, PolicyState::Unconfirmed);
        assert_eq!((change.at_ms, change.added.len()), (None, 0));
    }
}
