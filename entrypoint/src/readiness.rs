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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[tokio::test]
    async fn what_is_there_is_read_and_what_is_not_is_waited_for() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let readiness = Readiness::of(&ours).unwrap();
        let mut byte = [0];
        let waiting = readiness.read(|| ours.read(&mut byte));
        let (read, ()) = tokio::join!(waiting, async {
            tokio::task::yield_now().await;
            (&theirs).write_all(b"x").unwrap();
        });
        assert_eq!((read.unwrap(), byte), (1, *b"x"));
    }

    #[tokio::test]
    async fn an_error_that_is_not_waiting_is_handed_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let readiness = Readiness::of(&ours).unwrap();
        let failed: io::Result<()> = readiness
            .read(|| Err(io::ErrorKind::PermissionDenied.into()))
            .await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
