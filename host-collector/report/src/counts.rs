//! What was refused and what was let through: increments, and the totals they add up to.
//!
//! `R` is the set of reasons. A sender knows its own, [`DenyReason`]; who reads what a newer version
//! may have sent takes [`crate::Reason`], which has room for words it does not know.

use std::{collections::BTreeMap, net::IpAddr};

use policy::DenyReason;
use serde::{Deserialize, Serialize};

use crate::Printable;

/// What a connection was for: a name, or an address where no name was used; both where what the name
/// resolved to is why it was refused. Neither where many
/// attempts were folded into one report because the guest made more kinds than are kept apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// The name as the guest asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Printable>,
    /// The address, where no name was used, or where it is why the name was refused.
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

impl Transport {
    /// The spelling on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Other => "other",
        }
    }
}

/// Refused attempts of one kind: an increment, not a total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied<R = DenyReason> {
    /// What was asked for.
    #[serde(flatten)]
    pub target: Target,
    /// What carried it.
    pub proto: Transport,
    /// Why it was refused.
    pub reason: R,
    /// How many attempts.
    pub count: u64,
    /// The first of them, in milliseconds since the run began.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// Whose packets they were, where packets were refused, the kernel knows it and it was one user:
    /// what is not the guest's own comes from somebody who was let into its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl<R> Denied<R> {
    /// Whether it says only how many attempts there were and why they were refused: of targets that
    /// nobody knows, or that were too many to be named.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.proto == Transport::Other && self.target == Target::default()
    }

    /// Says no more than that.
    pub(crate) fn unname(&mut self) {
        self.target = Target::default();
        self.proto = Transport::Other;
        self.uid = None;
    }

    /// Adds another increment for the same target.
    pub(crate) fn add(&mut self, more: &Self) {
        self.count = self.count.saturating_add(more.count);
        self.first = self.first.min(more.first);
        self.last = self.last.max(more.last);
        self.uid = self.uid.filter(|_| self.uid == more.uid);
    }
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
    /// Of the TLS streams, those that offered Encrypted `ClientHello`: in earnest or for practice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ech_offered: u64,
}

impl Allowed {
    /// Adds another increment for the same target.
    pub fn add(&mut self, more: &Self) {
        self.connections = self.connections.saturating_add(more.connections);
        self.failures = self.failures.saturating_add(more.failures);
        self.bytes_up = self.bytes_up.saturating_add(more.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(more.bytes_down);
        self.ech_offered = self.ech_offered.saturating_add(more.ech_offered);
    }
}

/// Every cumulative counter of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de> + Ord"))]
pub struct Totals<R = DenyReason> {
    /// Refused attempts by reason.
    pub denied: BTreeMap<R, u64>,
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
    /// Sum of [`Allowed::ech_offered`]; absent where nobody looks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ech_offered: Option<u64>,
}

impl<R> Default for Totals<R> {
    fn default() -> Self {
        Self {
            denied: BTreeMap::new(),
            connections: 0,
            failures: 0,
            bytes_up: 0,
            bytes_down: 0,
            unsampled: 0,
            ech_offered: None,
        }
    }
}

impl<R: Ord + Clone> Totals<R> {
    /// Adds an increment of refused attempts.
    pub fn deny(&mut self, more: &Denied<R>) {
        let sum = self.denied.entry(more.reason.clone()).or_default();
        *sum = sum.saturating_add(more.count);
    }

    /// Adds an increment of attempts that were let through.
    pub fn allow(&mut self, more: &Allowed) {
        self.connections = self.connections.saturating_add(more.connections);
        self.failures = self.failures.saturating_add(more.failures);
        self.bytes_up = self.bytes_up.saturating_add(more.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(more.bytes_down);
        if more.ech_offered > 0 {
            let sum = self.ech_offered.unwrap_or_default();
            self.ech_offered = Some(sum.saturating_add(more.ech_offered));
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes what it asks about by reference"
)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(count: u64) -> Denied {
        Denied {
            target: Target {
                host: None,
                address: Some([192, 0, 2, 1].into()),
                port: None,
            },
            proto: Transport::Icmp,
            reason: DenyReason::Packet,
            count,
            first: 1,
            last: 2,
            uid: None,
        }
    }

    #[test]
    fn packets_of_one_user_are_its_own_and_those_of_several_nobody_s() {
        let of = |uid| Denied { uid, ..denied(1) };
        for (first, then, both) in [
            (Some(7), Some(7), Some(7)),
            (Some(7), Some(0), None),
            (Some(7), None, None),
            (None, Some(7), None),
        ] {
            let mut sum = of(first);
            sum.add(&of(then));
            assert_eq!((sum.count, sum.uid), (2, both), "{first:?} {then:?}");
        }
        let mut unnamed = of(Some(7));
        unnamed.unname();
        assert_eq!(unnamed.uid, None);
        assert!(!serde_json::to_string(&unnamed).unwrap().contains("uid"));
    }

    #[test]
    fn what_a_target_lacks_is_absent_on_the_wire() {
        assert_eq!(
            serde_json::to_string(&denied(3)).unwrap(),
            r#"{"address":"192.0.2.1","proto":"icmp","reason":"packet","count":3,"first":1,"last":2}"#
        );
    }

    #[test]
    fn a_sum_stays_at_its_greatest_value_instead_of_starting_over() {
        let mut totals = Totals::default();
        totals.deny(&denied(u64::MAX));
        totals.deny(&denied(1));
        assert_eq!(totals.denied.get(&DenyReason::Packet), Some(&u64::MAX));
        let one = Allowed {
            target: Target::default(),
            connections: u64::MAX,
            failures: 1,
            bytes_up: 2,
            bytes_down: 3,
            ech_offered: 4,
        };
        totals.allow(&one);
        totals.allow(&one);
        assert_eq!(
            (
                totals.connections,
                totals.failures,
                totals.bytes_up,
                totals.bytes_down
            ),
            (u64::MAX, 2, 4, 6)
        );
        assert_eq!(totals.ech_offered, Some(8));
    }

    #[test]
    fn totals_of_an_earlier_version_are_read() {
        let line = r#"{"denied":{},"connections":1,"failures":0,"bytes_up":0,"bytes_down":0}"#;
        assert_eq!(
            serde_json::from_str::<Totals>(line).unwrap(),
            Totals {
                connections: 1,
                ..Totals::default()
            }
        );
    }

    #[test]
    fn that_nothing_was_found_differs_from_that_nobody_looked() {
        let nobody = serde_json::to_string(&Totals::<DenyReason>::default()).unwrap();
        assert!(!nobody.contains("ech_offered"), "{nobody}");
        let nothing = Totals::<DenyReason> {
            ech_offered: Some(0),
            ..Totals::default()
        };
        let nothing = serde_json::to_string(&nothing).unwrap();
        assert!(nothing.contains("\"ech_offered\":0"), "{nothing}");
        let mut totals: Totals = serde_json::from_str(&nothing).unwrap();
        let line = r#"{"connections":1,"failures":0,"bytes_up":0,"bytes_down":0}"#;
        let earlier: Allowed = serde_json::from_str(line).unwrap();
        totals.allow(&earlier);
        assert_eq!(totals.ech_offered, Some(0));
        assert!(!serde_json::to_string(&earlier).unwrap().contains("ech"));
    }

    #[test]
    fn a_word_for_a_protocol_is_the_one_on_the_wire() {
        for proto in [
            Transport::Tcp,
            Transport::Udp,
            Transport::Icmp,
            Transport::Other,
        ] {
            let wire = serde_json::to_string(&proto).unwrap();
            assert_eq!(wire, format!("\"{}\"", proto.as_str()));
        }
    }

    #[test]
    fn what_has_a_target_or_a_protocol_is_named() {
        let mut some = denied(1);
        assert!(!some.is_unnamed());
        some.target = Target::default();
        assert!(!some.is_unnamed());
        some.unname();
        assert!(some.is_unnamed());
    }

    #[test]
    fn a_protocol_that_has_no_name_here_is_another_one() {
        assert_eq!(
            serde_json::from_str::<Transport>("\"sctp\"").unwrap(),
            Transport::Other
        );
    }

    #[test]
    fn two_increments_for_one_target_are_one() {
        let mut sum = Allowed {
            target: Target::default(),
            connections: 1,
            failures: 0,
            bytes_up: 5,
            bytes_down: 7,
            ech_offered: 1,
        };
        sum.add(&sum.clone());
        assert_eq!(
            (sum.connections, sum.failures, sum.bytes_up, sum.bytes_down),
            (2, 0, 10, 14)
        );
        assert_eq!(sum.ech_offered, 2);
    }
}
