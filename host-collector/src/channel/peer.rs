//! The process at the other end of the channel, pinned so that no other can be taken for it.

use std::{io, os::fd::OwnedFd};

use report::PeerEnd;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
};

/// A connected process and a handle by which its end is known.
#[derive(Debug)]
pub(crate) struct Peer {
    pidfd: AsyncFd<OwnedFd>,
}

impl Peer {
    /// Pins who connected (`SO_PEERCRED` of unix(7), and a pidfd of that process).
    ///
    /// # Errors
    /// When the process is not visible from here or is gone already.
    pub(crate) fn pin(stream: &UnixStream) -> io::Result<Self> {
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| {
            io::Error::other("it is in a pid namespace that cannot be seen from here")
        })?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // The number could have passed to another process if the first had died; it is alive as
        // long as its end of the connection is open, for it has told nobody of it yet.
        if is_ready(&stream, PollFlags::RDHUP | PollFlags::HUP) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self {
            pidfd: AsyncFd::register_with_interest(pidfd, Interest::READABLE)?,
        })
    }

    /// Waits until the process has ended (`pidfd_open(2)`: it becomes readable).
    pub(crate) async fn exited(&self) {
        // An error means that the reactor is shutting down: there is nothing to wait for.
        let _ = self.pidfd.readable().await;
    }

    /// What is known of it now.
    pub(crate) fn state(&self) -> PeerEnd {
        if is_ready(self.pidfd.get_ref(), PollFlags::IN) {
            PeerEnd::Exited
        } else {
            PeerEnd::Alive
        }
    }
}

fn is_ready(fd: &impl std::os::fd::AsFd, flags: PollFlags) -> bool {
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
            assert_eq!(Peer::pin(&ours).unwrap().state(), PeerEnd::Alive);
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
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let peer = Peer {
                pidfd: AsyncFd::register_with_interest(pidfd, Interest::READABLE).unwrap(),
            };
            assert_eq!(peer.state(), PeerEnd::Alive);
            drop(child.stdin.take());
            peer.exited().await;
            assert_eq!(peer.state(), PeerEnd::Exited);
            child.wait().unwrap();
        });
    }
}
