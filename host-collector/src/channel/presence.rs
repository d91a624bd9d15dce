//! Whether the container's first process is there, as the channel sees it: an engine whose own view
//! is lost would say for ever that a container runs, or nothing.

use report::PeerEnd;

use super::{attendance::Reports, past::Standing, peer::Peer};

/// What is seen of the container's first process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nothing: it has not come yet, or the engine alone can tell.
    #[default]
    Unseen,
    /// It is there: this process holds a handle on it.
    There,
    /// It has ended, or has said that nothing more will come of it.
    Gone,
}

impl Presence {
    /// Of a run as a collector takes it up, or as it stands when the channel was cut.
    pub(crate) const fn of(standing: &Standing) -> Self {
        match standing {
            Standing::Nobody(_) => Self::Unseen,
            Standing::Somebody(account, _, Peer::Contained(_)) => {
                if account.closing().is_some() {
                    Self::Gone
                } else {
                    Self::Unseen
                }
            }
            Standing::Somebody(_, _, peer) => Self::of_peer(peer),
            Standing::Gone(_) => Self::Gone,
        }
    }

    /// Of somebody who was just let in.
    pub(crate) const fn of_peer(peer: &Peer) -> Self {
        match peer {
            Peer::Pinned { .. } => Self::There,
            Peer::Contained(_) => Self::Unseen,
        }
    }

    /// When nobody listens any more.
    pub(crate) const fn after(reports: &Reports) -> Self {
        match reports.peer {
            PeerEnd::Exited => Self::Gone,
            PeerEnd::Alive => Self::Unseen,
        }
    }
}

#[cfg(test)]
mod tests {
    use report::{Account, Seed};

    use super::*;
    use crate::channel::way::Transport;

    fn reports(peer: PeerEnd) -> Reports {
        Reports {
            account: Account::new(Seed([0; 16])),
            peer,
            fault: None,
            resumed: 0,
            transport: Transport::Socket,
        }
    }

    #[test]
    fn only_a_process_that_was_held_is_seen_to_be_there_or_gone() {
        assert_eq!(Presence::of_peer(&Peer::Contained(None)), Presence::Unseen);
        let nobody = Standing::Nobody(Account::new(Seed([0; 16])));
        assert_eq!(Presence::of(&nobody), Presence::Unseen);
        for (peer, presence) in [
            (PeerEnd::Exited, Presence::Gone),
            (PeerEnd::Alive, Presence::Unseen),
        ] {
            assert_eq!(Presence::after(&reports(peer)), presence);
        }
        let gone = Standing::Gone(reports(PeerEnd::Exited));
        assert_eq!(Presence::of(&gone), Presence::Gone);
    }
}
