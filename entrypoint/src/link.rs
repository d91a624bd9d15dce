//! What a process of ours and PID 1 say to each other over a socketpair: whole messages, of bounded
//! size, and never at the price of waiting for one of them to be read.

use std::{io, os::unix::net::UnixStream};

use report::FrameReader;
use serde::de::DeserializeOwned;
use tokio::io::Interest;

/// The two streams of messages from and to one process.
#[derive(Debug)]
pub(crate) struct Link {
    stream: tokio::net::UnixStream,
    reader: FrameReader,
    buffer: Vec<u8>,
    /// What the socket has yet to take: a list is longer than its buffer.
    unsent: Vec<u8>,
}

impl Link {
    /// Goes on with what `reader` has of the stream already.
    ///
    /// Must be called within the runtime.
    pub(crate) fn new(stream: UnixStream, reader: FrameReader) -> io::Result<Self> {
        // Whatever timeout is on it would hold up every look for more.
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: tokio::net::UnixStream::from_std(stream)?,
            reader,
            buffer: vec![0; READ_SIZE],
            unsent: Vec::new(),
        })
    }

    /// The next message; meanwhile what is unsent goes out.
    ///
    /// # Errors
    /// When the other is gone, or no longer makes sense, which is the same to its parent.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        loop {
            if let Some(message) = parse(&mut self.reader)? {
                return Ok(message);
            }
            let interest = if self.unsent.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let ready = self.stream.ready(interest).await?;
            if ready.is_writable() {
                self.send()?;
            }
            match self.stream.try_read(&mut self.buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self
                    .reader
                    .push(self.buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Says `line`, or as much as there is room for: the rest goes while the other is listened to.
    pub(crate) fn say(&mut self, line: Vec<u8>) -> io::Result<()> {
        self.unsent.extend(line);
        self.send()
    }

    /// How many bytes the socket has yet to take.
    pub(crate) const fn unsent(&self) -> usize {
        self.unsent.len()
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.try_write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The next message of which `reader` has all.
pub(crate) fn parse<T: DeserializeOwned>(reader: &mut FrameReader) -> io::Result<Option<T>> {
    let line = reader.next_line().map_err(io::Error::other)?;
    line.map(serde_json::from_slice)
        .transpose()
        .map_err(io::Error::from)
}

const READ_SIZE: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn pair(limit: usize) -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::new(ours, FrameReader::new(limit)).unwrap(), theirs)
    }

    #[tokio::test]
    async fn messages_come_one_by_one_however_they_were_written() {
        let (mut link, mut theirs) = pair(100);
        theirs.write_all(b"1\n2\n3").unwrap();
        assert_eq!(link.next::<u32>().await.unwrap(), 1);
        assert_eq!(link.next::<u32>().await.unwrap(), 2);
        theirs.write_all(b"4\n").unwrap();
        assert_eq!(link.next::<u32>().await.unwrap(), 34);
    }

    #[tokio::test]
    async fn who_is_gone_or_talks_rubbish_is_an_error() {
        for said in [&b""[..], b"1", b"x\n", b"\n", &[b'1'; 200]] {
            let (mut link, mut theirs) = pair(100);
            theirs.write_all(said).unwrap();
            drop(theirs);
            assert!(link.next::<u32>().await.is_err(), "{said:?}");
        }
    }
    #[tokio::test]
    async fn a_timeout_that_was_on_the_socket_holds_up_no_look_for_more() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let hour = std::time::Duration::from_secs(3600);
        ours.set_read_timeout(Some(hour)).unwrap();
        let mut link = Link::new(ours, FrameReader::new(100)).unwrap();
        theirs.write_all(b"1\n").unwrap();
        assert_eq!(link.next::<u32>().await.unwrap(), 1);
        // Were it still blocking, this would not return.
        let mut buffer = [0];
        let nothing = link.stream.try_read(&mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
