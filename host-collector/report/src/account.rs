//! Everything that one run reported, added up in bounded memory.

use policy::DenyReason;

use crate::{
    Answers, Body, Bye, Denied, DistinctCount, Enforcing, Exit, Gaps, Hello, Order, Picked, Placed,
    Reason, Received, Refusals, Sample, Seed, Sequence, Target, Told, Totals, Traffic, Transport,
    seed::Kind, tally::Tally,
};

/// What is known of a run from its reports.
///
/// The same messages in the same order give the same account, so it can be built again from a
/// journal. Nothing that a container sends makes it grow beyond a fixed size.
#[derive(Debug)]
pub struct Account {
    sequence: Sequence,
    hello: Option<Hello>,
    enforcing: Option<Enforcing>,
    exit: Option<Exit>,
    bye: Option<Closing>,
    tally: Tally,
    refused: Sample<RefusedKey, Refusals>,
    reached: Sample<Target, Traffic>,
    gaps: Gaps,
    answers: Answers,
    unknown: u64,
    unreadable: u64,
}

/// What makes two refused attempts the same for the record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusedKey {
    /// What was asked for.
    pub target: Target,
    /// What carried it.
    pub proto: Transport,
    /// Why it was refused.
    pub reason: Reason,
}

impl From<&Denied<Reason>> for RefusedKey {
    fn from(denied: &Denied<Reason>) -> Self {
        Self {
            target: denied.target.clone(),
            proto: denied.proto,
            reason: denied.reason.clone(),
        }
    }
}

impl Placed for RefusedKey {
    fn write(&self, order: &mut Order) {
        let kind = Kind {
            target: &self.target,
            proto: self.proto,
            reason: self.reason.as_str(),
        };
        kind.write(order);
    }
}

/// How an account was closed by its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// Whether its totals are the sum of what arrived.
    pub adds_up: bool,
    /// Messages that came after what claimed to be the last.
    pub after: u64,
}

impl Account {
    /// An account of nothing yet.
    #[must_use]
    pub fn new(seed: Seed) -> Self {
        Self {
            sequence: Sequence::default(),
            hello: None,
            enforcing: None,
            exit: None,
            bye: None,
            tally: Tally::default(),
            refused: Sample::new(seed),
            reached: Sample::new(seed),
            gaps: Gaps::default(),
            answers: Answers::default(),
            unknown: 0,
            unreadable: 0,
        }
    }

    /// Takes one message into account; one that was taken before is left out.
    pub fn apply(&mut self, message: &Received) {
        if !self.sequence.accept(message.seq) {
            return;
        }
        if let Some(closing) = &mut self.bye {
            closing.after = closing.after.saturating_add(1);
        }
        match &message.body {
            Body::Hello(hello) => self.hello = Some(without_secret(hello)),
            Body::Enforcing(enforcing) => self.enforcing = Some(enforcing.clone()),
            Body::Denied(denied) => {
                self.tally.deny(denied);
                self.refused.add(&denied.into(), &denied.into());
            }
            Body::Allowed(allowed) => {
                self.tally.allow(allowed);
                self.reached.add(&allowed.target, &allowed.into());
            }
            Body::Gap(gap) => self.gaps.add(gap),
            Body::Policy(report) => self.answers.add(report, message.t),
            Body::Totals(totals) => self.tally.totals(totals),
            Body::Exit(exit) => self.exit = Some(exit.clone()),
            Body::Bye(bye) => self.close(bye, message.seq),
            Body::Unknown => self.unknown = self.unknown.saturating_add(1),
        }
    }

    /// Counts a line that was no message.
    pub fn note_unreadable(&mut self) {
        self.unreadable = self.unreadable.saturating_add(1);
    }

    fn close(&mut self, bye: &Bye<Reason>, seq: u64) {
        self.tally.totals(&bye.totals);
        let adds_up = bye.last_seq == seq && self.tally.adds_up_to(&bye.totals);
        let after = self.bye.map_or(0, |first| first.after);
        self.bye = Some(Closing { adds_up, after });
    }

    /// The numbers of the messages.
    #[must_use]
    pub const fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Who reported, without the secret of the hello.
    #[must_use]
    pub const fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// What was in force. Without it the guest was not launched.
    #[must_use]
    pub const fn enforcing(&self) -> Option<&Enforcing> {
        self.enforcing.as_ref()
    }

    /// How the guest ended.
    #[must_use]
    pub const fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// How the account was closed, if it was.
    #[must_use]
    pub const fn closing(&self) -> Option<Closing> {
        self.bye
    }

    /// The best number for everything that is counted.
    #[must_use]
    pub fn totals(&self) -> Totals<Reason> {
        self.tally.best()
    }

    /// What was refused: up to `limit` of it, as [`Sample::pick`] has it.
    #[must_use]
    pub fn refused(&self, limit: usize) -> Vec<Picked<RefusedKey, Refusals>> {
        self.refused.pick_told(limit, |key| self.told(key))
    }

    /// How many different things were refused.
    #[must_use]
    pub fn refused_distinct(&self) -> DistinctCount {
        self.refused.distinct()
    }

    /// What of the refusals of this kind was told by its name.
    fn told(&self, key: &RefusedKey) -> Told {
        if !self.tally.has_unnamed(&key.reason) {
            return Told::Always;
        }
        // Of packets that nobody read it is not known which they were.
        let may_be_unread = matches!(
            key.reason,
            Reason::Known(DenyReason::Packet | DenyReason::Quic | DenyReason::Ingress)
        );
        let named = self.hello.as_ref().and_then(|hello| hello.named);
        let names_the_first = named.is_some_and(|named| named >= NAMED_AT_LEAST);
        if !names_the_first || may_be_unread && self.tally.best().unsampled > 0 {
            return Told::Sometimes;
        }
        Told::IfFirst
    }

    /// What was reached, or could have been.
    #[must_use]
    pub const fn reached(&self) -> &Sample<Target, Traffic> {
        &self.reached
    }

    /// The holes that the container told of.
    #[must_use]
    pub const fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// What the container said of lists that it was given.
    #[must_use]
    pub const fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Messages of types that this version does not know.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Lines that were no messages.
    #[must_use]
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

/// As many as are counted apart here.
const NAMED_AT_LEAST: u32 = 1024;

fn without_secret(hello: &Hello) -> Hello {
    Hello {
        nonce: String::new(),
        ..hello.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Gap, GapKind, PolicyOutcome, PolicyReport, Printable};

    fn denied(host: u32, count: u64) -> Body<Reason> {
        let host = Some(Printable::new(&format!("h{host}.example")));
        let target = Target {
            host,
            address: None,
            port: Some(443),
        };
        Body::Denied(Denied {
            target,
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed.into(),
            count,
            first: 1,
            last: 2,
            uid: None,
        })
    }

    fn bye(seq: u64, count: u64) -> Body<Reason> {
        let mut totals = Totals::default();
        if let Body::Denied(denied) = denied(0, count) {
            totals.deny(&denied);
        }
        Body::Bye(Bye {
            last_seq: seq,
            totals,
        })
    }

    fn of(bodies: impl IntoIterator<Item = Body<Reason>>) -> Account {
        let mut account = Account::new(Seed([0; 16]));
        for (seq, body) in (1..).zip(bodies) {
            account.apply(&Received { body, seq, t: seq });
        }
        account
    }

    fn hello() -> Body<Reason> {
        Body::Hello(Hello {
            protocol: 1,
            nonce: "s3cret".into(),
            version: Printable::new("1"),
            policy_digest: None,
            guest_uid: 1000,
            named: Some(NAMED_AT_LEAST),
        })
    }

    #[test]
    fn what_was_refused_adds_up_to_the_bye() {
        let account = of([hello(), denied(1, 2), denied(2, 1), denied(1, 4), bye(5, 7)]);
        assert_eq!(
            account.closing(),
            Some(Closing {
                adds_up: true,
                after: 0
            })
        );
        assert_eq!(account.totals().denied.values().sum::<u64>(), 7);
        assert_eq!(account.refused(32).first().unwrap().seen.count, 6);
    }

    #[test]
    fn a_bye_that_does_not_add_up_or_is_misnumbered_is_found() {
        for bodies in [
            vec![hello(), denied(1, 2), bye(3, 3)],
            vec![hello(), denied(1, 2), bye(4, 2)],
        ] {
            assert!(!of(bodies.clone()).closing().unwrap().adds_up, "{bodies:?}");
        }
    }

    #[test]
    fn what_comes_after_the_bye_is_counted_and_found() {
        let account = of([hello(), bye(2, 0), denied(1, 2), bye(4, 2)]);
        assert_eq!(
            account.closing(),
            Some(Closing {
                adds_up: true,
                after: 2
            })
        );
        assert_eq!(account.totals().denied.values().sum::<u64>(), 2);
    }

    #[test]
    fn a_message_that_comes_again_is_not_counted_again() {
        let mut account = of([hello(), denied(1, 2)]);
        account.apply(&Received {
            body: denied(1, 2),
            seq: 2,
            t: 2,
        });
        assert_eq!(account.totals().denied.values().sum::<u64>(), 2);
        assert_eq!(account.sequence().repeated(), 1);
    }

    #[test]
    fn the_secret_of_the_hello_is_not_kept() {
        assert_eq!(of([hello()]).hello().unwrap().nonce, "");
        assert!(!format!("{:?}", of([hello()])).contains("s3cret"));
    }

    #[test]
    fn gaps_and_unknown_types_are_kept_count_of() {
        let gap = Body::Gap(Gap {
            kind: GapKind::Outage,
            from: 1,
            to: Some(2),
            detail: Printable::new("x"),
        });
        let account = of([hello(), Body::Unknown, gap]);
        assert_eq!((account.unknown(), account.gaps().count()), (1, 1));
    }

    #[test]
    fn what_is_said_of_a_list_is_kept_with_its_time() {
        let report = PolicyReport {
            generation: 2,
            digest: Printable::new("ab"),
            outcome: PolicyOutcome::InForce,
            detail: None,
        };
        let account = of([hello(), Body::Policy(report)]);
        assert_eq!(account.answers().on(2, "ab").unwrap().at, 2);
    }

    #[test]
    fn a_flood_of_invented_hosts_is_counted_whole_and_kept_small() {
        let account = of((0..5000).map(|host| denied(host, 1)));
        assert_eq!(account.totals().denied.values().sum::<u64>(), 5000);
        assert_eq!(account.refused(32).len(), 32);
        assert!(account.refused_distinct().estimated);
    }

    /// What a container says that is asked for these hosts, one after the other.
    fn flooded(
        ledger: &mut crate::Ledger,
        hosts: impl IntoIterator<Item = u32>,
    ) -> Vec<Body<Reason>> {
        let mut said = Vec::new();
        for host in hosts {
            ledger.deny(asked(host));
            if ledger.denied() > 500 {
                said.extend(std::iter::from_fn(|| ledger.pop_denied()).map(told));
            }
        }
        said.extend(std::iter::from_fn(|| ledger.pop_denied()).map(told));
        said
    }

    fn asked(host: u32) -> Denied {
        let host = Some(Printable::new(&format!("h{host}.example")));
        Denied {
            target: Target {
                host,
                address: None,
                port: Some(443),
            },
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 1,
            first: 1,
            last: 2,
            uid: None,
        }
    }

    fn told(denied: Denied) -> Body<Reason> {
        Body::Denied(Denied {
            target: denied.target,
            proto: denied.proto,
            reason: denied.reason.into(),
            count: denied.count,
            first: denied.first,
            last: denied.last,
            uid: None,
        })
    }

    fn ledger(seed: u8) -> crate::Ledger {
        crate::Ledger::new(Seed([seed; 16]), 1)
    }

    /// The account of the host that has this secret.
    fn account_of(seed: u8, said: Vec<Body<Reason>>) -> Account {
        let mut account = Account::new(Seed([seed; 16]));
        for (seq, body) in (1..).zip(std::iter::once(hello()).chain(said)) {
            account.apply(&Received { body, seq, t: seq });
        }
        account
    }

    #[test]
    fn however_many_are_invented_their_number_is_exact_or_near() {
        for (truth, estimated) in [
            (1_000_u64, false),
            (1_024, false),
            (1_025, true),
            (1_089, true),
            (10_000, true),
            (100_000, true),
        ] {
            let hosts = u32::try_from(truth).unwrap();
            let account = account_of(1, flooded(&mut ledger(1), 0..hosts));
            let DistinctCount {
                count,
                estimated: is_estimated,
            } = account.refused_distinct();
            // Three times the error of 1/sqrt(1024), and one for what has no name.
            let near = if estimated { truth / 10 + 1 } else { 0 };
            assert!(count.abs_diff(truth) <= near, "{count} of {truth}");
            assert_eq!(is_estimated, estimated, "{truth}");
            assert_eq!(account.totals().denied.values().sum::<u64>(), truth);
        }
    }

    #[test]
    fn a_proxy_that_was_started_again_and_again_spoils_no_estimate() {
        let said = (0..5).flat_map(|life| {
            // Half of what each sees is new.
            flooded(&mut ledger(2), life * 3_000..(life + 2) * 3_000)
        });
        let mut init = ledger(2);
        let mut through = Vec::new();
        for body in said {
            let Body::Denied(denied) = body else { continue };
            let Reason::Known(reason) = denied.reason else {
                continue;
            };
            init.deny(Denied {
                target: denied.target,
                proto: denied.proto,
                reason,
                count: denied.count,
                first: denied.first,
                last: denied.last,
                uid: None,
            });
            if init.denied() > 500 {
                through.extend(std::iter::from_fn(|| init.pop_denied()).map(told));
            }
        }
        through.extend(std::iter::from_fn(|| init.pop_denied()).map(told));
        let account = account_of(2, through);
        let count = account.refused_distinct().count;
        assert!(count.abs_diff(18_000) < 1_800, "{count}");
        assert_eq!(account.totals().denied.values().sum::<u64>(), 30_000);
        // Those of the middle were asked for in two lives, and are told so.
        for picked in account.refused(32).into_iter().filter(|p| p.exact) {
            let host = picked.key.target.host.clone().unwrap().to_string();
            let host: u32 = host
                .trim_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .unwrap();
            let twice = (3_000..15_000).contains(&host);
            assert_eq!(picked.seen.count, 1 + u64::from(twice), "{host}");
        }
    }

    #[test]
    fn late_names_are_shown_as_often_as_early_ones_though_most_were_never_told() {
        let mut late = 0;
        let mut shown = 0;
        for seed in 0..40 {
            let account = account_of(seed, flooded(&mut ledger(seed), 0..2_000));
            // What has no name is the most frequent, and any 15 of the rest come next.
            for picked in account.refused(32).into_iter().skip(16) {
                let host = picked.key.target.host.clone().unwrap().to_string();
                let host: u32 = host
                    .trim_matches(|c: char| !c.is_ascii_digit())
                    .parse()
                    .unwrap();
                shown += 1;
                late += u32::from(host >= 1_000);
                assert!(picked.exact && picked.seen.count == 1, "{picked:?}");
            }
        }
        // 640 of them, half of which are late: five times the error to either side.
        assert_eq!(shown, 640);
        assert!((257..=383).contains(&late), "{late}");
    }

    #[test]
    fn what_is_repeated_after_a_flood_is_among_the_most_frequent() {
        let hosts = (0..100_000).chain([7_777_777; 50]);
        let account = account_of(3, flooded(&mut ledger(3), hosts));
        let shown = account.refused(32);
        let host = Some(Printable::new("h7777777.example"));
        let place = shown.iter().position(|p| p.key.target.host == host);
        assert_eq!(place, Some(1), "{shown:#?}");
        let real = &shown[1];
        assert!((49..=50).contains(&real.seen.count), "{real:?}");
        assert_eq!(real.exact, real.seen.count == 50);
    }

    #[test]
    fn of_a_container_that_names_whom_it_happens_to_nothing_is_exact() {
        let mut said = flooded(&mut ledger(4), 0..5_000);
        let exact = |account: &Account| account.refused(32).iter().filter(|p| p.exact).count();
        assert!(exact(&account_of(4, said.clone())) >= 16);
        let Body::Hello(mut earlier) = hello() else {
            panic!("no hello")
        };
        earlier.named = None;
        said.push(Body::Hello(earlier));
        assert_eq!(exact(&account_of(4, said)), 0);
    }

    #[test]
    fn of_packets_that_nobody_read_no_target_has_an_exact_number() {
        let mut packet = asked(1);
        packet.reason = DenyReason::Packet;
        let mut unread = packet.clone();
        unread.unname();
        let totals = Totals {
            unsampled: 1,
            ..Totals::default()
        };
        let said = vec![
            told(packet),
            told(asked(2)),
            told(unread),
            Body::Totals(totals),
        ];
        for picked in account_of(5, said).refused(32) {
            let is_packet = picked.key.reason == DenyReason::Packet.into();
            assert_eq!(picked.exact, !is_packet, "{picked:?}");
        }
    }

    proptest! {
        #[test]
        fn losing_any_messages_never_raises_a_number(kept in proptest::collection::vec(any::<bool>(), 1..60)) {
            let mut account = Account::new(Seed([1; 16]));
            let sent = kept.len() as u64;
            for (seq, kept) in (1..).zip(&kept) {
                if *kept {
                    account.apply(&Received { body: denied(7, 1), seq, t: 0 });
                }
            }
            let arrived = kept.iter().filter(|k| **k).count() as u64;
            prop_assert_eq!(account.totals().denied.values().sum::<u64>(), arrived);
            account.apply(&Received { body: bye(sent + 1, sent), seq: sent + 1, t: 0 });
            prop_assert_eq!(account.totals().denied.values().sum::<u64>(), sent);
            prop_assert_eq!(account.sequence().missing(), sent - arrived);
            prop_assert_eq!(account.closing().unwrap().adds_up, sent == arrived);
        }
    }
}
