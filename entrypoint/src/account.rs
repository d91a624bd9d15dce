//! Turns what happened into what is reported: the proxy's word, the rules' samples and counters.

use std::collections::BTreeMap;

use policy::DenyReason;
use report::{Body, Denied, Gap, GapKind, Printable, Target, Transport, link::FromProxy};

use crate::{firewall::Counters, nflog::RefusedPacket, outbox::Outbox, self_test::UNLISTED_NAME};

/// The run's account as PID 1 keeps it.
#[derive(Debug)]
pub(crate) struct Account {
    /// Where everything ends up.
    pub(crate) outbox: Outbox,
    /// Refused packets that a sample told of, by the rule that refused them.
    sampled: BTreeMap<DenyReason, u64>,
    /// When the proxy went, and why.
    outage: Option<(u64, String)>,
}

impl Account {
    /// An account that reports through `outbox`.
    pub(crate) const fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            sampled: BTreeMap::new(),
            outage: None,
        }
    }

    /// Takes in what the proxy says.
    pub(crate) fn hear(&mut self, message: FromProxy) {
        match message {
            FromProxy::Denied(denied) => self.outbox.deny(denied),
            FromProxy::Allowed(allowed) => self.outbox.allow(allowed),
            FromProxy::Ready { .. }
            | FromProxy::Failed { .. }
            | FromProxy::Open(_)
            | FromProxy::Policy { .. }
            | FromProxy::Drained => {}
        }
    }

    /// Takes in refused packets.
    pub(crate) fn sample(&mut self, packets: Vec<RefusedPacket>) {
        let now = self.outbox.clock().elapsed_ms();
        for RefusedPacket {
            target,
            proto,
            reason,
            uid,
        } in packets
        {
            *self.sampled.entry(reason).or_default() += 1;
            self.outbox.deny(Denied {
                target,
                proto,
                reason,
                count: 1,
                first: now,
                last: now,
                uid,
            });
        }
    }

    /// The proxy is gone: nothing leaves, and what it had not told yet is not counted.
    pub(crate) fn begin_outage(&mut self, why: &str) {
        let now = self.now();
        let known = self.outage.take();
        let from = known.as_ref().map_or(now, |(from, _)| *from);
        // One that cannot be started is tried again and again, and fails for the same reason.
        if known.is_none_or(|(_, told)| told != why) {
            self.begin_gap(GapKind::Outage, from, &format!("{why}; {UNTOLD}"));
        }
        self.outage = Some((from, why.to_owned()));
    }

    /// It is back.
    pub(crate) fn end_outage(&mut self) {
        if let Some((from, why)) = self.outage.take() {
            let detail = format!("{why}, and started again; {UNTOLD}");
            self.end_gap(GapKind::Outage, from, &detail);
        }
    }

    /// Something is not enforced, or not counted, since `from` and until further notice.
    pub(crate) fn begin_gap(&mut self, kind: GapKind, from: u64, detail: &str) {
        self.push_gap(kind, from, None, detail);
    }

    /// What began at `from` is over.
    pub(crate) fn end_gap(&mut self, kind: GapKind, from: u64, detail: &str) {
        let to = Some(self.now());
        self.push_gap(kind, from, to, detail);
    }

    fn push_gap(&mut self, kind: GapKind, from: u64, to: Option<u64>, detail: &str) {
        let detail = Printable::new(detail);
        self.outbox.push(Body::Gap(Gap {
            kind,
            from,
            to,
            detail,
        }));
    }

    /// Milliseconds since the run began.
    pub(crate) fn now(&self) -> u64 {
        self.outbox.clock().elapsed_ms()
    }

    /// What samples have told of, as the counters would have it.
    pub(crate) fn sampled(&self) -> Counters {
        let of = |reason| self.sampled.get(&reason).copied().unwrap_or_default();
        Counters {
            packets: of(DenyReason::Packet),
            quic: of(DenyReason::Quic),
            ingress: of(DenyReason::Ingress),
        }
    }

    /// Whether a sample has told of every packet that was counted.
    pub(crate) fn is_sampled(&self, counters: Counters) -> bool {
        self.unsampled(counters)
            .iter()
            .all(|&(_, count)| count == 0)
    }

    /// Whether samples have told of more packets than were counted.
    pub(crate) fn exceeds(&self, counters: Counters) -> bool {
        let sampled = self.sampled();
        sampled.packets > counters.packets
            || sampled.quic > counters.quic
            || sampled.ingress > counters.ingress
    }

    /// Makes the account exact: the counters are, and what they have beyond the samples is reported
    /// as refused packets of unknown target.
    pub(crate) fn settle(&mut self, counters: Counters) {
        let now = self.outbox.clock().elapsed_ms();
        for (reason, count) in self.unsampled(counters) {
            if count > 0 {
                let target = Target::default();
                let proto = Transport::Other;
                self.outbox.deny(Denied {
                    target,
                    proto,
                    reason,
                    count,
                    first: 0,
                    last: now,
                    uid: None,
                });
                self.outbox.leave_unsampled(count);
            }
        }
    }

    fn unsampled(&self, counters: Counters) -> [(DenyReason, u64); 3] {
        [
            (DenyReason::Packet, counters.packets),
            (DenyReason::Quic, counters.quic),
            (DenyReason::Ingress, counters.ingress),
        ]
        .map(|(reason, counted)| {
            let sampled = self.sampled.get(&reason).copied().unwrap_or_default();
            (reason, counted.saturating_sub(sampled))
        })
    }

    /// The final counters could not be read: refused packets are known by their samples alone.
    pub(crate) fn leave_unsettled(&mut self, detail: &str) {
        self.end_gap(GapKind::Overflow, 0, detail);
    }
}

/// Connections wait at listeners that PID 1 keeps, and nothing else leaves.
const UNTOLD: &str = "what it did last is not counted, what is tried meanwhile waits";

/// How many attempts of the self-test the proxy says here that it refused.
pub(crate) fn of_self_test(message: &FromProxy) -> u64 {
    match message {
        FromProxy::Denied(denied)
            if denied
                .target
                .host
                .as_ref()
                .is_some_and(|host| host.as_str() == UNLISTED_NAME) =>
        {
            denied.count
        }
        FromProxy::Denied(_)
        | FromProxy::Allowed(_)
        | FromProxy::Ready { .. }
        | FromProxy::Failed { .. }
        | FromProxy::Open(_)
        | FromProxy::Policy { .. }
        | FromProxy::Drained => 0,
    }
}

#[cfg(test)]
impl Account {
    /// The gaps of which nobody has been told yet.
    pub(crate) fn gaps(&mut self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        while let Some(bytes) = self.outbox.next_bytes() {
            let message: report::Message = serde_json::from_slice(bytes).unwrap();
            let count = bytes.len();
            self.outbox.advance(count);
            if let Body::Gap(gap) = message.body {
                gaps.push(gap);
            }
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use report::RunClock;

    use super::*;

    fn account() -> Account {
        Account::new(Outbox::new(RunClock::start(), report::Seed([0; 16])))
    }

    fn packet(reason: DenyReason) -> RefusedPacket {
        RefusedPacket {
            target: Target::default(),
            proto: Transport::Tcp,
            reason,
            uid: None,
        }
    }

    #[test]
    fn what_the_counters_have_beyond_the_samples_is_reported_as_unsampled() {
        let mut account = account();
        account.sample(vec![packet(DenyReason::Packet), packet(DenyReason::Quic)]);
        account.settle(Counters {
            packets: 10,
            quic: 1,
            ingress: 0,
        });
        let totals = account.outbox.totals();
        assert_eq!(totals.denied[&DenyReason::Packet], 10);
        assert_eq!(totals.denied[&DenyReason::Quic], 1);
        assert!(!totals.denied.contains_key(&DenyReason::Ingress));
        assert_eq!(totals.unsampled, 9);
    }

    #[test]
    fn counters_behind_the_samples_take_nothing_back() {
        let mut account = account();
        account.sample(vec![packet(DenyReason::Packet); 3]);
        assert!(account.is_sampled(Counters::default()));
        account.settle(Counters::default());
        assert_eq!(account.outbox.totals().denied[&DenyReason::Packet], 3);
        assert_eq!(account.outbox.totals().unsampled, 0);
    }

    #[test]
    fn an_outage_is_reported_when_it_begins_and_when_it_ends() {
        let mut account = account();
        account.begin_outage("gone");
        account.begin_outage("gone again");
        account.begin_outage("gone again");
        account.end_outage();
        account.end_outage();
        let gaps = account.gaps();
        assert_eq!(gaps.len(), 3);
        assert!(gaps.iter().all(|gap| gap.from == gaps[0].from), "{gaps:?}");
        let ends = gaps.iter().map(|gap| gap.to.is_some());
        assert!(ends.eq([false, false, true]), "{gaps:?}");
        let last = gaps[2].detail.as_str();
        assert!(last.starts_with("gone again, and started again"), "{last}");
    }

    #[test]
    fn what_began_and_what_ended_is_the_same_gap() {
        let mut account = account();
        account.begin_gap(GapKind::Tamper, 3, "a");
        account.end_gap(GapKind::Tamper, 3, "b");
        let gaps = account.gaps();
        assert_eq!([gaps[0].from, gaps[1].from], [3, 3]);
        assert_eq!([gaps[0].kind, gaps[1].kind], [GapKind::Tamper; 2]);
    }

    #[test]
    fn samples_beyond_a_counter_are_seen_whichever_counter_it_is() {
        for reason in [DenyReason::Packet, DenyReason::Quic, DenyReason::Ingress] {
            let mut account = account();
            account.sample(vec![packet(reason)]);
            assert!(account.exceeds(Counters::default()), "{reason}");
            assert!(!account.exceeds(account.sampled()), "{reason}");
        }
    }

    #[test]
    fn samples_are_told_by_the_counter_that_has_them() {
        let mut account = account();
        account.sample(vec![packet(DenyReason::Packet); 3]);
        account.sample(vec![packet(DenyReason::Ingress)]);
        let expected = Counters {
            packets: 3,
            quic: 0,
            ingress: 1,
        };
        assert_eq!(account.sampled(), expected);
    }

    fn refused(host: &str) -> FromProxy {
        FromProxy::Denied(Denied {
            target: Target {
                host: Some(Printable::new(host)),
                ..Target::default()
            },
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 2,
            first: 0,
            last: 0,
            uid: None,
        })
    }

    #[test]
    fn the_proxys_word_is_added_up() {
        let mut account = account();
        account.hear(refused("a.example"));
        account.hear(refused("b.example"));
        account.hear(FromProxy::Drained);
        assert_eq!(account.outbox.totals().denied[&DenyReason::NotAllowed], 4);
    }

    #[test]
    fn only_the_refusal_of_the_reserved_name_is_the_self_test() {
        assert_eq!(of_self_test(&refused(UNLISTED_NAME)), 2);
        assert_eq!(of_self_test(&refused("example.com")), 0);
        assert_eq!(of_self_test(&FromProxy::Drained), 0);
    }

    #[test]
    fn each_rule_has_its_own_counter() {
        let mut account = account();
        account.settle(Counters {
            packets: 1,
            quic: 2,
            ingress: 3,
        });
        let denied = &account.outbox.totals().denied;
        let counts =
            [DenyReason::Packet, DenyReason::Quic, DenyReason::Ingress].map(|r| denied[&r]);
        assert_eq!(counts, [1, 2, 3]);
    }

    #[test]
    fn counters_that_cannot_be_read_are_a_gap_over_the_whole_run() {
        let mut account = account();
        account.leave_unsettled("nft is gone");
        let bytes = account.outbox.next_bytes().unwrap();
        let message: report::Message = serde_json::from_slice(bytes).unwrap();
        let Body::Gap(gap) = message.body else {
            panic!("{message:?}")
        };
        assert_eq!((gap.kind, gap.from), (GapKind::Overflow, 0));
        assert!(gap.to.is_some());
    }
}
