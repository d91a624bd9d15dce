//! The report channel of one run, seen from the host.
//!
//! The claim to keep true: nothing that the guest can do adds, alters or removes a report, and
//! anything that stops reports is visible. So there is one connection per run, made before the guest
//! exists, by a process that knows a secret and is pinned; then there is nothing left to connect to.

mod allowance;
mod attendance;
mod door;
mod greeting;
mod journal;
mod peer;
mod pidfd;
mod secret;
mod session;
mod voice;

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use report::{PROTOCOL, Received, Seed, Welcome};

pub use attendance::{Attendance, Refusals, Reports};
pub use greeting::Refusal;
pub use journal::Journal;
pub use secret::Secret;
pub use session::Fault;

use door::Door;
use greeting::Expected;
use session::Session;

/// A channel that waits for its container.
#[derive(Debug)]
pub struct Channel {
    door: Door,
    directory: PathBuf,
    expected: Arc<Expected>,
    journal: Journal,
    resume_token: Secret,
    seed: Seed,
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
    /// The system has no randomness to give.
    #[error("cannot make a secret: {0}")]
    Randomness(#[from] getrandom::Error),
}

impl Channel {
    /// Makes the channel of a run in `run_dir`, which nobody else on the host may enter: the socket
    /// in `channel/`, and `journal.jsonl`.
    ///
    /// A container whose allowlist has another digest than `policy_digest` is turned away.
    pub fn create(run_dir: &Path, policy_digest: Option<String>) -> Result<Self, ChannelError> {
        let nonce = Secret::random()?;
        let resume_token = Secret::random()?;
        let mut seed = [0; 16];
        getrandom::fill(&mut seed)?;
        let directory = run_dir.join("channel");
        let make = |source| ChannelError::Make {
            directory: directory.clone(),
            source,
        };
        let journal =
            Journal::create(&run_dir.join("journal.jsonl"), Journal::LIMIT).map_err(make)?;
        let door = Door::open(&directory).map_err(make)?;
        let expected = Arc::new(Expected {
            nonce,
            policy_digest,
        });
        Ok(Self {
            door,
            directory,
            expected,
            journal,
            resume_token,
            seed: Seed(seed),
        })
    }

    /// The directory to mount into the container, read-only.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The secret to give to the container.
    #[must_use]
    pub fn nonce(&self) -> &Secret {
        &self.expected.nonce
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
            expected,
            mut journal,
            resume_token,
            seed,
            ..
        } = self;
        let mut over = pin!(over);
        let mut refusals = Refusals::default();
        // The door is closed and its socket gone before the welcome: when the guest starts, there
        // is nothing left to connect to.
        let admitted = tokio::select! {
            admitted = door.admit(expected, &mut refusals) => admitted,
            () = over.as_mut() => return Attendance { reports: None, refusals, journal },
        };
        let greeted = match admitted {
            Ok(greeted) => greeted,
            Err(error) => {
                refusals.note(Refusal::Gone(error));
                return Attendance {
                    reports: None,
                    refusals,
                    journal,
                };
            }
        };
        let welcome = Welcome {
            protocol: PROTOCOL,
            resume_token: resume_token.expose().to_owned(),
        };
        let (session, peer) =
            Session::welcome(greeted, welcome, seed, &mut journal, &mut on_message);
        let reports = session.listen(peer, over).await;
        Attendance {
            reports: Some(reports),
            refusals,
            journal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_its_socket_and_its_journal_and_secrets_of_its_own() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (a, b) = (
            Channel::create(one.path(), None).unwrap(),
            Channel::create(two.path(), None).unwrap(),
        );
        assert!(
            a.directory().join("report.sock").exists() && one.path().join("journal.jsonl").exists()
        );
        assert_ne!(a.nonce().expose(), b.nonce().expose());
        assert_ne!(a.nonce().expose(), a.resume_token.expose());
    }

    #[test]
    fn a_directory_that_had_a_channel_gets_no_second() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Channel::create(dir.path(), None).unwrap();
        let error = Channel::create(dir.path(), None).unwrap_err().to_string();
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_channel_that_is_given_up_leaves_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let channel = Channel::create(dir.path(), None).unwrap();
        let socket = channel.directory().join("report.sock");
        drop(channel);
        assert!(!socket.exists());
    }

    #[test]
    fn a_channel_does_not_print_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let channel = Channel::create(dir.path(), None).unwrap();
        let shown = format!("{channel:?}");
        assert!(
            !shown.contains(channel.nonce().expose())
                && !shown.contains(channel.resume_token.expose())
        );
    }
}
