//! The conversation with the admitted container: read, journal, acknowledge, until it ends.

use std::{
    io,
    ops::ControlFlow,
    pin::Pin,
    time::{Duration, Instant},
};

use report::{
    Account, FrameError, FrameReader, HostMessage, PROTOCOL, PeerEnd, Received, Report, Seed,
    Welcome,
};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use tokio::{io::Interest, net::UnixStream, time::timeout};

use super::{
    allowance::Allowance, attendance::Reports, greeting::Greeted, journal::Journal, orders::Orders,
    peer::Peer, voice::Voice, way::Transport,
};

/// Why the collector hung up on a container.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// After a line that is too long nothing can be told apart.
    #[error("the channel was closed after {0}")]
    Frame(#[from] FrameError),
    /// The connection broke.
    #[error("the channel broke: {0}")]
    Io(#[from] io::Error),
}

/// What a session takes up: nothing yet, or what another collector has left.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) account: Account,
    pub(crate) resumed: u64,
}

/// What the container is told and the guest must not know.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) resume_token: String,
    pub(crate) seed: Seed,
}

/// One admitted container.
pub(crate) struct Session<'a> {
    stream: UnixStream,
    reader: FrameReader,
    voice: Voice,
    journal: &'a mut Journal,
    account: Account,
    resumed: u64,
    on_message: &'a mut (dyn FnMut(&Received) + Send),
    orders: Option<&'a mut Orders>,
}

impl<'a> Session<'a> {
    /// Journals the hello of a newcomer, and welcomes its sender.
    pub(crate) fn welcome(
        greeted: Greeted,
        secrets: Secrets,
        taken: Taken,
        journal: &'a mut Journal,
        on_message: &'a mut (dyn FnMut(&Received) + Send),
    ) -> (Self, Peer) {
        let Greeted {
            stream,
            peer,
            hello,
            reader,
        } = greeted;
        let mut session = Self {
            stream,
            reader,
            voice: Voice::default(),
            journal,
            account: taken.account,
            resumed: taken.resumed,
            on_message,
            orders: None,
        };
        if let Some(hello) = hello {
            session.journal.append(&hello.journal_line());
            session.note(&hello.message);
        }
        let stored = session.account.sequence().last();
        session.voice.say(&HostMessage::Welcome(Welcome {
            protocol: PROTOCOL,
            resume_token: secrets.resume_token,
            stored,
            seed: Some(secrets.seed),
        }));
        session.voice.acknowledge(stored);
        (session, peer)
    }

    /// Hands on what comes out of `orders`, after what was said in vain.
    pub(crate) fn with_orders(mut self, orders: &'a mut Orders) -> Self {
        for order in orders.unanswered() {
            self.voice.say(order);
        }
        Self {
            orders: Some(orders),
            ..self
        }
    }

    /// Listens until the peer has ended, or until `over` says that the run has.
    pub(crate) async fn listen(
        mut self,
        peer: Peer,
        mut over: Pin<&mut impl Future<Output = PeerEnd>>,
    ) -> Heard {
        let heard = self.hear(&peer, over.as_mut()).await;
        // Nothing more can be read; what is left to learn is whether the sender is gone.
        let (fault, end) = match heard {
            Ok(End::Over(container)) => (None, peer.state(container)),
            Ok(End::Closed) | Err(Fault::Io(_)) if peer.is_contained() => {
                self.hang_up();
                // The channel of a container that has ended breaks a moment before that is known.
                match timeout(RESPITE, over).await {
                    Ok(container) => (None, container),
                    Err(_) => {
                        return Heard::Cut(self.reports(None, PeerEnd::Alive, Transport::Exec));
                    }
                }
            }
            Ok(End::Closed) => (None, self.outlast(&peer, over).await),
            Err(fault) => (Some(fault), self.outlast(&peer, over).await),
        };
        let transport = if peer.is_contained() {
            Transport::Exec
        } else {
            Transport::Socket
        };
        Heard::Out(self.reports(fault, end, transport))
    }

    fn reports(self, fault: Option<Fault>, peer: PeerEnd, transport: Transport) -> Reports {
        Reports {
            account: self.account,
            peer,
            fault,
            resumed: self.resumed,
            transport,
        }
    }

    /// The other end must see the end of the channel, or it would wait for acknowledgements.
    fn hang_up(&self) {
        let _ = shutdown(&self.stream, Shutdown::Both);
    }

    /// Hangs up and waits for the peer's end.
    async fn outlast(
        &mut self,
        peer: &Peer,
        over: Pin<&mut impl Future<Output = PeerEnd>>,
    ) -> PeerEnd {
        self.hang_up();
        tokio::select! {
            () = peer.exited() => PeerEnd::Exited,
            container = over => peer.settled(container).await,
        }
    }

    async fn hear(
        &mut self,
        peer: &Peer,
        mut over: Pin<&mut impl Future<Output = PeerEnd>>,
    ) -> Result<End, Fault> {
        let mut allowance = Allowance::new(BYTES_PER_SECOND, Instant::now());
        let mut paused = None;
        let mut heard = Instant::now();
        // What came with the hello is waiting already.
        self.take(&[])?;
        loop {
            self.voice.speak(&self.stream);
            tokio::select! {
                biased;
                ready = self.stream.readable(), if paused.is_none() => {
                    ready?;
                    let read = self.read_some(read_all)?;
                    let ControlFlow::Continue(count) = read else { return Ok(End::Closed) };
                    heard = Instant::now();
                    paused = allowance.spend(count, Instant::now());
                }
                () = until(paused), if paused.is_some() => paused = None,
                ready = self.stream.writable(), if self.voice.is_held_up() => ready?,
                // One at a time, so that a container that does not listen costs no memory.
                Some(order) = next(&mut self.orders), if !self.voice.is_held_up() => {
                    self.voice.say(&order);
                }
                () = peer.exited() => return self.drain(End::Closed),
                container = over.as_mut() => {
                    if peer.is_contained() {
                        let _ = timeout(LAST_WORDS, self.read_to_end()).await;
                    } else {
                        peer.settled(container).await;
                    }
                    return self.drain(End::Over(container));
                }
                // A network may lie between, of whose end nobody tells.
                () = until(Some(heard + SILENCE)), if peer.is_contained() => {
                    return Err(Fault::Io(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    }

    /// Reads what of a container that has ended is still on its way through the engine.
    async fn read_to_end(&mut self) -> Result<(), Fault> {
        loop {
            self.stream.readable().await?;
            if self.read_some(UnixStream::try_read)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Takes what a peer that has ended left behind.
    fn drain(&mut self, end: End) -> Result<End, Fault> {
        let mut left = DRAINED_AT_MOST;
        while left > 0 {
            // Asked of the kernel, for the runtime may not have been told of the last bytes yet.
            let read = |stream: &UnixStream, buffer: &mut [u8]| {
                let (count, _) = recv(stream, buffer, RecvFlags::DONTWAIT)?;
                Ok(count)
            };
            match self.read_some(read)? {
                ControlFlow::Continue(0) | ControlFlow::Break(()) => break,
                ControlFlow::Continue(count) => left = left.saturating_sub(count),
            }
        }
        Ok(end)
    }

    /// Reads what is there: so many bytes, none if nothing is, or the end.
    fn read_some(
        &mut self,
        read: impl FnOnce(&UnixStream, &mut [u8]) -> io::Result<usize>,
    ) -> Result<ControlFlow<(), usize>, Fault> {
        let mut buffer = [0; 16 * 1024];
        match read(&self.stream, &mut buffer) {
            Ok(0) => Ok(ControlFlow::Break(())),
            Ok(count) => {
                self.take(buffer.get(..count).unwrap_or_default())?;
                Ok(ControlFlow::Continue(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(ControlFlow::Continue(0)),
            // The peer died with our words unread: that is an end like any other.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Ok(ControlFlow::Break(()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Journals the whole lines among what was read, and acknowledges them after that.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.reader.push(bytes);
        let (mut lines, mut messages) = (String::new(), Vec::new());
        let ended = loop {
            match self.reader.next_line() {
                Ok(Some(line)) => {
                    if let Ok(report) = Report::read(line) {
                        lines.push_str(&report.journal_line());
                        messages.push(report.message);
                    } else {
                        lines.push_str(UNREADABLE);
                        self.account.note_unreadable();
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
        };
        self.journal.append(&lines);
        for message in &messages {
            self.note(message);
            self.voice.acknowledge(message.seq);
        }
        ended
    }

    fn note(&mut self, message: &Received) {
        self.account.apply(message);
        if let Some(orders) = &mut self.orders {
            orders.hear(message);
        }
        (self.on_message)(message);
    }
}

/// Reads what is there. Where that is less than there is room for, it was all, and what comes later is
/// told of anew (`epoll(7)`, edge-triggered): nothing is asked for it, which of many runs that say a
/// line now and then would be every other call.
fn read_all(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = None;
    // In one step, so that what comes meanwhile is not taken for what was read.
    let tried = stream.try_io(Interest::READABLE, || {
        let room = buffer.len();
        let (count, _) = recv(stream, &mut *buffer, RecvFlags::DONTWAIT)?;
        read = Some(count);
        if (1..room).contains(&count) {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(())
        }
    });
    read.map_or_else(|| tried.map(|()| 0), Ok)
}

/// What came of a session.
#[derive(Debug)]
pub(crate) enum Heard {
    /// All that will be heard.
    Out(Reports),
    /// What was heard until the engine stopped bringing the channel, of a container that goes on.
    Cut(Reports),
}

/// How hearing a peer ended.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Nothing more can come.
    Closed,
    /// The run is over, whatever the peer does, and the engine says this of the container.
    Over(PeerEnd),
}

/// The next order; `None` if there will be none.
async fn next(orders: &mut Option<&mut Orders>) -> Option<HostMessage> {
    orders.as_mut()?.next().await
}

async fn until(instant: Option<Instant>) {
    if let Some(instant) = instant {
        tokio::time::sleep_until(instant.into()).await;
    }
}

/// Stands in the journal for a line that was no message, and is none itself.
pub(crate) const UNREADABLE: &str = "{\"unreadable\":true}\n";
/// Ten times what a container sends that reports as often as it may.
const BYTES_PER_SECOND: u32 = 4 * 1024 * 1024;
/// Four heartbeats, none of which has come.
const SILENCE: Duration = Duration::from_secs(20);
/// Between the end of a channel through the engine and the engine's word on the container.
const RESPITE: Duration = Duration::from_millis(500);
/// For an engine to hand over what a container said before it ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// More than fits into the buffers of a socket.
const DRAINED_AT_MOST: usize = 4 * 1024 * 1024;
