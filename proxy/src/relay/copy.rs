//! Copies bytes through memory that is borrowed only while there are bytes in it.

use std::{
    io,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    net::tcp::{ReadHalf, WriteHalf},
};

/// Buffers that no connection is using right now.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Box<[u8]>>>);

/// Bytes on their way, in a buffer that goes back when they have passed.
pub(super) struct Chunk<'b> {
    memory: Box<[u8]>,
    length: usize,
    owner: &'b Buffers,
}

/// Reads once, into a buffer that is borrowed only if there is something to read. No bytes: the
/// source has ended.
pub(super) fn poll_chunk<'b>(
    from: &mut ReadHalf<'_>,
    buffers: &'b Buffers,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Chunk<'b>>> {
    let mut chunk = buffers.chunk();
    let mut space = ReadBuf::new(&mut chunk.memory);
    ready!(Pin::new(from).poll_read(cx, &mut space))?;
    let length = space.filled().len();
    chunk.length = length;
    Poll::Ready(Ok(chunk))
}

/// Writes what the kernel takes of `bytes` at once: how much that was, which is counted.
pub(super) fn try_send(
    to: &WriteHalf<'_>,
    bytes: &[u8],
    count: &impl Fn(usize),
) -> io::Result<usize> {
    match to.try_write(bytes) {
        Ok(written) => {
            count(written);
            Ok(written)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

/// Writes all of `bytes`, and counts what the kernel has taken: if it ends in between, what is left
/// never went out.
pub(super) async fn send(
    to: &mut WriteHalf<'_>,
    mut bytes: &[u8],
    count: &impl Fn(usize),
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = to.write(bytes).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        count(written);
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

impl Buffers {
    /// An empty chunk.
    pub(super) fn chunk(&self) -> Chunk<'_> {
        let spare = self.spare().pop();
        Chunk {
            memory: spare.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice()),
            length: 0,
            owner: self,
        }
    }

    fn put_back(&self, memory: Box<[u8]>) {
        let mut spare = self.spare();
        if spare.len() < SPARE {
            spare.push(memory);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count_spare(&self) -> usize {
        self.spare().len()
    }
}

impl Chunk<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.length).unwrap_or_default()
    }

    /// Fills it from what `read` puts at its start.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.length = read(&mut self.memory)?;
        Ok(())
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.owner.put_back(std::mem::take(&mut self.memory));
    }
}

/// The size of a buffer, in bytes.
pub(super) const BUFFER: usize = 64 * 1024;
/// Buffers beyond these are freed: they were needed by peers that do not take what they are sent.
const SPARE: usize = 8;

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::ready};

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::client::{Client, soon};

    #[test]
    fn spare_buffers_are_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..SPARE * 2).map(|_| buffers.chunk()).collect();
        drop(taken);
        assert_eq!(buffers.count_spare(), SPARE);
    }

    #[test]
    fn a_chunk_shows_what_was_read_into_it_and_nothing_older() {
        let buffers = Buffers::default();
        let read = |bytes: &'static [u8]| {
            let mut chunk = buffers.chunk();
            let filled = chunk.fill(|memory| {
                memory[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            });
            filled.map(|()| chunk.bytes().to_vec()).unwrap()
        };
        assert_eq!(read(b"of another connection"), b"of another connection");
        assert_eq!(buffers.count_spare(), 1);
        assert_eq!(read(b"x"), b"x");
        assert_eq!(buffers.chunk().bytes(), b"");
    }

    #[tokio::test]
    async fn what_the_kernel_did_not_take_is_not_counted() {
        let (mut near, mut far) = Client::pair().await;
        let counted = Cell::new(0);
        let bytes = vec![7; 64 * 1024 * 1024];
        let count = |more| counted.set(counted.get() + more);
        let (_, mut to) = near.stream.split();
        tokio::select! {
            biased;
            sent = send(&mut to, &bytes, &count) => panic!("all of it was taken: {sent:?}"),
            () = ready(()) => {}
        }
        drop(near);
        let mut received = Vec::new();
        soon(far.read_to_end(&mut received)).await.unwrap();
        assert_eq!(received.len(), counted.get());
        assert!((1..bytes.len()).contains(&received.len()));
    }
}
