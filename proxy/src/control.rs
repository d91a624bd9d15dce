//! The link to PID 1: what the proxy is handed before it serves, and orders while it does.
//!
//! It is the proxy's standard input, made before the proxy existed, so that nothing has to be found
//! or opened. Its end is the end of PID 1, and so of the proxy.

use std::{
    io::{self, IoSliceMut, Write as _},
    mem::MaybeUninit,
    net::{TcpListener, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use report::{
    FrameError, FrameReader, Printable, encode,
    link::{FromProxy, Ingress, MAX_FRAME, Start, Succession, ToProxy},
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType,
    recvmsg, sockopt,
};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};

/// A socket that PID 1 bound.
#[derive(Debug)]
pub enum Listener {
    /// One that accepts connections, and how they arrive at it.
    Streams(Ingress, TcpListener),
    /// One at which DNS questions arrive.
    Datagrams(UdpSocket),
}

/// The link to PID 1 before the proxy serves.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    frames: FrameReader,
    descriptors: Vec<OwnedFd>,
}

/// Why the proxy was not handed what it needs.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("cannot read from PID 1")]
    Read(#[from] io::Error),
    /// What was read is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// PID 1 ended the link.
    #[error("PID 1 closed the link before `{awaited}`")]
    Closed {
        /// The message that was awaited.
        awaited: &'static str,
    },
    /// PID 1 sent another message than it should have.
    #[error("PID 1 sent another message where `{awaited}` was due")]
    Unexpected {
        /// The message that was due.
        awaited: &'static str,
    },
    /// There are not as many descriptors as were announced, or none.
    #[error("`listeners` announces {announced} sockets and carries {carried}")]
    Count {
        /// The sockets that were announced.
        announced: usize,
        /// The descriptors that came.
        carried: usize,
    },
    /// A descriptor is something else than it was announced as.
    #[error("descriptor {position} of `listeners` is not the socket that its kind asks for")]
    NotListening {
        /// Which one, counted from 1.
        position: usize,
    },
}

/// The reading side while the proxy serves.
#[derive(Debug)]
pub(crate) struct Orders {
    link: OwnedReadHalf,
    frames: FrameReader,
}

/// What PID 1 wants of a proxy that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// To stop accepting, report what is left, and say so.
    Drain,
    /// To say what was counted so far.
    Hurry,
    /// To decide by another list.
    Policy(Box<Succession>),
    /// To hear the answer to a request.
    Opened {
        /// Of which request.
        id: u64,
        /// Whether it was done.
        opened: bool,
    },
    /// Nothing more: PID 1 is gone, or speaks nonsense.
    Gone,
}

impl Link {
    /// Takes over standard input; `None` if it is not one end of a socket pair, as when the proxy
    /// is started by hand.
    #[must_use]
    pub fn inherit() -> Option<Self> {
        let input = rustix::stdio::stdin();
        let is_stream = sockopt::socket_type(input).ok()? == SocketType::STREAM;
        let is_unix = sockopt::socket_domain(input).ok()? == AddressFamily::UNIX;
        let socket = input
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .filter(|_| is_stream && is_unix)?;
        Some(Self::new(socket.into()))
    }

    /// A link over `socket`.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            frames: FrameReader::new(MAX_FRAME),
            descriptors: Vec::new(),
        }
    }

    /// Waits for everything that the proxy needs before it serves.
    pub fn receive(&mut self) -> Result<(Vec<Listener>, Start), LinkError> {
        let ToProxy::Listeners { kinds } = self.next("listeners")? else {
            return Err(LinkError::Unexpected {
                awaited: "listeners",
            });
        };
        let listeners = self.listeners(&kinds)?;
        match self.next("start")? {
            ToProxy::Start(start) => Ok((listeners, *start)),
            ToProxy::Listeners { .. }
            | ToProxy::Policy(_)
            | ToProxy::Opened { .. }
            | ToProxy::Hurry
            | ToProxy::Drain => Err(LinkError::Unexpected { awaited: "start" }),
        }
    }

    /// Tells PID 1 that the proxy cannot work, and why.
    pub fn fail(&mut self, error: &dyn std::error::Error) {
        let detail = Printable::new(&with_causes(error));
        if let Ok(line) = encode(&FromProxy::Failed { detail }, MAX_FRAME) {
            // If it cannot be told, the end of the link tells.
            let _ = self.socket.write_all(&line);
        }
    }

    /// Splits the link for a proxy that serves. Within a tokio runtime.
    pub(crate) fn serve(self) -> io::Result<(Orders, OwnedWriteHalf)> {
        self.socket.set_nonblocking(true)?;
        let (link, replies) = tokio::net::UnixStream::from_std(self.socket)?.into_split();
        Ok((
            Orders {
                link,
                frames: self.frames,
            },
            replies,
        ))
    }

    fn next(&mut self, awaited: &'static str) -> Result<ToProxy, LinkError> {
        loop {
            if let Some(line) = self.frames.next_line()? {
                return Ok(serde_json::from_slice(line).map_err(FrameError::Json)?);
            }
            if self.read()? == 0 {
                return Err(LinkError::Closed { awaited });
            }
        }
    }

    /// Reads bytes, and the descriptors that come with them.
    fn read(&mut self) -> Result<usize, LinkError> {
        let mut bytes = vec![0; READ_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(
                &self.socket,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.map_err(io::Error::from)?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let carried = self.descriptors.len();
            return Err(LinkError::Count {
                announced: carried + 1,
                carried,
            });
        }
        self.frames
            .push(bytes.get(..received.bytes).unwrap_or_default());
        Ok(received.bytes)
    }

    fn listeners(&mut self, kinds: &[Ingress]) -> Result<Vec<Listener>, LinkError> {
        let descriptors = std::mem::take(&mut self.descriptors);
        let (announced, carried) = (kinds.len(), descriptors.len());
        if announced != carried || carried == 0 {
            return Err(LinkError::Count { announced, carried });
        }
        let pairs = kinds.iter().zip(descriptors).enumerate();
        pairs
            .map(|(index, (kind, descriptor))| listener(*kind, descriptor, index + 1))
            .collect()
    }
}

impl Orders {
    /// Waits for the next order. Safe to drop and to call again.
    pub(crate) async fn next(&mut self) -> Order {
        loop {
            match self.frames.next_line() {
                Ok(Some(line)) => return order(line),
                Ok(None) => {}
                Err(_) => return Order::Gone,
            }
            let mut bytes = [0; 4096];
            match self.link.read(&mut bytes).await {
                Ok(length @ 1..) => self.frames.push(bytes.get(..length).unwrap_or_default()),
                Ok(0) | Err(_) => return Order::Gone,
            }
        }
    }
}

fn order(line: &[u8]) -> Order {
    match serde_json::from_slice(line) {
        Ok(ToProxy::Hurry) => Order::Hurry,
        Ok(ToProxy::Drain) => Order::Drain,
        Ok(ToProxy::Policy(next)) => Order::Policy(next),
        Ok(ToProxy::Opened { id, opened }) => Order::Opened { id, opened },
        Ok(ToProxy::Listeners { .. } | ToProxy::Start(_)) | Err(_) => Order::Gone,
    }
}

fn listener(kind: Ingress, descriptor: OwnedFd, position: usize) -> Result<Listener, LinkError> {
    let family = sockopt::socket_domain(&descriptor);
    let is_ip = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6));
    let of = sockopt::socket_type(&descriptor);
    let listens = sockopt::socket_acceptconn(&descriptor) == Ok(true);
    match kind {
        Ingress::DnsUdp if is_ip && of == Ok(SocketType::DGRAM) => {
            let socket = UdpSocket::from(descriptor);
            socket.set_nonblocking(true)?;
            Ok(Listener::Datagrams(socket))
        }
        Ingress::Explicit | Ingress::Redirect | Ingress::Dns
            if is_ip && of == Ok(SocketType::STREAM) && listens =>
        {
            let listener = TcpListener::from(descriptor);
            listener.set_nonblocking(true)?;
            Ok(Listener::Streams(kind, listener))
        }
        Ingress::Explicit | Ingress::Redirect | Ingress::Dns | Ingress::DnsUdp => {
            Err(LinkError::NotListening { position })
        }
    }
}

/// An error and what caused it, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        line.push_str(": ");
        line.push_str(&next.to_string());
        cause = next.source();
    }
    line
}

const READ_SIZE: usize = 64 * 1024;
const MAX_LISTENERS: usize = 16;

#[cfg(test)]
mod tests {
    use std::{io::Read as _, thread};

    use super::*;

    fn link() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::new(ours), theirs)
    }

    fn descriptor() -> OwnedFd {
        TcpListener::bind("127.0.0.1:0").unwrap().into()
    }

    fn datagrams() -> OwnedFd {
        UdpSocket::bind("127.0.0.1:0").unwrap().into()
    }

    fn listeners(kinds: &[Ingress], descriptors: Vec<OwnedFd>) -> Result<Vec<Listener>, LinkError> {
        let (mut link, _pid1) = link();
        link.descriptors = descriptors;
        link.listeners(kinds)
    }

    #[test]
    fn descriptors_are_taken_in_the_order_of_their_kinds() {
        let both = [descriptor(), descriptor(), datagrams()];
        let addresses = both.each_ref().map(|descriptor| {
            TcpListener::from(descriptor.try_clone().unwrap())
                .local_addr()
                .unwrap()
        });
        let taken = listeners(
            &[Ingress::Redirect, Ingress::Dns, Ingress::DnsUdp],
            both.into(),
        )
        .unwrap();
        let taken: Vec<_> = taken
            .iter()
            .map(|listener| match listener {
                Listener::Streams(kind, socket) => (*kind, socket.local_addr().unwrap()),
                Listener::Datagrams(socket) => (Ingress::DnsUdp, socket.local_addr().unwrap()),
            })
            .collect();
        assert_eq!(
            taken,
            [
                (Ingress::Redirect, addresses[0]),
                (Ingress::Dns, addresses[1]),
                (Ingress::DnsUdp, addresses[2]),
            ]
        );
    }

    #[test]
    fn as_many_descriptors_must_come_as_were_announced() {
        for (kinds, carried) in [
            (&[Ingress::Explicit, Ingress::Redirect][..], 1),
            (&[Ingress::Explicit], 2),
            (&[Ingress::Explicit], 0),
            (&[], 0),
        ] {
            let descriptors = (0..carried).map(|_| descriptor()).collect();
            let error = listeners(kinds, descriptors).unwrap_err();
            assert!(
                matches!(error, LinkError::Count { .. }),
                "{kinds:?}, {carried}: {error}"
            );
        }
    }

    #[test]
    fn what_does_not_listen_is_refused_by_its_position() {
        let connected =
            std::net::TcpStream::connect(TcpListener::from(descriptor()).local_addr().unwrap());
        let unix: OwnedFd = UnixStream::pair().unwrap().0.into();
        for wrong in [unix, datagrams()]
            .into_iter()
            .chain(connected.map(OwnedFd::from))
        {
            let both = [Ingress::Explicit, Ingress::Redirect];
            let error = listeners(&both, vec![descriptor(), wrong]).unwrap_err();
            assert!(
                matches!(error, LinkError::NotListening { position: 2 }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_socket_that_accepts_is_none_for_datagrams() {
        let error = listeners(&[Ingress::DnsUdp], vec![descriptor()]).unwrap_err();
        assert!(
            matches!(error, LinkError::NotListening { position: 1 }),
            "{error}"
        );
    }

    #[test]
    fn a_message_may_come_in_pieces() {
        let (mut link, mut pid1) = link();
        let sender = thread::spawn(move || {
            for piece in [&b"{\"type\":\"dr"[..], b"ain\"}", b"\n"] {
                pid1.write_all(piece).unwrap();
            }
        });
        assert_eq!(link.next("drain").unwrap(), ToProxy::Drain);
        sender.join().unwrap();
    }

    #[test]
    fn an_end_names_what_was_awaited() {
        let (mut link, pid1) = link();
        drop(pid1);
        assert_eq!(
            link.next("start").unwrap_err().to_string(),
            "PID 1 closed the link before `start`"
        );
    }

    #[test]
    fn nonsense_is_no_message() {
        for nonsense in [&b"\n"[..], b"{}\n", b"{\"type\":\"start\"}\n", b"\xff\n"] {
            let (mut link, mut pid1) = link();
            pid1.write_all(nonsense).unwrap();
            assert!(
                matches!(link.receive(), Err(LinkError::Frame(_))),
                "{nonsense:?}"
            );
        }
    }

    #[test]
    fn a_failure_is_told_with_its_causes_in_one_line() {
        let (mut link, mut pid1) = link();
        link.fail(&LinkError::Read(io::Error::other("a\nb")));
        drop(link);
        let mut told = String::new();
        pid1.read_to_string(&mut told).unwrap();
        assert_eq!(
            told,
            "{\"type\":\"failed\",\"detail\":\"cannot read from PID 1: a\\\\u{a}b\"}\n"
        );
    }

    #[tokio::test]
    async fn orders_are_drained_or_gone() {
        for (sent, order) in [
            (&b"{\"type\":\"drain\"}\n"[..], Order::Drain),
            (b"{\"type\":\"hurry\"}\n", Order::Hurry),
            (
                b"{\"type\":\"opened\",\"id\":7,\"opened\":false}\n",
                Order::Opened {
                    id: 7,
                    opened: false,
                },
            ),
            (
                b"{\"type\":\"policy\",\"generation\":2,\"allow\":[\"a.example\"],\"policy_digest\":\"d\"}\n",
                Order::Policy(Box::new(Succession {
                    generation: 2,
                    allow: vec!["a.example".into()],
                    policy_digest: "d".into(),
                })),
            ),
            (b"", Order::Gone),
            (b"{\"type\":\"listeners\",\"kinds\":[]}\n", Order::Gone),
            (b"nonsense\n", Order::Gone),
        ] {
            let (link, mut pid1) = link();
            let (mut orders, _replies) = link.serve().unwrap();
            pid1.write_all(sent).unwrap();
            drop(pid1);
            assert_eq!(
                orders.next().await,
                order,
                "{}",
                String::from_utf8_lossy(sent)
            );
        }
    }
}
