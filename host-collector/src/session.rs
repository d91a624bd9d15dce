//! One line of the session log: what was launched, how it ended, and what is known of its network.
//!
//! A field named for a fact is one. What nobody looked at is absent or `null`; `0` means that
//! somebody looked and there was nothing. There is no field that could hold an environment value.

mod account;
mod change;
mod fit;
mod glance;
mod parse;

use std::collections::BTreeMap;

use report::{ChannelState, EndReason, GapKind, Printable, Transport};
use serde::{Deserialize, Serialize};

pub use account::Network;
pub use change::{PolicyChange, PolicyIdentity, PolicyState};
pub(crate) use fit::fit_into;
pub use fit::{MAX_LINE, fit};
pub(crate) use glance::{Glance, GlanceHost, Text};
pub(crate) use parse::NoSession;

/// A run, as the log has it. Reading one is lenient: lines of earlier versions lack most of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Version of the line; absent in lines of the log's first writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v: Option<u32>,
    /// When it was launched, RFC 3339.
    pub time: String,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Wall time from launch to end.
    pub duration_ms: Option<u64>,
    /// Name of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Name of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// What was launched, and how.
    #[serde(flatten)]
    pub launch: Launched,
    /// Whether the launcher did not wait for the end.
    pub detached: bool,
    /// Whether this is the line of an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<bool>,
    /// The guest's exit code, 128 + n for a signal; `null` where it is not known.
    pub exit_code: Option<i32>,
    /// The signal that ended the guest, as PID 1 saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How it came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    /// The network.
    #[serde(flatten)]
    pub network: Network,
    /// What was seen of its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Processes>,
    /// Directory of the run's details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Runs that rotation has dropped up to this line, in the first line of a generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_runs: Option<u64>,
    /// SHA-256 of the line before this one, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev: Option<String>,
}

/// What was asked for at the launch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Launched {
    /// The image, as it was named.
    pub image: String,
    /// The host directory that the guest could change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The guest's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The agent that the run is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The branch that the workspace was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// What a router was asked for before it chose this image or agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_from: Option<String>,
    /// Why it chose so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_reason: Option<String>,
    /// The router's name for the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_id: Option<String>,
    /// Which attempt at the task this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_attempt: Option<u32>,
    /// The agent that handed the task over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_from: Option<String>,
    /// The session that it handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff_session: Option<String>,
    /// The argv, verbatim.
    pub command: Vec<String>,
    /// Whether it was cut to fit the line.
    #[serde(skip_serializing_if = "is_false")]
    pub command_truncated: bool,
    /// `docker` or `podman`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The OCI runtime that was asked for; absent for the host's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `default`, `none` or `allowlist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The engine's network that the container joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_name: Option<String>,
    /// `name` or `address`: what was asked for under an allowlist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_enforcement_requested: Option<String>,
    /// The entries of the allowlist, canonical.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_allow: Option<Vec<String>>,
    /// Whether they were cut to fit the line.
    #[serde(skip_serializing_if = "is_false")]
    pub egress_allow_truncated: bool,
    /// Which allowlist it was, and which others took its place while the run lasted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_policy: Option<PolicyIdentity>,
    /// Names of the variables that the guest was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_names: Option<Vec<String>>,
    /// Whether they were cut to fit the line.
    #[serde(skip_serializing_if = "is_false")]
    pub env_names_truncated: bool,
}

/// What may be concluded from the reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRecord {
    /// How complete the account is.
    pub state: ChannelState,
    /// How reports came; absent where there was nothing to report over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Intervals that were unenforced or uncounted.
    #[serde(default)]
    pub gaps: Vec<GapRecord>,
    /// Why the state is no better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How often the container came back to a collector that was started again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u64,
}

/// A hole in the account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapRecord {
    /// What happened.
    pub kind: GapKind,
    /// When it began, in milliseconds since the run began.
    pub from_ms: u64,
    /// When it ended; `null` if the run ended first.
    pub to_ms: Option<u64>,
    /// One sentence of detail.
    #[serde(default)]
    pub detail: String,
}

/// What was refused, by target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedHost {
    /// The name; neither it nor an address where many targets were folded into one report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The address, where no name was used; beside a name, what it resolved to, where that is why it
    /// was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The port, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What carried it.
    pub proto: Transport,
    /// Why.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// The first time, in milliseconds since the run began.
    pub first_ms: u64,
    /// The last time.
    pub last_ms: u64,
    /// Whether the numbers are lower bounds: more targets were tried than could be counted apart.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_least: bool,
}

impl DeniedHost {
    /// What was asked for, as a person writes it and without anything that acts on a terminal.
    #[must_use]
    pub fn target(&self) -> String {
        let name = match (&self.host, &self.address) {
            (Some(name), _) => Printable::new(name).to_string(),
            (None, Some(address)) if address.contains(':') => {
                format!("[{}]", Printable::new(address))
            }
            (None, Some(address)) => Printable::new(address).to_string(),
            (None, None) => match self.reason.as_str() {
                "malformed" => "what names no host".into(),
                "no_name" => "an unnamed host".into(),
                _ => "several hosts".into(),
            },
        };
        match self.port {
            Some(port) => format!("{name}:{port}"),
            None => name,
        }
    }
}

/// What was reached, or could have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedHost {
    /// The name; neither it nor an address where many targets were folded into one report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The address, where no name was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The port, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Attempts that policy allowed.
    pub connections: u64,
    /// Those that then failed on their own account.
    pub failures: u64,
    /// Bytes from the guest.
    pub bytes_up: u64,
    /// Bytes to the guest.
    pub bytes_down: u64,
    /// Whether the numbers are lower bounds.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_least: bool,
}

/// What was seen of a run's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// How many were seen; `null` where nobody looked.
    pub observed: Option<u64>,
    /// Those that were alive when the command had ended.
    pub outlived_root: Option<u64>,
    /// Whether none can have been missed.
    pub exact: bool,
}

/// Refused attempts by reason.
pub type ByReason = BTreeMap<String, u64>;

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What this crate writes into [`Session::v`].
pub const VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_says_nothing_but_what_must_be_there() {
        let line = serde_json::to_value(Session::default()).unwrap();
        assert_eq!(
            line,
            serde_json::json!({"time": "", "duration_ms": null, "image": "", "command": [], "detached": false, "exit_code": null})
        );
    }

    #[test]
    fn a_line_of_the_first_writer_is_read() {
        let old = r#"{"time":"2024-05-01T10:00:00Z","image":"i","workspace":"/w","command":["a","b"],"engine":"docker",
            "network":"allowlist","egress_enforcement_requested":"name","egress_allow":["a.example"],"env_names":["X"],
            "egress_denied_reported":4,"egress_denied_hosts_reported":["b.example"],"exit_code":3,"duration_ms":17,"detached":true}"#;
        let read: Session = serde_json::from_str(old).unwrap();
        assert_eq!(
            (read.v, read.exit_code, read.detached),
            (None, Some(3), true)
        );
        assert_eq!(read.launch.egress_allow.unwrap(), ["a.example"]);
        assert_eq!(read.network.egress_denied_reported, Some(4));
        assert_eq!(read.network.egress_denied, None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let session = Session {
            v: Some(VERSION),
            exit_code: Some(0),
            launch: Launched {
                image: "i".into(),
                egress_policy: Some(PolicyIdentity::default()),
                ..Launched::default()
            },
            processes: Some(Processes {
                outlived_root: Some(1),
                ..Processes::default()
            }),
            ..Session::default()
        };
        let line = serde_json::to_string(&session).unwrap();
        assert_eq!(
            serde_json::from_str::<Session>(&line).unwrap(),
            session,
            "{line}"
        );
    }

    #[test]
    fn a_number_that_is_a_lower_bound_says_so_and_an_exact_one_says_nothing() {
        let host = |at_least| {
            let host = ReachedHost {
                host: Some("a".into()),
                address: None,
                port: None,
                connections: 1,
                failures: 0,
                bytes_up: 0,
                bytes_down: 0,
                at_least,
            };
            serde_json::to_value(host).unwrap()
        };
        assert_eq!(host(true)["at_least"], true);
        assert_eq!(host(false).get("at_least"), None);
        assert_eq!(host(false).get("address"), None);
    }

    #[test]
    fn a_target_reads_as_a_person_writes_it() {
        let target = |host: Option<&str>, address: Option<&str>, port, reason: &str| {
            let denied = DeniedHost {
                host: host.map(Into::into),
                address: address.map(Into::into),
                port,
                proto: Transport::Tcp,
                reason: reason.into(),
                count: 1,
                first_ms: 0,
                last_ms: 0,
                at_least: false,
            };
            denied.target()
        };
        for (found, expected) in [
            (
                target(Some("a.example"), Some("192.0.2.1"), Some(22), "x"),
                "a.example:22",
            ),
            (target(None, Some("192.0.2.1"), None, "x"), "192.0.2.1"),
            (
                target(None, Some("2001:db8::1"), Some(22), "x"),
                "[2001:db8::1]:22",
            ),
            (
                target(None, None, Some(443), "malformed"),
                "what names no host:443",
            ),
            (target(None, None, None, "no_name"), "an unnamed host"),
            (target(None, None, None, "not_allowed"), "several hosts"),
            (target(Some("a\u{1b}\n"), None, None, "x"), "a\\u{1b}\\u{a}"),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_gap_that_was_open_at_the_end_has_a_null_and_no_time() {
        let gap = GapRecord {
            kind: GapKind::Outage,
            from_ms: 1,
            to_ms: None,
            detail: String::new(),
        };
        let value = serde_json::to_value(gap).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"kind": "outage", "from_ms": 1, "to_ms": null, "detail": ""})
        );
    }

    #[test]
    fn a_line_of_a_later_version_is_read_as_far_as_it_is_known() {
        let later =
            r#"{"v":3,"image":"i","new_field":{"a":1},"egress_denied":2,"network":"allowlist"}"#;
        let read: Session = serde_json::from_str(later).unwrap();
        assert_eq!((read.v, read.network.egress_denied), (Some(3), Some(2)));
    }
}
