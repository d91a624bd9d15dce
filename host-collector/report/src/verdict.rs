//! How much of what happened the record can vouch for.

use serde::{Deserialize, Serialize};

use crate::Account;

/// The state of a run's account: the word in the session line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelState {
    /// Everything arrived and adds up, and the sender is gone.
    Complete,
    /// The numbers are final, but an interval was unenforced or uncounted, or a detail is missing.
    Gap,
    /// The account broke off: its numbers are lower bounds.
    Interrupted,
    /// An allowlist was in force and nobody reported.
    NeverConnected,
    /// There was no allowlist.
    NotApplicable,
}

impl ChannelState {
    /// Whether the numbers are what happened, and not only a lower bound of it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Gap)
    }
}

/// What is known of the process that reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEnd {
    /// It has exited.
    Exited,
    /// It closed the channel, or was given up, and was seen alive after that.
    Alive,
}

/// What there is to judge.
#[derive(Debug, Clone, Copy)]
pub enum Evidence<'a> {
    /// The run had no allowlist.
    NoAllowlist,
    /// No hello was accepted.
    Silence,
    /// An account, and what became of its sender.
    Reports {
        /// What was reported.
        account: &'a Account,
        /// What became of PID 1.
        peer: PeerEnd,
    },
}

/// A state, and why it is not a better one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The word.
    pub state: ChannelState,
    /// The first thing that stands against `complete`.
    pub reason: Option<Shortfall>,
}

/// What stands against calling an account complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shortfall {
    /// The sender ended without closing its account.
    #[error("no bye: PID 1 ended, or lost the channel, before its last message")]
    NoBye,
    /// The sender said goodbye and stayed.
    #[error("PID 1 was alive after its bye")]
    PeerAlive,
    /// Numbers are missing from the sequence.
    #[error("{0} messages are missing from the sequence")]
    Missing(u64),
    /// Lines arrived that were no messages.
    #[error("{0} lines were not messages")]
    Unreadable(u64),
    /// The final totals and the sum of the increments differ.
    #[error("the final totals are not the sum of what was reported")]
    DoesNotAddUp,
    /// Messages came after the last one.
    #[error("{0} messages came after the bye")]
    AfterBye(u64),
    /// The container told of holes itself.
    #[error("{0} interval{plural} unenforced or uncounted", plural = if *.0 == 1 { " was" } else { "s were" })]
    Holes(u64),
}

/// Judges an account. The first thing that stands against it is the reason.
#[must_use]
pub fn verdict(evidence: Evidence<'_>) -> Verdict {
    match evidence {
        Evidence::NoAllowlist => Verdict {
            state: ChannelState::NotApplicable,
            reason: None,
        },
        Evidence::Silence => Verdict {
            state: ChannelState::NeverConnected,
            reason: None,
        },
        Evidence::Reports { account, peer } => judge(account, peer),
    }
}

fn judge(account: &Account, peer: PeerEnd) -> Verdict {
    let Some(closing) = account.closing() else {
        return Verdict {
            state: ChannelState::Interrupted,
            reason: Some(Shortfall::NoBye),
        };
    };
    if peer == PeerEnd::Alive {
        return Verdict {
            state: ChannelState::Interrupted,
            reason: Some(Shortfall::PeerAlive),
        };
    }
    let missing = account.sequence().missing();
    let reason = if missing > 0 {
        Some(Shortfall::Missing(missing))
    } else if account.unreadable() > 0 {
        Some(Shortfall::Unreadable(account.unreadable()))
    } else if closing.after > 0 {
        Some(Shortfall::AfterBye(closing.after))
    } else if !closing.adds_up {
        Some(Shortfall::DoesNotAddUp)
    } else if account.gaps().count() > 0 {
        Some(Shortfall::Holes(account.gaps().count()))
    } else {
        None
    };
    let state = if reason.is_none() {
        ChannelState::Complete
    } else {
        ChannelState::Gap
    };
    Verdict { state, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Body, Bye, Gap, GapKind, Printable, Received, Seed, Totals};

    fn bye(seq: u64) -> Received {
        Received {
            body: Body::Bye(Bye {
                last_seq: seq,
                totals: Totals::default(),
            }),
            seq,
            t: 0,
        }
    }

    fn unknown(seq: u64) -> Received {
        Received {
            body: Body::Unknown,
            seq,
            t: 0,
        }
    }

    fn of(messages: &[Received]) -> Account {
        let mut account = Account::new(Seed([0; 16]));
        for message in messages {
            account.apply(message);
        }
        account
    }

    fn judged(account: &Account, peer: PeerEnd) -> (ChannelState, Option<Shortfall>) {
        let Verdict { state, reason } = verdict(Evidence::Reports { account, peer });
        (state, reason)
    }

    #[test]
    fn a_whole_account_of_a_process_that_is_gone_is_complete() {
        let account = of(&[unknown(1), bye(2)]);
        assert_eq!(
            judged(&account, PeerEnd::Exited),
            (ChannelState::Complete, None)
        );
    }

    #[test]
    fn without_a_bye_or_with_its_sender_alive_numbers_are_lower_bounds() {
        for (account, peer, reason) in [
            (of(&[unknown(1)]), PeerEnd::Exited, Shortfall::NoBye),
            (of(&[]), PeerEnd::Exited, Shortfall::NoBye),
            (
                of(&[unknown(1), bye(2)]),
                PeerEnd::Alive,
                Shortfall::PeerAlive,
            ),
        ] {
            let (state, found) = judged(&account, peer);
            assert_eq!((state, found), (ChannelState::Interrupted, Some(reason)));
            assert!(!state.is_final());
        }
    }

    #[test]
    fn each_hole_in_a_closed_account_is_a_gap_with_its_reason() {
        let gap = Gap {
            kind: GapKind::Tamper,
            from: 1,
            to: None,
            detail: Printable::new(""),
        };
        let gap = Received {
            body: Body::Gap(gap),
            seq: 1,
            t: 0,
        };
        let mut unreadable = of(&[unknown(1), bye(2)]);
        unreadable.note_unreadable();
        for (account, reason) in [
            (of(&[unknown(1), bye(4)]), Shortfall::Missing(2)),
            (unreadable, Shortfall::Unreadable(1)),
            (of(&[bye(1), unknown(2)]), Shortfall::AfterBye(1)),
            (
                of(&[unknown(1), Received { seq: 2, ..bye(3) }]),
                Shortfall::DoesNotAddUp,
            ),
            (of(&[gap, bye(2)]), Shortfall::Holes(1)),
        ] {
            assert_eq!(
                judged(&account, PeerEnd::Exited),
                (ChannelState::Gap, Some(reason)),
                "{account:?}"
            );
        }
    }

    #[test]
    fn silence_and_the_absence_of_an_allowlist_are_different_words() {
        assert_eq!(
            verdict(Evidence::Silence).state,
            ChannelState::NeverConnected
        );
        assert_eq!(
            verdict(Evidence::NoAllowlist).state,
            ChannelState::NotApplicable
        );
    }

    #[test]
    fn the_words_of_the_log_are_stable() {
        for (state, word) in [
            (ChannelState::Complete, "complete"),
            (ChannelState::Gap, "gap"),
            (ChannelState::Interrupted, "interrupted"),
            (ChannelState::NeverConnected, "never_connected"),
            (ChannelState::NotApplicable, "not_applicable"),
        ] {
            assert_eq!(serde_json::to_value(state).unwrap(), word);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_lost_or_repeated_an_account_is_complete_only_if_all_of_it_arrived(
            times in proptest::collection::vec(0_usize..3, 1..20),
        ) {
            let last = times.len() as u64 + 1;
            let mut account = of(&[]);
            for (seq, times) in (1..).zip(&times) {
                for _ in 0..*times {
                    account.apply(&unknown(seq));
                }
            }
            account.apply(&bye(last));
            let complete = judged(&account, PeerEnd::Exited).0 == ChannelState::Complete;
            prop_assert_eq!(complete, times.iter().all(|times| *times > 0));
        }
    }
}
