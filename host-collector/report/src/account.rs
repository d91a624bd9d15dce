//! Everything that one run reported, added up in bounded memory.

use crate::{
    Answers, Body, Bye, Denied, Enforcing, Exit, Gaps, Hello, Reason, Received, Refusals, Sample,
    Seed, Sequence, Target, Totals, Traffic, Transport, tally::Tally,
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

    /// What was refused.
    #[must_use]
    pub const fn refused(&self) -> &Sample<RefusedKey, Refusals> {
        &self.refused
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

fn without_secret(hello: &Hello) -> Hello {
    Hello {
        nonce: String::new(),
        ..hello.clone()
    }
}

#[cfg(test)]
mod tests {
    use policy::DenyReason;
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
        assert_eq!(account.refused().pick(32).first().unwrap().seen.count, 6);
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
        assert_eq!(account.refused().pick(32).len(), 32);
        assert!(account.refused().distinct().estimated);
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
