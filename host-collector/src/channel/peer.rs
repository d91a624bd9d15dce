//! The process at the other end of the channel, pinned so that no other can be taken for it.

use std::{io, os::fd::AsFd, time::Duration};

use procwatch::{Identity, Process, State};
use report::PeerEnd;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Pid,
};
use tokio::{net::UnixStream, process::Child, time::timeout};

use super::pidfd::Pidfd;

/// Who is at the other end, and how its end is known.
#[derive(Debug)]
pub(crate) enum Peer {
    /// A process of this machine, and a handle on it.
    Pinned {
        /// The handle.
        pidfd: Pidfd,
        /// Which it is, where /proc could be asked.
        identity: Option<Identity>,
    },
    /// PID 1 of a container whose engine brings the channel, perhaps from another machine. Its end
    /// is the container's, which the engine tells.
    Contained(
        #[expect(dead_code, reason = "held, so that the engine's client ends with it")]
        Option<Box<Child>>,
    ),
}

impl Peer {
    /// Pins who connected (`SO_PEERCRED` of unix(7), and a pidfd of that process).
    ///
    /// # Errors
    /// When the process is not visible from here or is gone already.
    pub(crate) fn pin(stream: &UnixStream) -> io::Result<Self> {
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw);
        let unseen = || io::Error::other("it is in a pid namespace that cannot be seen from here");
        let pid = pid.ok_or_else(unseen)?;
        let pidfd = Pidfd::open(pid)?;
        let identity = identity(pid.as_raw_nonzero().get());
        // The number could have passed to another process if the first had died. It is alive as
        // long as its end of the connection is open, for it has shared that with nobody yet.
        if is_ready(stream, PollFlags::RDHUP | PollFlags::HUP) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self::Pinned { pidfd, identity })
    }

    /// Takes hold of a process that was pinned before; `None` if it has ended.
    ///
    /// Must be called within the runtime.
    pub(crate) fn find(wanted: Identity) -> Option<Self> {
        let pid = Some(wanted.pid)
            .filter(|&pid| pid > 0)
            .and_then(Pid::from_raw)?;
        let pidfd = Pidfd::open(pid).ok()?;
        // Only now that the pidfd is held can this not be about a later one.
        let found = identity(wanted.pid).filter(|found| *found == wanted)?;
        Some(Self::Pinned {
            pidfd,
            identity: Some(found),
        })
    }

    /// Which process it is, where /proc could be asked.
    pub(crate) const fn identity(&self) -> Option<Identity> {
        match self {
            Self::Pinned { identity, .. } => *identity,
            Self::Contained(_) => None,
        }
    }

    /// Whether the engine brings the channel.
    pub(crate) const fn is_contained(&self) -> bool {
        matches!(self, Self::Contained(_))
    }

    /// Waits until the process has ended.
    pub(crate) async fn exited(&self) {
        match self {
            Self::Pinned { pidfd, .. } => pidfd.ended().await,
            Self::Contained(_) => std::future::pending().await,
        }
    }

    /// The same, where the engine has said this of the container: it may know a moment earlier.
    pub(crate) async fn settled(&self, container: PeerEnd) -> PeerEnd {
        if container == PeerEnd::Exited && !self.is_contained() {
            let _ = timeout(TO_END, self.exited()).await;
        }
        self.state(container)
    }

    /// What is known of it when the engine has said this of the container.
    pub(crate) fn state(&self, container: PeerEnd) -> PeerEnd {
        match self {
            Self::Pinned { pidfd, .. } if is_ready(pidfd, PollFlags::IN) => PeerEnd::Exited,
            Self::Pinned { .. } => PeerEnd::Alive,
            Self::Contained(_) => container,
        }
    }
}

/// Between an engine's word that a container has ended and the end of its first process: an engine
/// that has lost sight of it kills it, and has said so by then.
const TO_END: Duration = Duration::from_secs(2);

/// Of a process that has not ended.
fn identity(pid: i32) -> Option<Identity> {
    let process = Process::observe(pid).ok()?;
    (process.state == State::Alive).then_some(process.identity)
}

fn is_ready(fd: &impl AsFd, flags: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd, flags)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|fd| fd.revents().intersects(flags))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn with_runtime<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(work)
    }

    #[test]
    fn a_peer_that_is_there_is_alive() {
        with_runtime(async {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            assert_eq!(
                Peer::pin(&ours).unwrap().state(PeerEnd::Exited),
                PeerEnd::Alive
            );
        });
    }

    #[test]
    fn a_peer_that_hung_up_cannot_be_pinned() {
        with_runtime(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            assert!(Peer::pin(&ours).is_err());
        });
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        with_runtime(async {
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let peer = Peer::find(identity(child.id().cast_signed()).unwrap()).unwrap();
            assert_eq!(peer.state(PeerEnd::Exited), PeerEnd::Alive);
            drop(child.stdin.take());
            peer.exited().await;
            assert_eq!(peer.state(PeerEnd::Alive), PeerEnd::Exited);
            child.wait().unwrap();
        });
    }

    #[test]
    fn an_engine_that_knows_of_an_end_a_moment_earlier_is_believed_when_it_is_seen() {
        with_runtime(async {
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let peer = Peer::find(identity(child.id().cast_signed()).unwrap()).unwrap();
            // Nothing is said of an end, so none is waited for.
            assert_eq!(peer.settled(PeerEnd::Alive).await, PeerEnd::Alive);
            let input = child.stdin.take();
            let (end, ()) = tokio::join!(peer.settled(PeerEnd::Exited), async { drop(input) });
            assert_eq!(end, PeerEnd::Exited);
            child.wait().unwrap();
        });
    }

    #[test]
    fn of_a_container_s_process_the_engine_knows_the_end() {
        let peer = Peer::Contained(None);
        assert!(peer.identity().is_none());
        for end in [PeerEnd::Alive, PeerEnd::Exited] {
            assert_eq!(peer.state(end), end);
        }
    }
}
