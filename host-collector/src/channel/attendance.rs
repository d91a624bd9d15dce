//! What came of attending a run.

use report::{Account, Evidence, PeerEnd, Printable, Verdict, verdict};

use super::{greeting::Refusal, journal::Journal, session::Fault, way::Transport};

/// The outcome of [`super::Channel::attend`].
#[derive(Debug)]
pub struct Attendance {
    /// What the container reported, if one was admitted.
    pub reports: Option<Reports>,
    /// Peers that were turned away.
    pub refusals: Refusals,
    /// The journal of what was reported.
    pub journal: Journal,
}

/// An account and how it ended.
#[derive(Debug)]
pub struct Reports {
    /// What was reported.
    pub account: Account,
    /// What became of the sender.
    pub peer: PeerEnd,
    /// Why the collector hung up, if it did.
    pub fault: Option<Fault>,
    /// How often the sender came back to a collector that was started again.
    pub resumed: u64,
    /// The way that they took.
    pub transport: Transport,
}

impl Attendance {
    /// Whether the rules were in force and the guest was started: it is, if and only if the
    /// container said so.
    #[must_use]
    pub fn was_launched(&self) -> bool {
        self.reports
            .as_ref()
            .is_some_and(|reports| reports.account.enforcing().is_some())
    }

    /// How complete the account is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        verdict(match &self.reports {
            None => Evidence::Silence,
            Some(Reports { account, peer, .. }) => Evidence::Reports {
                account,
                peer: *peer,
            },
        })
    }

    /// One sentence on why the account is not complete.
    #[must_use]
    pub fn shortfall(&self) -> Option<String> {
        match &self.reports {
            None => {
                let turned_away = |refusal| format!("a peer was turned away: {refusal}");
                let not_in = |said| format!("the engine could not bring the channel: {said}");
                let Refusals { last, way_in, .. } = &self.refusals;
                let last = last.as_ref().map(turned_away);
                last.or_else(|| way_in.as_ref().map(not_in))
            }
            Some(Reports {
                fault: Some(fault), ..
            }) => Some(fault.to_string()),
            Some(_) => self.verdict().reason.map(|reason| reason.to_string()),
        }
    }
}

/// Peers that were turned away.
#[derive(Debug, Default)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// Why the last of them was.
    pub last: Option<Refusal>,
    /// Why the engine did not bring the channel the last time that it was asked to.
    pub way_in: Option<Printable>,
}

impl Refusals {
    /// Adds those of another entrance.
    pub(crate) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.last = other.last.or(self.last.take());
        self.way_in = other.way_in.or(self.way_in.take());
    }

    pub(crate) fn note(&mut self, refusal: Refusal) {
        self.count = self.count.saturating_add(1);
        self.last = Some(refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use report::{Body, ChannelState, Received, Seed};

    fn attendance(reports: Option<Reports>, last: Option<Refusal>) -> Attendance {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("j"), 0).unwrap().0;
        Attendance {
            reports,
            refusals: Refusals {
                count: 1,
                last,
                way_in: None,
            },
            journal,
        }
    }

    fn reports(fault: Option<Fault>) -> Reports {
        let mut account = Account::new(Seed([0; 16]));
        account.apply(&Received {
            body: Body::Unknown,
            seq: 1,
            t: 0,
        });
        Reports {
            account,
            peer: PeerEnd::Exited,
            fault,
            resumed: 0,
            transport: Transport::Socket,
        }
    }

    #[test]
    fn what_the_engine_said_is_the_reason_where_nobody_was_turned_away() {
        let shortfall = |last| {
            let mut attendance = attendance(None, last);
            attendance.refusals.way_in = Some(Printable::new("no such container"));
            attendance.shortfall().unwrap()
        };
        let said = "the engine could not bring the channel: no such container";
        assert_eq!(shortfall(None), said);
        assert!(shortfall(Some(Refusal::Nonce)).contains("nonce"));
    }

    #[test]
    fn where_nobody_was_admitted_the_last_one_turned_away_is_the_reason() {
        let silent = attendance(None, Some(Refusal::Nonce));
        assert_eq!(silent.verdict().state, ChannelState::NeverConnected);
        assert!(
            silent
                .shortfall()
                .unwrap()
                .contains("did not know the nonce")
        );
        assert_eq!(attendance(None, None).shortfall(), None);
    }

    #[test]
    fn a_fault_of_the_channel_is_a_better_reason_than_its_consequence() {
        let broken = attendance(
            Some(reports(Some(std::io::Error::other("snapped").into()))),
            None,
        );
        assert!(broken.shortfall().unwrap().contains("snapped"));
        assert!(
            attendance(Some(reports(None)), None)
                .shortfall()
                .unwrap()
                .contains("no bye")
        );
    }

    #[test]
    fn a_container_that_only_said_hello_has_launched_nothing() {
        assert!(!attendance(Some(reports(None)), None).was_launched());
        assert!(!attendance(None, None).was_launched());
    }
}
