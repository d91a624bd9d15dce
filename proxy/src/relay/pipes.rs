//! Pipes to splice through: few, big, and never with one connection's bytes in another's hands.
//!
//! A pipe is put back only when everything that went in has come out. Whatever else becomes of it,
//! an end of the connection in the middle included, it is dropped, and that closes it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::copy::BUFFER;

/// Pipes that no connection is using right now, and how many more there may be.
#[derive(Debug)]
pub(super) struct Pipes {
    spare: Mutex<Vec<Pipe>>,
    room: Arc<Semaphore>,
    calls: Calls,
}

/// What is asked of the kernel. Not every kernel, sandbox or filter of system calls grants it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    pub(super) open: fn() -> Result<(OwnedFd, OwnedFd), Errno>,
    /// Moves up to so many bytes from a socket into a pipe.
    pub(super) fill: Splice,
    /// Moves up to so many bytes out of a pipe into a socket.
    pub(super) empty: Splice,
}

/// Moves up to so many bytes from the first descriptor to the second.
pub(super) type Splice = fn(BorrowedFd<'_>, BorrowedFd<'_>, usize) -> Result<usize, Errno>;

/// A pipe and how much is in it.
#[derive(Debug)]
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    size: usize,
    filled: usize,
    calls: Calls,
    _room: OwnedSemaphorePermit,
}

impl Default for Pipes {
    fn default() -> Self {
        Self::with(Calls::default())
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            open: || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK),
            fill: without_waiting,
            empty: without_waiting,
        }
    }
}

impl Pipes {
    pub(super) fn with(calls: Calls) -> Self {
        Self {
            spare: Mutex::default(),
            room: Arc::new(Semaphore::new(MAX_PIPES)),
            calls,
        }
    }

    /// An empty pipe. `None` where there can be none that would be better than a buffer.
    pub(super) fn take(&self) -> Option<Pipe> {
        let spare = self.spare().pop();
        spare.or_else(|| self.open())
    }

    /// Takes a pipe back, unless something is left in it.
    pub(super) fn put_back(&self, pipe: Pipe) {
        let mut spare = self.spare();
        if pipe.filled == 0 && spare.len() < SPARE {
            spare.push(pipe);
        }
    }

    fn open(&self) -> Option<Pipe> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let (reader, writer) = (self.calls.open)().ok()?;
        // All pipes of a user share an allowance: past it they cannot grow, and later ones are tiny.
        let size = fcntl_setpipe_size(&writer, PIPE).or_else(|_| fcntl_getpipe_size(&writer));
        Some(Pipe {
            reader,
            writer,
            size: size.ok().filter(|&size| size >= BUFFER)?,
            filled: 0,
            calls: self.calls,
            _room: room,
        })
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Pipe>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count_spare(&self) -> usize {
        self.spare().len()
    }

    /// How many there are, in use or not.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        MAX_PIPES - self.room.available_permits()
    }
}

impl Pipe {
    /// How many bytes are in it.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Moves what `source` has into it. 0: the source has ended.
    pub(super) fn fill(&mut self, source: impl AsFd) -> io::Result<usize> {
        let room = self.size.saturating_sub(self.filled);
        let moved = (self.calls.fill)(source.as_fd(), self.writer.as_fd(), room)?;
        self.filled += moved;
        Ok(moved)
    }

    /// Moves what is in it to `sink`.
    pub(super) fn empty(&mut self, sink: impl AsFd) -> io::Result<usize> {
        let moved = (self.calls.empty)(self.reader.as_fd(), sink.as_fd(), self.filled)?;
        self.filled = self.filled.saturating_sub(moved);
        Ok(moved)
    }

    /// Reads what is in it.
    pub(super) fn read(&mut self, memory: &mut [u8]) -> io::Result<usize> {
        let read = rustix::io::read(&self.reader, memory)?;
        self.filled = self.filled.saturating_sub(read);
        Ok(read)
    }
}

fn without_waiting(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    length: usize,
) -> Result<usize, Errno> {
    splice(
        from,
        None,
        to,
        None,
        length,
        SpliceFlags::MOVE | SpliceFlags::NONBLOCK,
    )
}

/// As much as a user without privileges may ask for, unless the machine was told otherwise.
const PIPE: usize = 1024 * 1024;
/// A user's allowance is 64 MiB; this is half of it.
const MAX_PIPES: usize = 32;
/// Pipes beyond these are closed: they were needed by peers that do not take what they are sent.
const SPARE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_with(pipes: &Pipes, bytes: &[u8]) -> Pipe {
        let mut pipe = pipes.take().unwrap();
        let (source, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&writer, bytes).unwrap();
        assert_eq!(pipe.fill(&source).unwrap(), bytes.len());
        pipe
    }

    #[test]
    fn a_pipe_with_something_in_it_is_closed_and_not_used_again() {
        let pipes = Pipes::default();
        pipes.put_back(filled_with(&pipes, b"secret"));
        assert_eq!((pipes.count_spare(), pipes.count()), (0, 0));
        let mut half_read = filled_with(&pipes, b"secret");
        assert_eq!(half_read.read(&mut [0; 3]).unwrap(), 3);
        assert_eq!(half_read.filled(), 3);
        pipes.put_back(half_read);
        assert_eq!((pipes.count_spare(), pipes.count()), (0, 0));
    }

    #[test]
    fn an_empty_pipe_is_used_again() {
        let pipes = Pipes::default();
        let mut pipe = filled_with(&pipes, b"all of it");
        let number = format!("{:?}", pipe.reader);
        assert_eq!(pipe.read(&mut [0; 64]).unwrap(), 9);
        pipes.put_back(pipe);
        assert_eq!(pipes.count_spare(), 1);
        assert_eq!(format!("{:?}", pipes.take().unwrap().reader), number);
    }

    #[test]
    fn there_are_only_so_many_pipes_and_fewer_are_kept() {
        let pipes = Pipes::default();
        let taken: Vec<_> = (0..MAX_PIPES).map(|_| pipes.take().unwrap()).collect();
        assert!(pipes.take().is_none());
        for pipe in taken {
            pipes.put_back(pipe);
        }
        assert_eq!((pipes.count_spare(), pipes.count()), (SPARE, SPARE));
    }

    #[test]
    fn where_no_pipe_can_be_made_there_is_none_and_room_stays() {
        let pipes = Pipes::with(Calls {
            open: || Err(Errno::MFILE),
            ..Calls::default()
        });
        assert!(pipes.take().is_none());
        assert_eq!(pipes.count(), 0);
    }

    #[test]
    fn a_pipe_is_never_smaller_than_a_buffer() {
        let pipes = Pipes::default();
        assert!(pipes.take().unwrap().size >= BUFFER);
    }
}
