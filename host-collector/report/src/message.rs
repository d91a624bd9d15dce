//! The messages between a container and its host.
//!
//! From the container come facts about one run, each with a contiguous sequence number, so that a
//! missing one shows. Unknown fields are ignored and unknown types counted, so that an older
//! collector can attend a newer container.

use std::{collections::BTreeMap, net::IpAddr};

use policy::DenyReason;
use serde::{Deserialize, Serialize};

use crate::Printable;

/// The version of the protocol that this crate speaks.
pub const PROTOCOL: u32 = 1;

/// A message from the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// What is reported.
    #[serde(flatten)]
    pub body: Body,
    /// Contiguous from 1 within a run.
    pub seq: u64,
    /// Milliseconds since the run began, see [`crate::RunClock`].
    pub t: u64,
}

/// What a container reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Body {
    /// The first message: who is speaking.
    Hello(Hello),
    /// The rules are in force and proved, the guest is about to start.
    Enforcing(Enforcing),
    /// Refused attempts.
    Denied(Denied),
    /// Attempts that were let through.
    Allowed(Allowed),
    /// An interval that was not enforced, or not counted.
    Gap(Gap),
    /// Every cumulative counter; the heartbeat.
    Totals(Totals),
    /// The guest ended.
    Exit(Exit),
    /// The last message.
    Bye(Bye),
    /// A type that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Who is speaking. Sent before any other process exists in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The one-time secret that the collector gave to this run.
    pub nonce: String,
    /// The entrypoint's version.
    pub version: Printable,
    /// Digest of the allowlist as the container understood it, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_digest: Option<Printable>,
    /// The uid that the guest will have.
    pub guest_uid: u32,
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

/// What a connection was for: a name, or an address where no name was used. Neither where many
/// attempts were folded into one report because the guest made more kinds than are kept apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// The name as the guest asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Printable>,
    /// The address, where no name was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// What carried an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or `ICMPv6`.
    Icmp,
    /// Any other protocol over IP, or several folded into one report.
    #[serde(other)]
    Other,
}

/// Refused attempts of one kind: an increment, not a total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// What was asked for.
    #[serde(flatten)]
    pub target: Target,
    /// What carried it.
    pub proto: Transport,
    /// Why it was refused.
    pub reason: DenyReason,
    /// How many attempts.
    pub count: u64,
    /// The first of them, in milliseconds since the run began.
    pub first: u64,
    /// The last of them.
    pub last: u64,
}

/// Connections that were let through: an increment, not a total.
///
/// Connections and failures are reported when they happen, bytes when the connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// What was asked for.
    #[serde(flatten)]
    pub target: Target,
    /// Attempts that policy allowed.
    pub connections: u64,
    /// Those that then failed on their own account: no such name, refused by the far end.
    pub failures: u64,
    /// Bytes from the guest.
    pub bytes_up: u64,
    /// Bytes to the guest.
    pub bytes_down: u64,
}

impl Allowed {
    /// Adds another increment for the same target.
    pub fn add(&mut self, more: &Self) {
        self.connections = self.connections.saturating_add(more.connections);
        self.failures = self.failures.saturating_add(more.failures);
        self.bytes_up = self.bytes_up.saturating_add(more.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(more.bytes_down);
    }
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

/// Every cumulative counter of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Refused attempts by reason.
    pub denied: BTreeMap<DenyReason, u64>,
    /// Sum of [`Allowed::connections`].
    pub connections: u64,
    /// Sum of [`Allowed::failures`].
    pub failures: u64,
    /// Sum of [`Allowed::bytes_up`].
    pub bytes_up: u64,
    /// Sum of [`Allowed::bytes_down`].
    pub bytes_down: u64,
    /// Of the refused packets, those that were counted but of which no sample tells the target.
    #[serde(default)]
    pub unsampled: u64,
}

impl Totals {
    /// Adds an increment of refused attempts.
    pub fn deny(&mut self, more: &Denied) {
        let sum = self.denied.entry(more.reason).or_default();
        *sum = sum.saturating_add(more.count);
    }

    /// Adds an increment of attempts that were let through.
    pub fn allow(&mut self, more: &Allowed) {
        self.connections = self.connections.saturating_add(more.connections);
        self.failures = self.failures.saturating_add(more.failures);
        self.bytes_up = self.bytes_up.saturating_add(more.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(more.bytes_down);
    }
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
pub struct Bye {
    /// This message's own sequence number: nothing follows it.
    pub last_seq: u64,
    /// The final totals.
    pub totals: Totals,
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
}
