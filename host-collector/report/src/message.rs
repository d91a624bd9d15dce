//! The messages between a container and its host.
//!
//! From the container come facts about one run, each with a contiguous sequence number, so that a
//! missing one shows. Unknown fields are ignored and unknown types counted, so that an older
//! collector can attend a newer container.

use policy::DenyReason;
use serde::{Deserialize, Serialize};

use crate::{Allowed, Denied, PolicyOrder, PolicyReport, Printable, Seed, Totals};

/// The version of the protocol that this crate speaks.
pub const PROTOCOL: u32 = 1;

/// A message from the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de> + Ord"))]
pub struct Message<R = DenyReason> {
    /// What is reported.
    #[serde(flatten)]
    pub body: Body<R>,
    /// Contiguous from 1 within a run.
    pub seq: u64,
    /// Milliseconds since the run began, see [`crate::RunClock`].
    pub t: u64,
}

/// What a container reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[serde(bound(deserialize = "R: Deserialize<'de> + Ord"))]
pub enum Body<R = DenyReason> {
    /// The first message: who is speaking.
    Hello(Hello),
    /// The rules are in force and proved, the guest is about to start.
    Enforcing(Enforcing),
    /// Refused attempts.
    Denied(Denied<R>),
    /// Attempts that were let through.
    Allowed(Allowed),
    /// An interval that was not enforced, or not counted.
    Gap(Gap),
    /// What became of another allowlist that the host gave.
    Policy(PolicyReport),
    /// Every cumulative counter; the heartbeat.
    Totals(Totals<R>),
    /// The guest ended.
    Exit(Exit),
    /// The last message.
    Bye(Bye<R>),
    /// A type that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Who is speaking. Sent before any other process exists in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The one-time secret that the collector gave to this run; empty in a journal, which has no
    /// secrets.
    #[serde(default)]
    pub nonce: String,
    /// The entrypoint's version.
    pub version: Printable,
    /// Digest of the allowlist as the container understood it, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_digest: Option<Printable>,
    /// The uid that the guest will have.
    pub guest_uid: u32,
    /// How many refused targets it names whatever else there is: the first in the order of
    /// [`Welcome::seed`]. Absent where it names as many as it happens to have room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<u32>,
}

/// What is in force, as observed from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforcing {
    /// Who decides.
    pub enforcement: Enforcement,
    /// What catches the packets: `nftables`.
    pub backend: Printable,
    /// SHA-256 of the ruleset as it was loaded, in hexadecimal.
    pub ruleset_digest: Printable,
    /// What was tried from the guest's side, and how it went.
    pub self_test: Vec<ProbeResult>,
    /// Whether the container has IPv6.
    pub ipv6: Ipv6,
    /// What could not be had and was done without, one sentence each.
    #[serde(default)]
    pub degradations: Vec<Printable>,
}

/// Who decides what leaves the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// The proxy, by host name.
    Name,
    /// nftables alone, by address.
    Address,
    /// Nobody: the run has no allowlist.
    None,
}

/// Whether a container can speak IPv6. Its rules cover both families either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ipv6 {
    /// There is a route, and the self-test tried it.
    Routed,
    /// Addresses exist, but no route leads out.
    Unrouted,
    /// The kernel has none.
    Absent,
}

/// One probe of the self-test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// What was tried: `tcp4`, `udp6`, `dns4`, `connect`, …
    pub name: Printable,
    /// How it was refused: `refused`, `unroutable`, ….
    pub outcome: Printable,
}

/// An interval in which the account has a hole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// What happened.
    pub kind: GapKind,
    /// When it began, in milliseconds since the run began.
    pub from: u64,
    /// When it ended; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// One sentence of detail.
    pub detail: Printable,
}

/// Kinds of hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapKind {
    /// The proxy was not running: nothing left, and what was tried was not all counted.
    Outage,
    /// Something other than PID 1 changed the rules.
    Tamper,
    /// More happened than could be counted.
    Overflow,
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// How a guest ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code, unless a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How it came about.
    pub end_reason: EndReason,
    /// Processor time of the guest and the descendants that were reaped, in milliseconds.
    pub cpu_ms: u64,
    /// The largest resident set of any of them, in KiB; absent where it stayed below that of the
    /// set-up, so that the kernel cannot tell it apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_rss_kb: Option<u64>,
    /// Processes of the guest that were still alive when its first process had ended.
    pub outlived_root: u64,
    /// Why it could not be started, where it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Printable>,
}

/// How a run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The command returned.
    Exited,
    /// A signal ended the command.
    Signaled,
    /// A time limit was reached.
    TimedOut,
    /// The kernel ran out of memory for it.
    Oom,
    /// The engine or the user stopped it.
    Stopped,
    /// The command could not be started.
    StartFailed,
}

/// The last message of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de> + Ord"))]
pub struct Bye<R = DenyReason> {
    /// This message's own sequence number: nothing follows it.
    pub last_seq: u64,
    /// The final totals.
    pub totals: Totals<R>,
}

/// A message from the host to the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HostMessage {
    /// The hello was accepted.
    Welcome(Welcome),
    /// Every message up to and including `seq` is stored.
    Ack {
        /// The last stored sequence number.
        seq: u64,
    },
    /// Another allowlist is to be in force.
    Policy(PolicyOrder),
    /// The guest is to end.
    Stop {
        /// How long it may take to end by itself, in milliseconds.
        grace_ms: u64,
    },
    /// A type that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Acceptance of a hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The secret with which this container may come back after the collector was restarted.
    pub resume_token: String,
    /// The last stored sequence number: what a container that came back need not send again.
    #[serde(default)]
    pub stored: u64,
    /// The order in which refused targets are chosen to be named, if there are too many to name them
    /// all: the one in which the collector samples them. Absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(body: Body) -> String {
        serde_json::to_string(&Message { body, seq: 7, t: 9 }).unwrap()
    }

    fn hello() -> Body {
        let version = Printable::new("1");
        Body::Hello(Hello {
            protocol: 1,
            nonce: "n".into(),
            version,
            policy_digest: None,
            guest_uid: 5,
            named: None,
        })
    }

    fn gap() -> Body {
        Body::Gap(Gap {
            kind: GapKind::Tamper,
            from: 1,
            to: None,
            detail: Printable::new("d"),
        })
    }

    #[test]
    fn the_type_is_the_first_field_of_every_message() {
        let bye = Body::Bye(Bye {
            last_seq: 7,
            totals: Totals::default(),
        });
        for body in [hello(), gap(), bye, Body::Totals(Totals::default())] {
            let line = wire(body);
            assert!(line.starts_with("{\"type\":\""), "{line}");
            assert!(line.ends_with("\"seq\":7,\"t\":9}"), "{line}");
        }
    }

    #[test]
    fn the_spelling_on_the_wire_is_stable() {
        assert_eq!(
            wire(hello()),
            r#"{"type":"hello","protocol":1,"nonce":"n","version":"1","guest_uid":5,"seq":7,"t":9}"#
        );
        assert_eq!(
            wire(gap()),
            r#"{"type":"gap","kind":"tamper","from":1,"detail":"d","seq":7,"t":9}"#
        );
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let exit = Body::Exit(Exit {
            code: None,
            signal: Some(9),
            end_reason: EndReason::Oom,
            cpu_ms: 1,
            peak_rss_kb: Some(2),
            outlived_root: 3,
            detail: Some(Printable::new("x")),
        });
        for body in [hello(), gap(), exit] {
            let read: Message = serde_json::from_str(&wire(body.clone())).unwrap();
            assert_eq!(read, Message { body, seq: 7, t: 9 });
        }
    }

    #[test]
    fn fields_and_kinds_of_later_versions_are_no_error() {
        let line =
            r#"{"type":"gap","kind":"eclipse","from":1,"detail":"d","colour":[1],"seq":7,"t":9}"#;
        let Body::Gap(gap) = serde_json::from_str::<Message>(line).unwrap().body else {
            panic!("{line}")
        };
        assert_eq!(gap.kind, GapKind::Unknown);
    }

    #[test]
    fn what_earlier_versions_do_not_say_is_absent_and_what_they_do_not_know_is_no_error() {
        let earlier = r#"{"type":"welcome","protocol":1,"resume_token":"r","stored":3}"#;
        let HostMessage::Welcome(mut welcome) = serde_json::from_str(earlier).unwrap() else {
            panic!("{earlier}")
        };
        assert_eq!(welcome.seed, None);
        let said = serde_json::to_string(&HostMessage::Welcome(welcome.clone())).unwrap();
        assert_eq!(said, earlier);
        welcome.seed = Some(Seed([1; 16]));
        let said = serde_json::to_string(&HostMessage::Welcome(welcome)).unwrap();
        assert!(said.contains(r#""seed":"01010101"#), "{said}");
        let Body::Hello(hello) = serde_json::from_str::<Message>(&wire(hello()))
            .unwrap()
            .body
        else {
            panic!("no hello")
        };
        assert_eq!(hello.named, None);
    }

    #[test]
    fn the_host_s_words_are_short_and_later_ones_are_no_error() {
        assert_eq!(
            serde_json::to_string(&HostMessage::Ack { seq: 3 }).unwrap(),
            r#"{"type":"ack","seq":3}"#
        );
        let later: HostMessage =
            serde_json::from_str(r#"{"type":"pause","generation":2}"#).unwrap();
        assert_eq!(later, HostMessage::Unknown);
    }
}
