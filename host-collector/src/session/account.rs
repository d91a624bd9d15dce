//! What a session line says of the network, drawn from a run's account.

use report::{
    Account, ChannelState, Enforcement, Picked, Refusals, RefusedKey, Seed, Target, Traffic,
    Verdict,
};
use serde::{Deserialize, Serialize};

use super::{ByReason, ChannelRecord, DeniedHost, GapRecord, ReachedHost, is_false};
use crate::channel::Attendance;

/// The network's part of a line. Without an allowlist, or where nobody reported, it is all absent:
/// nobody looked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Who decided, as observed from inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_enforcement: Option<Enforcement>,
    /// What could not be had and was done without, one sentence each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_degradations: Option<Vec<String>>,
    /// What the numbers are worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_channel: Option<ChannelRecord>,
    /// Refused attempts, where that is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied: Option<u64>,
    /// Refused attempts, where there may have been more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_at_least: Option<u64>,
    /// The same by reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_by_reason: Option<ByReason>,
    /// The most frequent, and a random sample of the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_hosts: Option<Vec<DeniedHost>>,
    /// Whether they were cut to fit the line.
    #[serde(skip_serializing_if = "is_false")]
    pub egress_denied_hosts_truncated: bool,
    /// How many there were, counting each once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_hosts_distinct: Option<u64>,
    /// Whether that number is an estimate.
    #[serde(skip_serializing_if = "is_false")]
    pub egress_denied_hosts_distinct_estimated: bool,
    /// Attempts that were let through, where that is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_allowed: Option<u64>,
    /// Attempts that were let through, where there may have been more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_allowed_at_least: Option<u64>,
    /// TLS streams that were let through and offered Encrypted `ClientHello`, in earnest or for
    /// practice, where that is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_ech_offered: Option<u64>,
    /// The same, where there may have been more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_ech_offered_at_least: Option<u64>,
    /// The targets with the most traffic, and a random sample of the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_hosts: Option<Vec<ReachedHost>>,
    /// Whether there were more than are shown.
    #[serde(skip_serializing_if = "is_false")]
    pub egress_hosts_truncated: bool,
    /// What a guest could have forged: the count of the log's first writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_reported: Option<u64>,
    /// The hosts that go with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_denied_hosts_reported: Option<Vec<String>>,
}

/// How many targets of each kind a line shows.
const SHOWN: usize = 32;

impl Network {
    /// Of a run without an allowlist.
    #[must_use]
    pub fn unwatched() -> Self {
        let Verdict { state, .. } = report::verdict(report::Evidence::NoAllowlist);
        let channel = ChannelRecord {
            state,
            transport: None,
            gaps: Vec::new(),
            reason: None,
            resumed: 0,
        };
        Self {
            egress_channel: Some(channel),
            ..Self::default()
        }
    }

    /// Of a run under an allowlist.
    #[must_use]
    pub fn of(attendance: &Attendance) -> Self {
        let Verdict { state, .. } = attendance.verdict();
        let reason = attendance.shortfall();
        let Some(reports) = &attendance.reports else {
            let channel = ChannelRecord {
                state,
                transport: None,
                gaps: Vec::new(),
                reason,
                resumed: 0,
            };
            return Self {
                egress_channel: Some(channel),
                ..Self::default()
            };
        };
        let account = &reports.account;
        let channel = ChannelRecord {
            state,
            transport: Some(reports.transport.as_str().into()),
            gaps: gaps(account),
            reason,
            resumed: reports.resumed,
        };
        let mut network = Self {
            egress_channel: Some(channel),
            ..Self::counted(account)
        };
        if !state.is_final() {
            network.are_lower_bounds();
        }
        network
    }

    /// Of a run under an allowlist whose reports are lost, for this reason.
    #[must_use]
    pub fn lost(reason: &str) -> Self {
        let channel = ChannelRecord {
            state: ChannelState::Interrupted,
            transport: None,
            gaps: Vec::new(),
            reason: Some(reason.to_owned()),
            resumed: 0,
        };
        let mut network = Self {
            egress_channel: Some(channel),
            ..Self::counted(&Account::new(Seed([0; 16])))
        };
        network.are_lower_bounds();
        network
    }

    fn are_lower_bounds(&mut self) {
        self.egress_denied_at_least = self.egress_denied.take();
        self.egress_allowed_at_least = self.egress_allowed.take();
        self.egress_ech_offered_at_least = self.egress_ech_offered.take();
    }

    fn counted(account: &Account) -> Self {
        let totals = account.totals();
        let refused = account.refused(SHOWN);
        let distinct = account.refused_distinct();
        let reached = account.reached().pick(SHOWN);
        let enforcing = account.enforcing();
        // Where addresses decide nobody sees what is let through: that is not the same as nothing.
        let is_seen = enforcing.is_none_or(|e| e.enforcement != Enforcement::Address);
        Self {
            egress_enforcement: enforcing.map(|e| e.enforcement),
            egress_degradations: enforcing
                .map(|e| e.degradations.iter().map(ToString::to_string).collect())
                .filter(|all: &Vec<_>| !all.is_empty()),
            egress_denied: Some(
                totals
                    .denied
                    .values()
                    .fold(0, |sum, count| sum.saturating_add(*count)),
            ),
            egress_denied_by_reason: Some(
                totals
                    .denied
                    .iter()
                    .map(|(r, n)| (r.to_string(), *n))
                    .collect(),
            ),
            egress_denied_hosts: Some(refused.into_iter().map(denied_host).collect()),
            egress_denied_hosts_distinct: Some(distinct.count),
            egress_denied_hosts_distinct_estimated: distinct.estimated,
            egress_allowed: is_seen.then_some(totals.connections),
            egress_ech_offered: totals.ech_offered,
            egress_hosts_truncated: account.reached().distinct().count > reached.len() as u64,
            egress_hosts: is_seen.then(|| reached.into_iter().map(reached_host).collect()),
            ..Self::default()
        }
    }
}

fn gaps(account: &Account) -> Vec<GapRecord> {
    let record = |gap: &report::Gap| GapRecord {
        kind: gap.kind,
        from_ms: gap.from,
        to_ms: gap.to,
        detail: gap.detail.to_string(),
    };
    account.gaps().list().iter().map(record).collect()
}

fn denied_host(picked: Picked<RefusedKey, Refusals>) -> DeniedHost {
    let Picked {
        key: RefusedKey {
            target,
            proto,
            reason,
        },
        seen,
        exact,
    } = picked;
    let Target {
        host,
        address,
        port,
    } = target;
    DeniedHost {
        host: host.map(|host| host.to_string()),
        address: address.map(|address| address.to_string()),
        port,
        proto,
        reason: reason.to_string(),
        count: seen.count,
        first_ms: seen.first_ms,
        last_ms: seen.last_ms,
        at_least: !exact,
    }
}

fn reached_host(picked: Picked<Target, Traffic>) -> ReachedHost {
    let Picked {
        key: Target {
            host,
            address,
            port,
        },
        seen,
        exact,
    } = picked;
    ReachedHost {
        host: host.map(|host| host.to_string()),
        address: address.map(|address| address.to_string()),
        port,
        connections: seen.connections,
        failures: seen.failures,
        bytes_up: seen.bytes_up,
        bytes_down: seen.bytes_down,
        at_least: !exact,
    }
}

#[cfg(test)]
mod tests {
    use report::{
        Allowed, Body, Bye, ChannelState, Denied, PeerEnd, Printable, Reason, Received, Seed,
        Totals, Transport,
    };

    use super::*;
    use crate::channel::{Journal, Refusals as TurnedAway, Reports};

    fn attendance(bodies: Vec<Body<Reason>>, peer: PeerEnd) -> Attendance {
        let mut account = Account::new(Seed([0; 16]));
        for (seq, body) in (1..).zip(bodies) {
            account.apply(&Received { body, seq, t: 0 });
        }
        silent(Some(Reports {
            account,
            peer,
            fault: None,
            resumed: 0,
            transport: crate::channel::Transport::Exec,
        }))
    }

    fn silent(reports: Option<Reports>) -> Attendance {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("journal.jsonl"), 0)
            .unwrap()
            .0;
        Attendance {
            reports,
            refusals: TurnedAway::default(),
            journal,
        }
    }

    fn target(host: &str) -> Target {
        Target {
            host: Some(Printable::new(host)),
            address: None,
            port: Some(443),
        }
    }

    fn reports(denied: u64) -> Vec<Body<Reason>> {
        let reason = Reason::Known(policy::DenyReason::NotAllowed);
        let denied = Denied {
            target: target("evil.example"),
            proto: Transport::Tcp,
            reason,
            count: denied,
            first: 5,
            last: 9,
            uid: None,
        };
        let allowed = Allowed {
            target: target("good.example"),
            connections: 2,
            failures: 1,
            bytes_up: 3,
            bytes_down: 4,
            ech_offered: 1,
        };
        let mut totals = Totals::default();
        totals.deny(&denied);
        totals.allow(&allowed);
        vec![
            Body::Unknown,
            Body::Denied(denied),
            Body::Allowed(allowed),
            Body::Bye(Bye {
                last_seq: 4,
                totals,
            }),
        ]
    }

    #[test]
    fn offers_of_encrypted_client_hello_are_a_fact_a_bound_or_absent() {
        let complete = Network::of(&attendance(reports(1), PeerEnd::Exited));
        assert_eq!(complete.egress_ech_offered, Some(1));
        let mut cut = reports(1);
        cut.pop();
        let cut = Network::of(&attendance(cut, PeerEnd::Exited));
        assert_eq!(
            (cut.egress_ech_offered, cut.egress_ech_offered_at_least),
            (None, Some(1))
        );
        // Of a container that does not look there is no number, of one that found nothing a zero.
        for told in [None, Some(0)] {
            let totals = Totals {
                ech_offered: told,
                ..Totals::default()
            };
            let bye = Body::Bye(Bye {
                last_seq: 1,
                totals,
            });
            let network = Network::of(&attendance(vec![bye], PeerEnd::Exited));
            assert_eq!(network.egress_ech_offered, told);
        }
    }

    #[test]
    fn a_complete_account_states_facts() {
        let network = Network::of(&attendance(reports(3), PeerEnd::Exited));
        assert_eq!(
            network.egress_channel.unwrap().state,
            ChannelState::Complete
        );
        assert_eq!(
            (network.egress_denied, network.egress_denied_at_least),
            (Some(3), None)
        );
        assert_eq!(
            (network.egress_allowed, network.egress_allowed_at_least),
            (Some(2), None)
        );
        let denied = network.egress_denied_hosts.unwrap();
        let line = serde_json::to_string(&denied).unwrap();
        assert_eq!(
            line,
            r#"[{"host":"evil.example","port":443,"proto":"tcp","reason":"not_allowed","count":3,"first_ms":5,"last_ms":9}]"#
        );
        assert_eq!(
            network.egress_denied_by_reason.unwrap().get("not_allowed"),
            Some(&3)
        );
    }

    #[test]
    fn a_broken_account_states_lower_bounds_under_their_own_name() {
        let network = Network::of(&attendance(reports(3), PeerEnd::Alive));
        assert_eq!(
            (network.egress_denied, network.egress_denied_at_least),
            (None, Some(3))
        );
        assert_eq!(
            (network.egress_allowed, network.egress_allowed_at_least),
            (None, Some(2))
        );
        assert!(network.egress_channel.unwrap().reason.is_some());
    }

    #[test]
    fn nothing_refused_is_a_zero_and_nobody_looking_is_not() {
        let looked = Network::of(&attendance(
            vec![
                Body::Unknown,
                Body::Bye(Bye {
                    last_seq: 2,
                    totals: Totals::default(),
                }),
            ],
            PeerEnd::Exited,
        ));
        assert_eq!(looked.egress_denied, Some(0));
        let nobody = Network::of(&silent(None));
        assert_eq!(
            (nobody.egress_denied, nobody.egress_denied_at_least),
            (None, None)
        );
        assert_eq!(
            nobody.egress_channel.unwrap().state,
            ChannelState::NeverConnected
        );
    }

    #[test]
    fn without_an_allowlist_there_is_only_the_word_for_it() {
        let line = serde_json::to_value(Network::unwatched()).unwrap();
        assert_eq!(
            line,
            serde_json::json!({"egress_channel": {"state": "not_applicable", "gaps": []}})
        );
    }

    #[test]
    fn of_a_flood_a_line_shows_a_sample_and_says_so() {
        let reason = Reason::Known(policy::DenyReason::NotAllowed);
        let one = |n: u32| Denied {
            target: target(&format!("h{n}.example")),
            proto: Transport::Tcp,
            reason: reason.clone(),
            count: 1,
            first: 1,
            last: 1,
            uid: None,
        };
        let flood = (0..5000).map(|n| Body::Denied(one(n))).collect();
        let network = Network::of(&attendance(flood, PeerEnd::Exited));
        assert_eq!(network.egress_denied_at_least, Some(5000));
        assert_eq!(network.egress_denied_hosts.unwrap().len(), 32);
        assert!(network.egress_denied_hosts_distinct_estimated);
    }

    /// Of a run that was enforced so, without these.
    fn enforced(enforcement: Enforcement, degradations: &[&str]) -> Network {
        let word = Printable::new("x");
        let degradations = degradations.iter().map(|text| Printable::new(text));
        let enforcing = report::Enforcing {
            enforcement,
            backend: word.clone(),
            ruleset_digest: word,
            self_test: Vec::new(),
            ipv6: report::Ipv6::Routed,
            degradations: degradations.collect(),
        };
        let said = vec![Body::Enforcing(enforcing)];
        Network::of(&attendance(said, PeerEnd::Exited))
    }

    #[test]
    fn where_addresses_decide_nothing_is_said_of_what_was_let_through() {
        let allowed = |network: Network| {
            let is_told = network.egress_allowed.or(network.egress_allowed_at_least);
            (is_told.is_some(), network.egress_hosts.is_some())
        };
        assert_eq!(allowed(enforced(Enforcement::Name, &[])), (true, true));
        let by_address = enforced(Enforcement::Address, &[]);
        assert_eq!(by_address.egress_denied_at_least, Some(0));
        assert_eq!(allowed(by_address), (false, false));
    }

    #[test]
    fn what_was_done_without_is_a_field_only_where_there_is_something() {
        let enforcing = |degradations: &[&str]| enforced(Enforcement::Name, degradations);
        assert_eq!(enforcing(&[]).egress_degradations, None);
        assert_eq!(
            enforcing(&["no NFLOG"]).egress_degradations.unwrap(),
            ["no NFLOG"]
        );
        assert_eq!(enforcing(&[]).egress_enforcement, Some(Enforcement::Name));
    }
}
