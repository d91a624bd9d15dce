//! The report channel of one run, seen from the host.
//!
//! The claim to keep true: nothing that the guest can do adds, alters or removes a report, and
//! anything that stops reports is visible. So there is one connection per run, made before the guest
//! exists, by a process that knows a secret and is pinned; then there is nothing left to connect to.

mod admitted;
mod allowance;
mod attendance;
mod door;
mod entrance;
mod greeting;
mod journal;
mod orders;
mod past;
mod peer;
mod pidfd;
mod presence;
mod secret;
mod session;
mod terms;
mod voice;
mod way;

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
};

use report::{Answers, HostMessage, PeerEnd, Received, Seed};
use tokio::sync::{mpsc, watch};

pub use attendance::{Attendance, Refusals, Reports};
pub use greeting::Refusal;
pub use journal::Journal;
pub use secret::Secret;
pub use session::Fault;
pub use terms::Terms;
pub use way::Transport;

pub(crate) use admitted::boot;
pub(crate) use pidfd::Pidfd;
pub(crate) use presence::Presence;
pub(crate) use way::{Client, Way};

use door::Door;
use entrance::{Entered, Entrances, enter};
use orders::Orders;
use past::{Past, Standing};
use peer::Peer;
use session::{Heard, Secrets, Session, Taken};

/// A channel that waits for its container.
#[derive(Debug)]
pub struct Channel {
    entrances: Entrances,
    run_dir: PathBuf,
    terms: Terms,
    journal: Journal,
    past: Past,
    orders: Orders,
    presence: watch::Sender<Presence>,
}

/// Why a run has no channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The system refused to make a file or socket.
    #[error("cannot make the report channel in {directory}: {source}")]
    Make {
        /// Where it was to be.
        directory: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Channel {
    /// Opens the channel of a run in `run_dir`, which nobody else on the host may enter: the socket
    /// in `channel/`, and `journal.jsonl`. Where another collector has left a journal, it is gone on
    /// with.
    pub fn open(run_dir: &Path, terms: Terms) -> Result<Self, ChannelError> {
        let directory = directory(run_dir);
        let make = |source| ChannelError::Make {
            directory: directory.clone(),
            source,
        };
        let (journal, lines) =
            Journal::open(&run_dir.join(JOURNAL), Journal::LIMIT).map_err(make)?;
        let past = Past::of(run_dir, &lines, Seed(terms.seed));
        let door = match terms.transport {
            Transport::Exec => None,
            Transport::Auto | Transport::Socket => Some(Door::open(&directory).map_err(make)?),
        };
        Ok(Self {
            entrances: Entrances {
                door,
                way: None,
                in_vain: Refusals::default(),
            },
            run_dir: run_dir.to_owned(),
            terms,
            journal,
            past,
            orders: Orders::default(),
            presence: watch::Sender::default(),
        })
    }

    /// The same, where the engine can bring the channel as well, if that may be.
    pub(crate) fn with_client(mut self, client: Client) -> Self {
        self.entrances.way = match self.terms.transport {
            Transport::Socket => None,
            transport @ (Transport::Auto | Transport::Exec) => Some(Way::new(client, transport)),
        };
        self
    }

    /// The directory to mount into the container, read-only.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        directory(&self.run_dir)
    }

    /// The secret to give to the container.
    #[must_use]
    pub fn nonce(&self) -> &Secret {
        &self.terms.nonce
    }

    /// Whether the journal already says that the guest was started.
    #[must_use]
    pub const fn was_launched(&self) -> bool {
        self.past.was_launched()
    }

    /// What the journal says that the container has said of lists that it was given.
    #[must_use]
    pub const fn answers(&self) -> &Answers {
        self.past.answers()
    }

    /// What becomes of the container's first process while this attends, for whoever asks the engine.
    pub(crate) fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Hands on to the container what comes out of `orders`.
    #[must_use]
    pub fn with_orders(self, orders: mpsc::Receiver<HostMessage>) -> Self {
        Self {
            orders: Orders::of(orders),
            ..self
        }
    }

    /// Admits the container and listens to it until its process has ended, or until `over`, which
    /// says that the run has: then what was sent is still read, and nobody is waited for.
    ///
    /// `on_message` sees every message when it is stored.
    pub async fn attend(
        self,
        over: impl Future<Output = ()>,
        on_message: impl FnMut(&Received) + Send,
    ) -> Attendance {
        let over = async {
            over.await;
            PeerEnd::Alive
        };
        self.attend_until(over, on_message).await
    }

    /// The same, where `over` says what became of the container: where its process cannot be seen
    /// from here, that is what is known of its end.
    pub(crate) async fn attend_until(
        self,
        over: impl Future<Output = PeerEnd>,
        mut on_message: impl FnMut(&Received) + Send,
    ) -> Attendance {
        let Self {
            mut entrances,
            run_dir,
            terms,
            mut journal,
            past,
            mut orders,
            presence,
        } = self;
        let mut over = pin!(over);
        let mut refusals = Refusals::default();
        let mut standing = past.standing();
        presence.send_replace(Presence::of(&standing));
        let reports = loop {
            // The door is closed and its socket gone before the welcome: while the guest is at
            // work there is nothing to connect to.
            // Boxed, since it is large and done with before the long part begins.
            let entered = Box::pin(enter(
                &mut entrances,
                &terms,
                standing,
                &mut refusals,
                over.as_mut(),
            ));
            let Entered {
                greeted,
                who,
                account,
            } = match entered.await {
                Ok(entered) => entered,
                Err(reports) => break reports,
            };
            // Without it the container cannot come back, and that costs completeness only.
            let _ = who.as_ref().map(|who| who.store(&run_dir));
            let resumed = who.as_ref().map_or(0, |who| who.resumed);
            let secrets = Secrets {
                resume_token: terms.resume_token.expose().to_owned(),
                seed: Seed(terms.seed),
            };
            let left = Taken { account, resumed };
            let (session, peer) =
                Session::welcome(greeted, secrets, left, &mut journal, &mut on_message);
            presence.send_replace(Presence::of_peer(&peer));
            let session = session.with_orders(&mut orders);
            match (session.listen(peer, over.as_mut()).await, who) {
                (Heard::Cut(reports), Some(who)) => {
                    let again = Peer::Contained(None);
                    standing = Standing::Somebody(reports.account, who, again);
                    presence.send_replace(Presence::of(&standing));
                }
                (Heard::Out(reports) | Heard::Cut(reports), _) => break Some(reports),
            }
        };
        if let Some(reports) = &reports {
            presence.send_replace(Presence::after(reports));
        }
        refusals.add(entrances.in_vain);
        Attendance {
            reports,
            refusals,
            journal,
        }
    }
}

/// What a container has said so far of lists that it was given, while another process attends.
pub(crate) fn answers_so_far(run_dir: &Path, seed: [u8; 16]) -> io::Result<Answers> {
    let lines = Journal::peek(&run_dir.join(JOURNAL))?;
    Ok(Past::of(run_dir, &lines, Seed(seed)).answers().clone())
}

/// What of a run's directory its container sees.
#[must_use]
pub fn directory(run_dir: &Path) -> PathBuf {
    run_dir.join("channel")
}

const JOURNAL: &str = "journal.jsonl";
