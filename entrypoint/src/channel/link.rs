//! One connection to a collector.

use std::{io, os::unix::net::UnixStream as StdStream, path::Path};

use report::{Attach, FrameReader, HostMessage, MAX_FRAME, PROTOCOL, Welcome};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use subtle::ConstantTimeEq as _;
use tokio::{io::Interest, net::UnixStream, time::Instant};

use crate::{outbox::Outbox, steering::Order};

/// A connection, and what of an answer has arrived over it.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    reader: FrameReader,
    heard: Instant,
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
            heard: Instant::now(),
        })
    }

    /// Connects anew and says `first`. Never waits: a socket without anybody behind it, or with a
    /// queue before it, is an error like any other.
    pub(super) fn connect(socket: &Path, first: &[u8]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&fd, &SocketAddrUnix::new(socket)?)?;
        let link = Self::new(fd.into(), FrameReader::new(MAX_FRAME))?;
        link.say(first)?;
        Ok(link)
    }

    /// A connection that somebody has made to us.
    pub(super) fn accepted(stream: UnixStream) -> Self {
        Self {
            stream,
            reader: FrameReader::new(MAX_FRAME),
            heard: Instant::now(),
        }
    }

    /// Says the first line: as nothing was written yet, it has room.
    pub(super) fn say(&self, first: &[u8]) -> io::Result<()> {
        if rustix::io::write(&self.stream, first)? == first.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Waits for the first line of whoever has connected, which must show that it knows `secret`.
    ///
    /// Cancelled, it has heard a part of it.
    pub(super) async fn proof_of(&mut self, secret: &str) -> io::Result<()> {
        loop {
            if let Some(line) = self.reader.next_line().map_err(io::Error::other)? {
                let attach = Attach::read(line).map_err(io::Error::other)?;
                let known = attach.secret.as_bytes().ct_eq(secret.as_bytes());
                // Whoever was given no secret can be asked for none.
                return if attach.protocol == PROTOCOL && known.into() && !secret.is_empty() {
                    Ok(())
                } else {
                    Err(io::ErrorKind::PermissionDenied.into())
                };
            }
            self.stream.readable().await?;
            self.read()?;
        }
    }

    /// Waits for the collector's welcome.
    pub(super) async fn welcome(&mut self) -> io::Result<Welcome> {
        loop {
            while let Some(message) = self.next()? {
                match message {
                    HostMessage::Welcome(welcome) if welcome.protocol == PROTOCOL => {
                        return Ok(welcome);
                    }
                    HostMessage::Welcome(_) => return Err(io::ErrorKind::InvalidData.into()),
                    HostMessage::Ack { .. }
                    | HostMessage::Policy(_)
                    | HostMessage::Stop { .. }
                    | HostMessage::Unknown => {}
                }
            }
            self.stream.readable().await?;
            self.read()?;
        }
    }

    /// Moves bytes in whichever direction is ready, takes note of acknowledgements, and hands on
    /// what is ordered.
    ///
    /// # Errors
    /// When the collector is gone.
    pub(super) async fn converse(&mut self, outbox: &mut Outbox) -> io::Result<Vec<Order>> {
        let interest = match outbox.next_bytes() {
            Some(_) => Interest::READABLE | Interest::WRITABLE,
            None => Interest::READABLE,
        };
        let ready = self.stream.ready(interest).await?;
        let mut orders = Vec::new();
        if ready.is_readable() {
            self.read()?;
            while let Some(message) = self.next()? {
                match message {
                    HostMessage::Ack { seq } => outbox.acknowledge(seq),
                    HostMessage::Policy(order) => orders.push(Order::Policy(order)),
                    HostMessage::Stop { grace_ms } => orders.push(Order::Stop { grace_ms }),
                    HostMessage::Welcome(_) | HostMessage::Unknown => {}
                }
            }
        }
        if ready.is_writable() {
            self.write(outbox)?;
        }
        Ok(orders)
    }

    /// When a word last came.
    pub(super) const fn heard(&self) -> Instant {
        self.heard
    }

    fn write(&self, outbox: &mut Outbox) -> io::Result<()> {
        loop {
            let slices = outbox.next_slices();
            if slices.is_empty() {
                return Ok(());
            }
            match self.stream.try_write_vectored(&slices) {
                Ok(count) => outbox.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.try_read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.heard = Instant::now();
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
