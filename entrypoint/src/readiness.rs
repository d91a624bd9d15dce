#![expect(
    unsafe_code,
    reason = "tokio leaves it to the caller that a descriptor stays what it is"
)]
//! Waits for descriptors that tokio has no type for: a netlink socket, a signalfd.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Tells when a descriptor has something to read.
#[derive(Debug)]
pub(crate) struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Watches `source`, through a duplicate of its descriptor that nobody else can close.
    ///
    /// Must be called within the runtime.
    pub(crate) fn of(source: &impl AsFd) -> io::Result<Self> {
        let duplicate = source.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open until it is dropped and always names the same descriptor,
        // and `AsyncFd` owns this one.
        let watched = unsafe { AsyncFd::register_with_interest(duplicate, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until `read` does not have to wait, and returns what it read.
    pub(crate) async fn read<T>(&self, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|_| read()) {
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }
}
