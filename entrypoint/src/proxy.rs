//! The proxy as a child of PID 1: started without privileges, told everything over one socket.

use std::{
    io::{self, IoSlice, Write as _},
    mem::MaybeUninit,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use report::{
    FrameReader, Printable, encode,
    link::{self, FromProxy, Start, Succession, ToProxy},
};
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    failure::Failure, guest::Ended, identity::Unprivileged, launch::Launch, link::Link,
    listeners::Listeners,
};

/// A proxy that serves.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Its process.
    pub(crate) pid: i32,
    link: Link,
}

/// A proxy that has yet to serve.
#[derive(Debug)]
pub(crate) struct Starting {
    proxy: Proxy,
    deadline: Instant,
}

impl Starting {
    /// Its process.
    pub(crate) const fn pid(&self) -> i32 {
        self.proxy.pid
    }

    /// Waits until it serves, without polling: it says so. Cancelled, it can be waited for again.
    pub(crate) async fn served(&mut self) -> Result<Vec<Printable>, Failure> {
        let first = timeout_at(self.deadline, self.proxy.next());
        let why = match first.await {
            Ok(Ok(FromProxy::Ready { degradations, .. })) => return Ok(degradations),
            Ok(Ok(FromProxy::Failed { detail })) => io::Error::other(detail.to_string()),
            Ok(Ok(
                FromProxy::Denied(_)
                | FromProxy::Allowed(_)
                | FromProxy::Open(_)
                | FromProxy::Policy { .. }
                | FromProxy::Drained,
            )) => io::Error::other("it spoke before it was ready"),
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::other("it ended without a word")
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => io::Error::other("it was not ready within 5 s"),
        };
        Err(fail(why))
    }

    /// The proxy, which has said that it serves.
    pub(crate) fn into_proxy(self) -> Proxy {
        self.proxy
    }
}

impl Proxy {
    /// Starts the proxy and waits until it serves.
    pub(crate) async fn start(
        identity: &Unprivileged,
        listeners: &Listeners,
        start: &Start,
    ) -> Result<(Self, Vec<Printable>), Failure> {
        let mut starting = Self::spawn(identity, listeners, start)?;
        match starting.served().await {
            Ok(degradations) => Ok((starting.proxy, degradations)),
            Err(failure) => {
                kill(starting.pid());
                Err(failure)
            }
        }
    }

    /// Starts the proxy and tells it all that it must know.
    ///
    /// Must be called within the runtime.
    pub(crate) fn spawn(
        identity: &Unprivileged,
        listeners: &Listeners,
        start: &Start,
    ) -> Result<Starting, Failure> {
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        let child = Launch::confined(identity)?
            .spawn(
                Command::new(executable()?)
                    .env_clear()
                    .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null()),
            )
            .map_err(fail)?;
        let pid = child.id().cast_signed();
        let link = introduce(ours, listeners, start).map_err(|error| {
            kill(pid);
            fail(error)
        })?;
        Ok(Starting {
            proxy: Self { pid, link },
            deadline: Instant::now() + PATIENCE,
        })
    }

    /// The proxy's next message.
    ///
    /// # Errors
    /// When it is gone, or no longer makes sense, which is the same to its parent.
    pub(crate) async fn next(&mut self) -> io::Result<FromProxy> {
        self.link.next().await
    }

    /// Ends it, and tells how it ended: by itself, if it was about to.
    ///
    /// Nobody has waited for it yet, so that its id is still its own.
    pub(crate) fn end(&self) -> Option<Ended> {
        kill(self.pid);
        let (_, status) = waitpid(Pid::from_raw(self.pid), WaitOptions::empty()).ok()??;
        Ended::of(status)
    }

    /// Asks it to end its relays and to report what they carried.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        self.tell(&ToProxy::Drain)
    }

    /// Answers [`FromProxy::Open`].
    pub(crate) fn opened(&mut self, id: u64, opened: bool) -> io::Result<()> {
        // Whoever asks and does not read is not answered: what waits to be sent has a bound.
        if self.link.unsent() > MOST_UNSENT {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.tell(&ToProxy::Opened { id, opened })
    }

    /// Has it say what it has counted so far.
    pub(crate) fn hurry(&mut self) -> io::Result<()> {
        self.tell(&ToProxy::Hurry)
    }

    /// Has it decide by another list; its answer is [`FromProxy::Policy`].
    pub(crate) fn succeed(&mut self, next: Succession) -> io::Result<()> {
        self.tell(&ToProxy::Policy(Box::new(next)))
    }

    fn tell(&mut self, message: &ToProxy) -> io::Result<()> {
        self.link
            .say(encode(message, link::MAX_FRAME).map_err(io::Error::other)?)
    }
}

/// Tells a proxy all that it must know. What does not fit into the socket, as a list may not, goes
/// while its answer is waited for.
fn introduce(stream: UnixStream, listeners: &Listeners, start: &Start) -> io::Result<Link> {
    hand_over(&stream, listeners)?;
    let mut link = Link::new(stream, FrameReader::new(link::MAX_FRAME))?;
    let message = encode(&ToProxy::Start(Box::new(start.clone())), link::MAX_FRAME);
    link.say(message.map_err(io::Error::other)?)?;
    Ok(link)
}

fn fail(error: io::Error) -> Failure {
    Failure::setup(STEP, error, "check the image's sandbox-egress-proxy")
}

/// Ends a proxy that nobody has waited for yet. One that only takes too long has the listeners, and
/// would serve beside the next.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // If it has ended by itself, that is what was wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The descriptors go with the first byte of the message that says what they are.
fn hand_over(stream: &UnixStream, listeners: &Listeners) -> io::Result<()> {
    let (kinds, sockets): (Vec<_>, Vec<_>) = listeners.all().into_iter().unzip();
    let line = encode(&ToProxy::Listeners { kinds }, link::MAX_FRAME).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(io::Error::other("more listeners than a message carries"));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&line)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    let mut stream = stream;
    stream.write_all(line.get(sent..).unwrap_or_default())
}

/// Beside PID 1's own executable: wherever an image puts the two, they are put together.
pub(crate) fn executable() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(Failure::system(STEP))?;
    let path = own.with_file_name(NAME);
    if path.is_file() {
        return Ok(path);
    }
    let cause = format!("no {} in the image", path.display());
    Err(Failure::setup(
        STEP,
        cause,
        "copy it from the layer image, see images/README.md",
    ))
}

const MAX_LISTENERS: usize = 16;
const NAME: &str = "sandbox-egress-proxy";
const STEP: &str = "start the proxy";
/// Bytes of unread messages beyond which nothing is answered; a list comes in addition.
const MOST_UNSENT: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
impl Proxy {
    /// A proxy that has only a socket.
    pub(crate) fn over(stream: UnixStream) -> Self {
        Self {
            pid: 0,
            link: Link::new(stream, FrameReader::new(link::MAX_FRAME)).unwrap(),
        }
    }
}

#[cfg(test)]
impl Starting {
    /// One that has only a socket.
    pub(crate) fn over(stream: UnixStream) -> Self {
        Self {
            proxy: Proxy::over(stream),
            deadline: Instant::now() + PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    #[test]
    fn the_listeners_arrive_with_the_message_that_names_them() {
        let listeners = Listeners::on_any_port();
        let (ours, theirs) = UnixStream::pair().unwrap();
        hand_over(&ours, &listeners).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 512];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(
            &theirs,
            &mut [io::IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            flags,
        )
        .unwrap();
        let message: ToProxy = serde_json::from_slice(&bytes[..received.bytes]).unwrap();
        let ToProxy::Listeners { kinds } = message else {
            panic!("{message:?}")
        };
        let count: usize = ancillary
            .drain()
            .map(|message| {
                if let RecvAncillaryMessage::ScmRights(sockets) = message {
                    sockets.count()
                } else {
                    0
                }
            })
            .sum();
        assert_eq!(count, kinds.len());
        assert!(kinds.contains(&link::Ingress::Redirect));
    }

    /// What is made of a proxy that has said this and ended.
    async fn after(said: &[u8]) -> Result<Vec<Printable>, String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(said).unwrap();
        drop(theirs);
        let mut starting = Starting::over(ours);
        let served = starting.served().await;
        served.map_err(|failure| failure.one_line())
    }

    #[tokio::test]
    async fn a_proxy_serves_when_it_says_so_and_not_before() {
        let ready = b"{\"type\":\"ready\",\"version\":\"1\",\"degradations\":[\"no x\"]}\n";
        assert_eq!(after(ready).await.unwrap(), [Printable::new("no x")]);
        for (said, why) in [
            (&b""[..], "it ended without a word"),
            (&ready[..9], "it ended without a word"),
            (b"{\"type\":\"failed\",\"detail\":\"no y\"}\n", "no y"),
            (b"{\"type\":\"drained\"}\n", "it spoke before it was ready"),
        ] {
            let failure = after(said).await.unwrap_err();
            assert!(failure.contains(why), "{failure}");
        }
        for rubbish in [&b"hello\n"[..], b"{}\n", b"\n"] {
            assert!(after(rubbish).await.is_err(), "{rubbish:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_says_nothing_is_waited_for_so_long_and_no_longer() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut starting = Starting::over(ours);
        let began = Instant::now();
        // Looking away meanwhile gives it no more time.
        let look = Duration::from_secs(2);
        assert!(tokio::time::timeout(look, starting.served()).await.is_err());
        let failure = starting.served().await.unwrap_err().one_line();
        assert!(failure.contains("it was not ready within 5 s"), "{failure}");
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
    }

    #[tokio::test]
    async fn a_list_that_no_buffer_holds_is_sent_while_the_proxy_is_listened_to() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let next = Succession {
            generation: 2,
            allow: vec!["x".repeat(250); 20_000],
            policy_digest: "d".into(),
        };
        let sent = next.clone();
        let proxy = std::thread::spawn(move || {
            let mut reader = FrameReader::new(link::MAX_FRAME);
            let mut buffer = vec![0; 65_536];
            loop {
                if let Some(line) = reader.next_line().unwrap() {
                    let read: ToProxy = serde_json::from_slice(line).unwrap();
                    assert_eq!(read, ToProxy::Policy(Box::new(sent)));
                    return (&theirs).write_all(b"{\"type\":\"drained\"}\n").unwrap();
                }
                let count = io::Read::read(&mut (&theirs), &mut buffer).unwrap();
                reader.push(&buffer[..count]);
            }
        });
        let mut listening = Proxy::over(ours);
        listening.succeed(next).unwrap();
        assert_eq!(listening.next().await.unwrap(), FromProxy::Drained);
        proxy.join().unwrap();
    }

    #[tokio::test]
    async fn what_a_proxy_does_not_read_has_a_bound() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut deaf = Proxy::over(ours);
        let answered = (0..1_000_000).take_while(|id| deaf.opened(*id, true).is_ok());
        assert!(answered.count() < 1_000_000);
        assert!(deaf.link.unsent() < 2 * MOST_UNSENT);
    }
}
