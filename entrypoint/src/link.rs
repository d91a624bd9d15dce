//! What a process of ours says to PID 1 over a socketpair: whole messages, of bounded size.

use std::{io, os::unix::net::UnixStream};

use report::FrameReader;
use serde::de::DeserializeOwned;

/// A stream of messages from one process.
#[derive(Debug)]
pub(crate) struct Link {
    stream: tokio::net::UnixStream,
    reader: FrameReader,
    buffer: Vec<u8>,
}

impl Link {
    /// Goes on with what `reader` has of the stream already.
    ///
    /// Must be called within the runtime.
    pub(crate) fn new(stream: UnixStream, reader: FrameReader) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: tokio::net::UnixStream::from_std(stream)?,
            reader,
            buffer: vec![0; READ_SIZE],
        })
    }

    /// The next message.
    ///
    /// # Errors
    /// When the other is gone, or no longer makes sense, which is the same to its parent.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        loop {
            if let Some(message) = parse(&mut self.reader)? {
                return Ok(message);
            }
            self.stream.readable().await?;
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
}
