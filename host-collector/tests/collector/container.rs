//! Plays the container: a client of the report channel that says what a test tells it to.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    mem::MaybeUninit,
    os::unix::net::UnixStream as StdStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use host_collector::{
    channel::{Attendance, Channel, Terms},
    environment::Environment,
};
use report::{
    Body, Bye, Denied, EndReason, Enforcement, Enforcing, Exit, Hello, HostMessage, Ipv6,
    MAX_FRAME, Message, PROTOCOL, Printable, Resume, Target, Totals, Transport, Welcome, encode,
};
use rustix::{
    fs::inotify,
    net::{RecvFlags, recv},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader as AsyncBufReader},
    net::UnixStream,
    sync::{mpsc, oneshot},
};

pub(crate) const DIGEST: &str = "d1ce";
/// Stands in a script between what one collector hears and what the next one does.
pub(crate) const AGAIN: &str = "again\n";
/// Stands in a script for the nonce that only the launched container will know.
pub(crate) const NONCE: &str = "the-nonce-of-the-run";

/// A channel in a directory of its own.
pub(crate) struct Run {
    pub(crate) dir: TempDir,
    pub(crate) channel: Channel,
    pub(crate) terms: Terms,
}

impl Run {
    pub(crate) fn new() -> Self {
        let terms = Terms::random(Some(DIGEST.into())).unwrap();
        Self::of(tempfile::tempdir().unwrap(), terms)
    }

    /// What the next collector makes of a run.
    fn of(dir: TempDir, terms: Terms) -> Self {
        let channel = Channel::open(dir.path(), terms.clone()).unwrap();
        Self {
            dir,
            channel,
            terms,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.channel.directory().join("report.sock")
    }

    pub(crate) fn nonce(&self) -> String {
        self.channel.nonce().expose().to_owned()
    }

    /// Attends while `script` plays and is killed when it returns. The next collector is there before
    /// anything else happens.
    pub(crate) async fn killed<T>(self, script: impl AsyncFnOnce(Scene) -> T) -> (Self, T) {
        let Self {
            dir,
            channel,
            terms,
        } = self;
        let scene = Scene {
            socket: channel.directory().join("report.sock"),
            nonce: terms.nonce.expose().to_owned(),
            dir: dir.path().to_owned(),
        };
        let played = tokio::select! {
            _ = channel.attend(std::future::pending(), |_| {}) => {
                unreachable!("it ended by itself")
            }
            played = script(scene) => played,
        };
        (Self::of(dir, terms), played)
    }

    /// Attends until a message of this number is stored, and is killed then.
    pub(crate) async fn killed_after(self, seq: u64) -> Self {
        let Self {
            dir,
            channel,
            terms,
        } = self;
        let (stored, mut seqs) = mpsc::channel(64);
        tokio::select! {
            _ = channel.attend(std::future::pending(), |message| stored.try_send(message.seq).unwrap()) => {
                unreachable!("it ended by itself")
            }
            () = async { while seqs.recv().await != Some(seq) {} } => {}
        }
        Self::of(dir, terms)
    }

    /// Attends while `script` plays; the run is over when it returns.
    pub(crate) async fn attend(self, script: impl AsyncFnOnce(Scene)) -> Attendance {
        let scene = Scene {
            socket: self.socket(),
            nonce: self.nonce(),
            dir: self.dir.path().to_owned(),
        };
        let (done, over) = oneshot::channel::<()>();
        let over = async { drop(over.await) };
        let play = async {
            script(scene).await;
            drop(done);
        };
        tokio::join!(self.channel.attend(over, |_| {}), play).0
    }
}

/// What a script may use.
pub(crate) struct Scene {
    pub(crate) socket: PathBuf,
    pub(crate) nonce: String,
    pub(crate) dir: PathBuf,
}

impl Scene {
    pub(crate) async fn connect(&self) -> Container {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        Container {
            stream: AsyncBufReader::new(stream),
            seq: 0,
        }
    }

    /// Connects as somebody who was there before, with `token`.
    pub(crate) async fn come_back(&self, token: &str) -> Container {
        let mut container = self.connect().await;
        container.raw(resume(token).as_bytes()).await;
        container
    }

    /// Connects and gets welcomed.
    pub(crate) async fn join(&self) -> Container {
        let mut container = self.connect().await;
        container.report(hello(&self.nonce)).await;
        assert!(matches!(
            container.answer().await,
            Some(HostMessage::Welcome(_))
        ));
        container
    }

    pub(crate) fn journal(&self) -> String {
        fs::read_to_string(self.dir.join("journal.jsonl")).unwrap()
    }
}

/// One connection to the collector.
pub(crate) struct Container {
    stream: AsyncBufReader<UnixStream>,
    pub(crate) seq: u64,
}

impl Container {
    /// Sends the next message.
    pub(crate) async fn report(&mut self, body: Body) {
        self.seq += 1;
        self.raw(&line(self.seq, body)).await;
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        assert!(self.offer(bytes).await, "the collector hung up");
    }

    /// Sends what may not be wanted any more, and says whether it could be sent.
    pub(crate) async fn offer(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// What the collector says next; nothing if it hung up.
    pub(crate) async fn answer(&mut self) -> Option<HostMessage> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    /// Waits until everything that was sent is acknowledged.
    pub(crate) async fn settle(&mut self) {
        while self.answer().await.expect("the collector hung up")
            != (HostMessage::Ack { seq: self.seq })
        {}
    }
}

pub(crate) fn resume(token: &str) -> String {
    let resume = Resume {
        protocol: PROTOCOL,
        resume_token: token.into(),
    };
    format!("{}\n", serde_json::to_string(&resume).unwrap())
}

/// More than a collector reads in a second and a half, of which nothing is a message but the last.
pub(crate) fn flood() -> Vec<u8> {
    let noise = format!("{}\n", "[".repeat(12 * 1024));
    let mut lines = noise.repeat(NOISE).into_bytes();
    lines.extend(line(2, denied("a.example", 1)));
    lines
}

/// Lines of a flood that are no messages.
pub(crate) const NOISE: usize = 900;

/// A whole conversation.
pub(crate) fn lines(script: &[Body]) -> Vec<u8> {
    (1..)
        .zip(script)
        .flat_map(|(seq, body)| line(seq, body.clone()))
        .collect()
}

pub(crate) fn line(seq: u64, body: Body) -> Vec<u8> {
    encode(&Message { body, seq, t: seq }, MAX_FRAME).unwrap()
}

pub(crate) fn hello(nonce: &str) -> Body {
    Body::Hello(Hello {
        protocol: PROTOCOL,
        nonce: nonce.into(),
        version: Printable::new("0"),
        policy_digest: Some(Printable::new(DIGEST)),
        guest_uid: 1000,
        named: None,
    })
}

pub(crate) fn enforcing() -> Body {
    Body::Enforcing(Enforcing {
        enforcement: Enforcement::Name,
        backend: Printable::new("nftables"),
        ruleset_digest: Printable::new("0"),
        self_test: Vec::new(),
        ipv6: Ipv6::Absent,
        degradations: Vec::new(),
    })
}

pub(crate) fn denied(host: &str, count: u64) -> Body {
    Body::Denied(Denied {
        target: Target {
            host: Some(Printable::new(host)),
            address: None,
            port: Some(443),
        },
        proto: Transport::Tcp,
        reason: policy::DenyReason::NotAllowed,
        count,
        first: 1,
        last: 2,
        uid: None,
    })
}

pub(crate) fn exit(code: i32) -> Body {
    Body::Exit(Exit {
        code: Some(code),
        signal: None,
        end_reason: EndReason::Exited,
        cpu_ms: 1,
        peak_rss_kb: None,
        outlived_root: 0,
        detail: None,
    })
}

pub(crate) fn bye(seq: u64, refused: u64) -> Body {
    let mut totals = Totals::default();
    totals
        .denied
        .insert(policy::DenyReason::NotAllowed, refused);
    Body::Bye(Bye {
        last_seq: seq,
        totals,
    })
}

/// Starts this test binary again as a container of its own process, which sends `script`, waits for
/// the acknowledgement of its last message, and either exits or waits to be killed.
pub(crate) fn spawn(socket: &Path, dir: &Path, script: &[Body], end: ProcessEnd) -> Child {
    spawn_saying(socket, dir, &lines(script), end)
}

/// The same, in the container's own words.
pub(crate) fn spawn_saying(socket: &Path, dir: &Path, script: &[u8], end: ProcessEnd) -> Child {
    let file = dir.join("script");
    fs::write(&file, script).unwrap();
    Command::new("/proc/self/exe")
        .args([
            "--exact",
            "container::plays_a_container_where_it_is_told_to",
            "--nocapture",
        ])
        .env("FAKE_CONTAINER_SOCKET", socket)
        .env("FAKE_CONTAINER_SCRIPT", file)
        .env("FAKE_CONTAINER_END", format!("{end:?}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// When everything is acknowledged.
    Exits,
    /// When everything is written.
    Leaves,
    /// When it is killed.
    Stays,
}

#[test]
fn plays_a_container_where_it_is_told_to() {
    let environment = Environment::of_process();
    let Some(socket) = environment.get("FAKE_CONTAINER_SOCKET") else {
        return;
    };
    let script = environment.get("FAKE_CONTAINER_SCRIPT").unwrap();
    let script = filled_in(&fs::read_to_string(script).unwrap(), &environment);
    let end = environment
        .get("FAKE_CONTAINER_END")
        .and_then(|end| end.to_str());
    let all = script.lines().filter(|line| line.starts_with('{')).count();
    let (mut last, mut token) = (0, String::new());
    let mut stream = StdStream::connect(socket).unwrap();
    for part in script.split(AGAIN) {
        stream.write_all(part.as_bytes()).unwrap();
        if end == Some("Leaves") {
            return;
        }
        last += part.lines().count();
        let ack = format!("{{\"type\":\"ack\",\"seq\":{last}}}");
        let mut answers = BufReader::new(&stream).lines().map_while(Result::ok);
        if token.is_empty() {
            let welcome: Welcome = serde_json::from_str(&answers.next().unwrap()).unwrap();
            token = welcome.resume_token;
        }
        assert!(answers.any(|line| line == ack), "no {ack}");
        if last == all {
            break;
        }
        // The next part is for the next collector, or for this one at another time.
        match environment.get("FAKE_CONTAINER_FIFOS").map(Path::new) {
            None => assert_eq!(answers.last(), None),
            Some(fifos) => {
                fs::write(fifos.join("heard"), "heard").unwrap();
                fs::read(fifos.join("hold")).unwrap();
            }
        }
        if is_hung_up(&stream) {
            stream = connect_again(Path::new(socket));
            stream.write_all(resume(&token).as_bytes()).unwrap();
        }
    }
    if end == Some("Stays") {
        // Its standard input is closed by nobody: only a signal ends this.
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

fn is_hung_up(stream: &StdStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    recv(stream, &mut [0; 1][..], flags).is_ok_and(|(count, _)| count == 0)
}

/// Connects as soon as the socket is there again.
pub(crate) fn connect_again(socket: &Path) -> StdStream {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::ATTRIB;
    inotify::add_watch(&watch, socket.parent().unwrap(), events).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    loop {
        if let Ok(stream) = StdStream::connect(socket) {
            return stream;
        }
        events.next().unwrap();
    }
}

/// What a container learns from its environment, where an engine launched it.
fn filled_in(script: &str, environment: &Environment) -> String {
    let text = |name| environment.get(name).and_then(|value| value.to_str());
    let (Some(nonce), Some(allow)) = (text("SANDBOX_REPORT_NONCE"), text("SANDBOX_EGRESS_ALLOW"))
    else {
        return script.to_owned();
    };
    let list = match (allow.strip_prefix('@'), text("FAKE_CONTAINER_SOCKET")) {
        // What it knows at one place is at another on this host: beside the socket.
        (Some(path), Some(socket)) => {
            let file = Path::new(path).file_name().unwrap();
            fs::read_to_string(Path::new(socket).with_file_name(file)).unwrap()
        }
        _ => allow.to_owned(),
    };
    let digest = policy::Policy::parse(&list).unwrap().digest().to_string();
    script.replace(NONCE, nonce).replace(DIGEST, &digest)
}
