//! One connection to a collector.

use std::{io, os::unix::net::UnixStream as StdStream, path::Path};

use report::{FrameReader, HostMessage, MAX_FRAME, PROTOCOL};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::{io::Interest, net::UnixStream};

use crate::outbox::Outbox;

/// A connection, and what of an answer has arrived over it.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    reader: FrameReader,
}

impl Link {
    /// A connection over which a welcome has come.
    ///
    /// Must be called within the runtime, like all of this.
    pub(super) fn new(stream: StdStream, reader: FrameReader) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: UnixStream::from_std(stream)?,
            reader,
        })
    }

    /// Connects anew and says `first`. Never waits: a socket without anybody behind it, or with a
    /// queue before it, is an error like any other.
    pub(super) fn connect(socket: &Path, first: &[u8]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&fd, &SocketAddrUnix::new(socket)?)?;
        let link = Self::new(fd.into(), FrameReader::new(MAX_FRAME))?;
        // Nothing was written yet, so a line has room.
        if rustix::io::write(&link.stream, first)? == first.len() {
            Ok(link)
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Waits for the welcome of a collector that is come back to; says what it has stored.
    pub(super) async fn welcome(&mut self) -> io::Result<u64> {
        loop {
            while let Some(message) = self.next()? {
                match message {
                    HostMessage::Welcome(welcome) if welcome.protocol == PROTOCOL => {
                        return Ok(welcome.stored);
                    }
                    HostMessage::Welcome(_) => return Err(io::ErrorKind::InvalidData.into()),
                    HostMessage::Ack { .. } | HostMessage::Unknown => {}
                }
            }
            self.stream.readable().await?;
            self.read()?;
        }
    }

    /// Moves bytes in whichever direction is ready, and takes note of acknowledgements.
    ///
    /// # Errors
    /// When the collector is gone.
    pub(super) async fn converse(&mut self, outbox: &mut Outbox) -> io::Result<()> {
        let interest = match outbox.next_bytes() {
            Some(_) => Interest::READABLE | Interest::WRITABLE,
            None => Interest::READABLE,
        };
        let ready = self.stream.ready(interest).await?;
        if ready.is_readable() {
            self.read()?;
            while let Some(message) = self.next()? {
                match message {
                    HostMessage::Ack { seq } => outbox.acknowledge(seq),
                    HostMessage::Welcome(_) | HostMessage::Unknown => {}
                }
            }
        }
        if ready.is_writable() {
            self.write(outbox)?;
        }
        Ok(())
    }

    fn write(&self, outbox: &mut Outbox) -> io::Result<()> {
        while let Some(bytes) = outbox.next_bytes() {
            match self.stream.try_write(bytes) {
                Ok(count) => outbox.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.try_read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.reader.push(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn next(&mut self) -> io::Result<Option<HostMessage>> {
        let line = self.reader.next_line().map_err(io::Error::other)?;
        Ok(line.map(serde_json::from_slice).transpose()?)
    }
}
