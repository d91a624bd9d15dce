//! A hold on one process that a reused pid cannot redirect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{Identity, Process, ProcessError};

/// A pidfd whose process was checked to be the one that was meant.
#[derive(Debug)]
pub struct Handle {
    identity: Identity,
    pidfd: OwnedFd,
}

impl Handle {
    /// Takes hold of the process `identity`.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] when it has ended, even if its pid lives on in another process.
    pub fn open(identity: Identity) -> Result<Self, ProcessError> {
        let gone = || ProcessError::Gone(identity.pid);
        let pid = Pid::from_raw(identity.pid).ok_or_else(gone)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => gone(),
            other => ProcessError::Read {
                pid: identity.pid,
                source: other.into(),
            },
        })?;
        // Only after the pidfd is held can the look at /proc not be about somebody else.
        if Process::observe(identity.pid)?.identity == identity {
            Ok(Self { identity, pidfd })
        } else {
            Err(gone())
        }
    }

    /// Which process is held.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] when it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        pidfd_send_signal(&self.pidfd, signal).map_err(|errno| match errno {
            Errno::SRCH => ProcessError::Gone(self.identity.pid),
            other => ProcessError::Read {
                pid: self.identity.pid,
                source: other.into(),
            },
        })
    }
}

impl AsFd for Handle {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn a_held_process_is_signalled() {
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = Process::observe(i32::try_from(child.id()).unwrap()).unwrap();
        Handle::open(process.identity)
            .unwrap()
            .signal(Signal::KILL)
            .unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_reused_pid_is_somebody_else() {
        let me = i32::try_from(std::process::id()).unwrap();
        let other = Identity {
            pid: me,
            start_time: 1,
        };
        assert!(matches!(Handle::open(other), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_process_that_ended_takes_no_signal() {
        let mut child = Command::new("true").spawn().unwrap();
        let process = Process::observe(i32::try_from(child.id()).unwrap()).unwrap();
        let handle = Handle::open(process.identity).unwrap();
        child.wait().unwrap();
        assert!(matches!(
            handle.signal(Signal::TERM),
            Err(ProcessError::Gone(_))
        ));
        assert!(matches!(
            Handle::open(process.identity),
            Err(ProcessError::Gone(_))
        ));
    }

    #[test]
    fn the_end_of_a_held_process_is_something_to_wait_for() {
        let mut child = Command::new("true").spawn().unwrap();
        let process = Process::observe(i32::try_from(child.id()).unwrap()).unwrap();
        let handle = Handle::open(process.identity).unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &handle,
            rustix::event::PollFlags::IN,
        )];
        assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
        child.wait().unwrap();
        assert_eq!(handle.identity(), process.identity);
    }

    #[test]
    fn pid_zero_is_nobody() {
        assert!(
            Handle::open(Identity {
                pid: 0,
                start_time: 1
            })
            .is_err()
        );
    }
}
