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
mod past;
mod peer;
mod pidfd;
mod secret;
mod session;
mod terms;
mod voice;

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
};

use report::{Answers, HostMessage, Received, Seed};
use tokio::sync::mpsc;

pub use attendance::{Attendance, Refusals, Reports};
pub use greeting::Refusal;
pub use journal::Journal;
pub use secret::Secret;
pub use session::Fault;
pub use terms::Terms;

use door::Door;
use entrance::{Entered, enter};
use past::Past;
use session::{Session, Taken};

/// A channel that waits for its container.
#[derive(Debug)]
pub struct Channel {
    door: Door,
    run_dir: PathBuf,
    terms: Terms,
    journal: Journal,
    past: Past,
    orders: Option<mpsc::Receiver<HostMessage>>,
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
        Ok(Self {
            door: Door::open(&directory).map_err(make)?,
            run_dir: run_dir.to_owned(),
            terms,
            journal,
            past,
            orders: None,
        })
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

    /// Hands on to the container what comes out of `orders`.
    #[must_use]
    pub fn with_orders(self, orders: mpsc::Receiver<HostMessage>) -> Self {
        Self {
            orders: Some(orders),
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
        mut on_message: impl FnMut(&Received) + Send,
    ) -> Attendance {
        let Self {
            door,
            run_dir,
            terms,
            mut journal,
            past,
            orders,
        } = self;
        let mut over = pin!(over);
        let mut refusals = Refusals::default();
        let reports = match enter(door, &terms, past, &mut refusals, over.as_mut()).await {
            Err(reports) => reports,
            // The door is closed and its socket gone before the welcome: while the guest is at
            // work there is nothing to connect to.
            Ok(Entered {
                greeted,
                who,
                account,
            }) => {
                // Without it the container cannot come back, and that costs completeness only.
                let _ = who.as_ref().map(|who| who.store(&run_dir));
                let resumed = who.map_or(0, |who| who.resumed);
                let token = terms.resume_token.expose().to_owned();
                let left = Taken { account, resumed };
                let (session, peer) =
                    Session::welcome(greeted, token, left, &mut journal, &mut on_message);
                Some(session.with_orders(orders).listen(peer, over).await)
            }
        };
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
