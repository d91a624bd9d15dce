//! A proxy that serves one test, and PID 1's side of its link.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{LazyLock, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use policy::{DenyReason, Policy};
use report::{
    RunClock,
    link::{FromProxy, Ingress, Start, ToProxy},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sandbox_egress_proxy::{Link, StartError, Startup, UnforeseenCalls};
use socket2::{Domain, Socket, Type};

use crate::dns;

/// A proxy, and everything around it.
pub(crate) struct Proxy {
    pub(crate) explicit: SocketAddr,
    redirect: SocketAddr,
    /// Where questions arrive: over TCP, and over UDP.
    pub(crate) questions: [SocketAddr; 2],
    pub(crate) pid1: Pid1,
    serving: JoinHandle<Result<(), StartError>>,
}

/// What a test asks for besides an allowlist.
pub(crate) struct Setup<'a> {
    pub(crate) names: &'a [(&'a str, &'a [IpAddr])],
    pub(crate) max_connections: u32,
    pub(crate) upstream_proxy: Option<String>,
}

/// PID 1's side of the link.
pub(crate) struct Pid1 {
    link: BufReader<UnixStream>,
}

/// Everything that was reported, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) denied: BTreeMap<(String, DenyReason), u64>,
    /// By target: connections, failures, bytes up, bytes down.
    pub(crate) allowed: BTreeMap<String, [u64; 4]>,
    pub(crate) ech_offered: u64,
}

/// A client of the proxy.
pub(crate) struct Client(pub(crate) TcpStream);

/// A response: its head, and what followed.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longer than anything here takes: a test that hangs fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

impl Default for Setup<'_> {
    fn default() -> Self {
        let names: &[(&str, &[IpAddr])] =
            &[("origin.test", &[LOOPBACK]), ("other.test", &[LOOPBACK])];
        Self {
            names,
            max_connections: 64,
            upstream_proxy: None,
        }
    }
}

impl Proxy {
    /// With `origin.test` and `other.test` on loopback.
    pub(crate) fn start(allow: &[&str]) -> Self {
        Self::with(allow, &Setup::default())
    }

    pub(crate) fn with(allow: &[&str], setup: &Setup<'_>) -> Self {
        let resolver = dns::serve(setup.names);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = thread::spawn(move || {
            give_memory_back();
            let mut startup = Startup::receive(Link::new(theirs))?;
            startup.settings.resolvers = vec![resolver];
            startup.settings.original_destination = meant_for;
            // The proxy is this thread alone, and confined as it is in production, but for this: a
            // call that the filter's list lacks ends the tests instead of failing unseen.
            startup.settings.unforeseen_calls = UnforeseenCalls::End;
            startup.serve(Vec::new())
        });
        let mut pid1 = Pid1::new(ours);
        let sockets = [listener(), listener(), listener()];
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let [explicit, redirect, dns] = sockets
            .each_ref()
            .map(|socket| socket.local_addr().unwrap());
        pid1.hand_over(&[
            (Ingress::Explicit, sockets[0].as_fd()),
            (Ingress::Redirect, sockets[1].as_fd()),
            (Ingress::Dns, sockets[2].as_fd()),
            (Ingress::DnsUdp, datagrams.as_fd()),
        ]);
        let start = Start {
            max_connections: setup.max_connections,
            upstream_proxy: setup.upstream_proxy.clone(),
            ..start(allow)
        };
        pid1.send(&ToProxy::Start(Box::new(start)));
        let ready = pid1.receive();
        assert!(matches!(ready, FromProxy::Ready { .. }), "{ready:?}");
        Self {
            explicit,
            redirect,
            questions: [dns, datagrams.local_addr().unwrap()],
            pid1,
            serving,
        }
    }

    /// A client that knows of the proxy.
    pub(crate) fn client(&self) -> Client {
        Client::to(self.explicit)
    }

    /// A client whose connection to `dialled` was redirected to the proxy.
    pub(crate) fn redirected(&self, dialled: SocketAddr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
            .unwrap();
        let own = socket.local_addr().unwrap().as_socket().unwrap();
        MEANT_FOR.lock().unwrap().insert(own, dialled);
        socket.connect(&self.redirect.into()).unwrap();
        Client::over(socket.into())
    }

    /// A client that connects to the redirect listener although nobody redirected it.
    pub(crate) fn direct(&self) -> Client {
        Client::to(self.redirect)
    }

    /// Ends the proxy, and adds up everything that it reported.
    pub(crate) fn finish(mut self) -> Sums {
        let sums = self.pid1.drain();
        self.serving.join().unwrap().unwrap();
        sums
    }
}

impl Pid1 {
    pub(crate) fn new(link: UnixStream) -> Self {
        link.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self {
            link: BufReader::new(link),
        }
    }

    pub(crate) fn hand_over(&mut self, listeners: &[(Ingress, BorrowedFd<'_>)]) {
        let kinds = listeners.iter().map(|(kind, _)| *kind).collect();
        let descriptors: Vec<_> = listeners
            .iter()
            .map(|(_, descriptor)| *descriptor)
            .collect();
        let line = line(&ToProxy::Listeners { kinds });
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let parts = [IoSlice::new(&line)];
        let sent = sendmsg(
            self.link.get_ref(),
            &parts,
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert_eq!(sent, line.len());
    }

    pub(crate) fn send(&mut self, message: &ToProxy) {
        self.link.get_mut().write_all(&line(message)).unwrap();
    }

    pub(crate) fn receive(&mut self) -> FromProxy {
        let mut line = String::new();
        self.link.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// Has the proxy drain, and adds up what it reports until it has.
    pub(crate) fn drain(&mut self) -> Sums {
        self.send(&ToProxy::Drain);
        self.until_drained()
    }

    /// Adds up what the proxy reports until it has drained.
    pub(crate) fn until_drained(&mut self) -> Sums {
        let mut sums = Sums::default();
        loop {
            let message = self.receive();
            if message == FromProxy::Drained {
                return sums;
            }
            sums.add(&message);
        }
    }
}

impl Sums {
    pub(crate) fn add(&mut self, message: &FromProxy) {
        match message {
            FromProxy::Denied(denied) => {
                let key = (shown(&denied.target), denied.reason);
                *self.denied.entry(key).or_default() += denied.count;
            }
            FromProxy::Allowed(allowed) => {
                let sum = self.allowed.entry(shown(&allowed.target)).or_default();
                let more = [
                    allowed.connections,
                    allowed.failures,
                    allowed.bytes_up,
                    allowed.bytes_down,
                ];
                self.ech_offered += allowed.ech_offered;
                sum.iter_mut()
                    .zip(more)
                    .for_each(|(sum, more)| *sum += more);
            }
            FromProxy::Ready { .. }
            | FromProxy::Failed { .. }
            | FromProxy::Open(_)
            | FromProxy::Policy { .. }
            | FromProxy::Drained => {
                panic!("{message:?}")
            }
        }
    }

    /// What was denied, as `(target, reason, count)`.
    pub(crate) fn denials(&self) -> Vec<(&str, DenyReason, u64)> {
        self.denied
            .iter()
            .map(|((target, reason), count)| (target.as_str(), *reason, *count))
            .collect()
    }
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Opens a tunnel.
    pub(crate) fn connect(mut self, authority: &str) -> Self {
        let response = self.request(&format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        ));
        assert!(response.head.starts_with("HTTP/1.1 200 "), "{response:?}");
        self
    }

    /// Sends a request and reads its response, of a length that is told.
    pub(crate) fn request(&mut self, request: &str) -> Response {
        self.send(request);
        self.response()
    }

    pub(crate) fn response(&mut self) -> Response {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.exactly(1));
        }
        let head = String::from_utf8(head).unwrap();
        let lower = head.to_ascii_lowercase();
        let length = lower
            .split("\r\ncontent-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let body = self.exactly(length.map_or(0, |length| length.parse().unwrap()));
        Response {
            head,
            body: String::from_utf8(body).unwrap(),
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything until the proxy ends the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => bytes,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => bytes,
            Err(error) => panic!("{error} after {bytes:?}"),
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn end(&mut self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }
}

/// What PID 1 would send for this allowlist.
pub(crate) fn start(allow: &[&str]) -> Start {
    let policy = Policy::from_entries(allow).unwrap();
    Start {
        generation: 1,
        allow: policy.entries(),
        policy_digest: policy.digest().to_string(),
        guard: Vec::new(),
        clock_origin_ms: RunClock::start().origin_ms(),
        seed: report::Seed([0; 16]),
        max_connections: 64,
        resolvers: Vec::new(),
        upstream_proxy: None,
    }
}

pub(crate) fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// In a process of several threads, as a test is and the proxy is not, glibc's allocator reads a file
/// when it first gives memory back: that must be behind it before its thread may open none.
fn give_memory_back() {
    let blocks: Vec<_> = (0..64)
        .map(|_| std::hint::black_box(vec![1_u8; 64 * 1024]))
        .collect();
    drop(blocks);
}

fn line(message: &ToProxy) -> Vec<u8> {
    report::encode(message, report::link::MAX_FRAME).unwrap()
}

fn shown(target: &report::Target) -> String {
    let host = target.host.as_ref().map(ToString::to_string);
    let host = host.or_else(|| target.address.map(|address| address.to_string()));
    let port = target.port.map_or(String::new(), |port| format!(":{port}"));
    format!("{}{port}", host.unwrap_or_else(|| "-".to_owned()))
}

/// What clients of this test process were redirected from, by their own addresses.
static MEANT_FOR: LazyLock<Mutex<HashMap<SocketAddr, SocketAddr>>> = LazyLock::new(Mutex::default);

fn meant_for(stream: &tokio::net::TcpStream) -> io::Result<SocketAddr> {
    let meant = MEANT_FOR.lock().unwrap().get(&stream.peer_addr()?).copied();
    meant.ok_or_else(|| io::ErrorKind::NotFound.into())
}
