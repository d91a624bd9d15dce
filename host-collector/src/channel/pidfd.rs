#![expect(
    unsafe_code,
    reason = "tokio leaves it to the caller that a descriptor stays what it is"
)]
//! A handle on a process that no other process can come to stand for.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

/// A pidfd, see `pidfd_open(2)`: it becomes readable when its process ends.
#[derive(Debug)]
pub(crate) struct Pidfd(AsyncFd<OwnedFd>);

impl Pidfd {
    /// Takes hold of the process that has this number now.
    ///
    /// Must be called within the runtime.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: an `OwnedFd` is open until it is dropped and always names the same descriptor,
        // and `AsyncFd` owns this one.
        let watched = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&self) {
        // An error means that the reactor is shutting down: there is nothing to wait for.
        let _ = self.0.readable().await;
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
