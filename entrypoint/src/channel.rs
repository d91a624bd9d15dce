//! The report channel to the host: connected before any other process exists, and taken up again by
//! this process should the collector be killed and another go on in its place.

mod greeting;
mod hatch;
mod link;

use std::{io, path::PathBuf, time::Duration};

use report::{Body, Hello, MAX_FRAME, NAMED, PROTOCOL, Printable, Resume, encode};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    config::{Allowlist, Report},
    failure::Failure,
    outbox::Outbox,
    steering::Order,
    transport::{Ends, Transport},
};
use greeting::{PATIENCE, connect, greet};
use hatch::{Hatch, receive};
use link::Link;

/// A channel that a collector has welcomed once.
#[derive(Debug)]
pub(crate) struct Channel {
    way: Way,
    /// What another collector is told.
    resume: Vec<u8>,
    state: State,
    /// Attempts to come back since there was a connection.
    attempts: u32,
}

/// How a collector is met again.
#[derive(Debug)]
enum Way {
    /// It listens there.
    Out(PathBuf),
    /// It comes in there, and must know the secret.
    In(PathBuf, String),
}

#[derive(Debug)]
enum State {
    /// Connected and welcomed.
    Up(Link),
    /// Connected to another collector, which should welcome us by then.
    Returning(Link, Instant),
    /// Without a connection. The next attempt is due then.
    Away(Instant),
    /// Without a connection: a collector may come in.
    Open(Hatch),
    /// Somebody has come in, who should prove to be a collector by then.
    Asked(Hatch, Link, Instant),
}

impl Channel {
    /// Says hello and waits for the welcome. Without a collector: a refusal where one is required,
    /// `None` where it is not.
    ///
    /// Must be called within the runtime.
    pub(crate) async fn open(
        allowlist: &Allowlist,
        guest_uid: u32,
        outbox: &mut Outbox,
    ) -> Result<Option<Self>, Failure> {
        if allowlist.report == Report::Off {
            return Ok(None);
        }
        let hello = Hello {
            protocol: PROTOCOL,
            nonce: allowlist.nonce.clone(),
            version: Printable::new(env!("CARGO_PKG_VERSION")),
            policy_digest: Some(Printable::new(&allowlist.policy.digest().to_string())),
            guest_uid,
            named: u32::try_from(NAMED).ok(),
        };
        outbox.push(Body::Hello(hello));
        let (place, met) = meet(allowlist, outbox).await;
        match met {
            Ok(channel) => Ok(Some(channel)),
            Err(_) if allowlist.report == Report::BestEffort => Ok(None),
            Err(error) => Err(Failure::setup(
                "open the report channel",
                format_args!("{}: {error}", place.display()),
                "start the container by `host-collector run`, or set SANDBOX_REPORT=best-effort",
            )),
        }
    }

    fn up(way: Way, link: Link, resume_token: String) -> Self {
        let resume = Resume {
            protocol: PROTOCOL,
            resume_token,
        };
        Self {
            way,
            // A token that no line can hold comes from no collector of ours.
            resume: encode(&resume, MAX_FRAME).unwrap_or_default(),
            state: State::Up(link),
            attempts: 0,
        }
    }

    /// Does the next thing that there is to do, however long that may be in coming: moves bytes, or,
    /// where the collector is gone, looks whether there is another. The run goes on all the while;
    /// an account that ends without a bye is how the host knows that there was none.
    ///
    /// Returns what the host orders. Cancelled, it has done nothing.
    pub(crate) async fn pump(&mut self, outbox: &mut Outbox) -> Vec<Order> {
        match &mut self.state {
            State::Up(link) => {
                let heard = link.heard();
                let conversed = link.converse(outbox);
                let conversed = match self.way {
                    Way::Out(_) => conversed.await,
                    // A network may lie between, of whose end nobody tells.
                    Way::In(..) => timeout_at(heard + SILENCE, conversed)
                        .await
                        .unwrap_or_else(|late| Err(late.into())),
                };
                match conversed {
                    Ok(orders) => return orders,
                    Err(_) => self.retreat(),
                }
            }
            State::Returning(link, until) => match timeout_at(*until, link.welcome()).await {
                Ok(Ok(welcome)) => self.arrive(welcome.stored, outbox),
                Ok(Err(_)) | Err(_) => self.retreat(),
            },
            State::Open(hatch) => {
                let knocked = hatch.knock().await;
                self.ask(knocked);
            }
            State::Asked(_, link, until) => {
                let Way::In(_, secret) = &self.way else {
                    self.retreat();
                    return Vec::new();
                };
                let proved = timeout_at(*until, link.proof_of(secret)).await;
                self.answer(matches!(proved, Ok(Ok(()))));
            }
            State::Away(at) => {
                sleep_until(*at).await;
                self.come_back();
            }
        }
        Vec::new()
    }

    /// Whether somebody is listening.
    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Looks for another collector at once, since there will be no later.
    pub(crate) fn hurry(&mut self) {
        if let State::Away(at) = &mut self.state {
            (*at, self.attempts) = (Instant::now(), 0);
        }
    }

    fn come_back(&mut self) {
        let state = match &self.way {
            Way::Out(socket) => Link::connect(socket, &self.resume)
                .map(|link| State::Returning(link, Instant::now() + PATIENCE)),
            Way::In(directory, _) => Hatch::open(directory).map(State::Open),
        };
        match state {
            Ok(state) => self.state = state,
            Err(_) => self.retreat(),
        }
    }

    /// One at a time: whoever comes meanwhile waits at the hatch.
    fn ask(&mut self, knocked: io::Result<Link>) {
        let until = Instant::now() + PATIENCE;
        if let (State::Open(hatch), Ok(link)) = (self.leave(), knocked) {
            self.state = State::Asked(hatch, link, until);
        } else {
            self.retreat();
        }
    }

    /// The hatch is closed behind a collector, and stays open behind anybody else.
    fn answer(&mut self, is_proved: bool) {
        let State::Asked(hatch, link, _) = self.leave() else {
            return self.retreat();
        };
        if !is_proved {
            self.state = State::Open(hatch);
        } else if link.say(&self.resume).is_ok() {
            self.state = State::Returning(link, Instant::now() + PATIENCE);
        } else {
            drop(hatch);
            self.retreat();
        }
    }

    /// Out of whatever state this is in.
    fn leave(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Away(Instant::now()))
    }

    fn arrive(&mut self, stored: u64, outbox: &mut Outbox) {
        if let State::Returning(link, _) = self.leave() {
            outbox.resume(stored);
            (self.state, self.attempts) = (State::Up(link), 0);
        }
    }

    fn retreat(&mut self) {
        self.state = State::Away(Instant::now() + pause(self.attempts));
        self.attempts = self.attempts.saturating_add(1);
    }
}

/// Finds a collector in the way that was asked for; says also where it was looked for.
async fn meet(allowlist: &Allowlist, outbox: &mut Outbox) -> (PathBuf, io::Result<Channel>) {
    let Ends { socket, hatch } = allowlist.ends.clone();
    let connected = match allowlist.transport {
        Transport::Socket | Transport::Auto => connect(&socket),
        Transport::Exec => Err(io::ErrorKind::NotConnected.into()),
    };
    match connected {
        Err(_) if allowlist.transport != Transport::Socket => {
            let met = receive(&hatch, &allowlist.nonce, outbox).await;
            let up = |(link, token): (Link, String)| {
                let way = Way::In(hatch.clone(), token.clone());
                Channel::up(way, link, token)
            };
            let met = met.map(up);
            (hatch, met)
        }
        connected => {
            let met = connected.and_then(|stream| greet(stream, outbox));
            let up = |(link, token)| Channel::up(Way::Out(socket.clone()), link, token);
            let met = met.map(up);
            (socket, met)
        }
    }
}

/// Four heartbeats to which nobody has said a word.
const SILENCE: Duration = Duration::from_secs(20);

/// Doubles from 50 ms up to 2 s: a collector may be started again in an hour, and is found soon then,
/// at the cost of one system call every other second until it is.
fn pause(attempts: u32) -> Duration {
    let factor = 1_u32.checked_shl(attempts).unwrap_or(u32::MAX);
    Duration::from_millis(50)
        .saturating_mul(factor)
        .min(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead as _, BufReader, Write as _},
        os::unix::net::{UnixListener, UnixStream},
    };

    use report::{FrameReader, HostMessage, Message, RunClock, Welcome};

    use super::*;

    /// A channel that is up, the collector's end of it, and where another collector would listen.
    fn channel(place: &str) -> (Channel, UnixStream, PathBuf) {
        let dir = std::env::temp_dir().join(format!("returning-{}-{place}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("report.sock");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = Link::new(ours, FrameReader::new(MAX_FRAME)).unwrap();
        (
            Channel::up(Way::Out(socket.clone()), link, "s3cret".into()),
            theirs,
            socket,
        )
    }

    fn outbox(messages: usize) -> Outbox {
        let mut outbox = Outbox::new(RunClock::start(), report::Seed([0; 16]));
        for _ in 0..messages {
            outbox.push_totals();
        }
        outbox
    }

    fn say(stream: &mut UnixStream, message: &HostMessage) {
        stream
            .write_all(&encode(message, MAX_FRAME).unwrap())
            .unwrap();
    }

    fn welcome(protocol: u32, stored: u64) -> HostMessage {
        HostMessage::Welcome(Welcome {
            protocol,
            resume_token: "s3cret".into(),
            stored,
            seed: None,
        })
    }

    async fn pump_until(
        channel: &mut Channel,
        outbox: &mut Outbox,
        mut done: impl FnMut(&Channel, &Outbox) -> bool,
    ) {
        while !done(channel, outbox) {
            channel.pump(outbox).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_next_collector_lacks_is_sent_to_it() {
        let (mut channel, theirs, socket) = channel("lacks");
        let mut outbox = outbox(3);
        pump_until(&mut channel, &mut outbox, |_, outbox| {
            outbox.next_bytes().is_none()
        })
        .await;
        drop(theirs);
        pump_until(&mut channel, &mut outbox, |channel, _| !channel.is_up()).await;
        outbox.push_totals();

        let listener = UnixListener::bind(&socket).unwrap();
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Returning(..))
        })
        .await;
        let (mut stream, _) = listener.accept().unwrap();
        say(&mut stream, &welcome(PROTOCOL, 2));
        pump_until(&mut channel, &mut outbox, |channel, outbox| {
            channel.is_up() && outbox.next_bytes().is_none()
        })
        .await;
        say(&mut stream, &HostMessage::Ack { seq: 4 });
        pump_until(&mut channel, &mut outbox, |_, outbox| outbox.is_settled()).await;

        drop(channel);
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert_eq!(
            lines.next().unwrap(),
            r#"{"type":"resume","protocol":1,"resume_token":"s3cret"}"#
        );
        let seqs: Vec<_> = lines
            .map(|line| serde_json::from_str::<Message>(&line).unwrap().seq)
            .collect();
        assert_eq!(seqs, [3, 4]);
        fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    /// A channel into which a collector has come, that collector's end, and where it came in.
    fn entered(place: &str) -> (Channel, UnixStream, PathBuf) {
        let dir = std::env::temp_dir().join(format!("entered-{}-{place}", std::process::id()));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = Link::new(ours, FrameReader::new(MAX_FRAME)).unwrap();
        let way = Way::In(dir.clone(), "s3cret".into());
        (Channel::up(way, link, "s3cret".into()), theirs, dir)
    }

    fn attach(secret: &str) -> Vec<u8> {
        let attach = report::Attach {
            protocol: PROTOCOL,
            secret: secret.into(),
        };
        encode(&attach, MAX_FRAME).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_comes_in_again_and_only_while_there_is_none() {
        let (mut channel, theirs, dir) = entered("again");
        let socket = dir.join(crate::transport::HATCH_SOCKET);
        let mut outbox = outbox(2);
        pump_until(&mut channel, &mut outbox, |_, outbox| {
            outbox.next_bytes().is_none()
        })
        .await;
        assert!(!socket.exists());
        drop(theirs);
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Open(_))
        })
        .await;
        let mut stranger = UnixStream::connect(&socket).unwrap();
        stranger.write_all(&attach("secret")).unwrap();
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&attach("s3cret")).unwrap();
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Returning(..))
        })
        .await;
        assert!(!socket.exists());
        say(&mut stream, &welcome(PROTOCOL, 1));
        pump_until(&mut channel, &mut outbox, |channel, outbox| {
            channel.is_up() && outbox.next_bytes().is_none()
        })
        .await;
        drop(channel);
        let said = BufReader::new(stream).lines().map(Result::unwrap);
        let said: Vec<_> = said.map(|line| line.contains("\"resume\"")).collect();
        assert_eq!(said, [true, false], "the resume, and the second message");
        let told = BufReader::new(stranger).lines().map_while(Result::ok);
        assert_eq!(told.count(), 0, "who knew no secret was told something");
        fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_in_and_says_nothing_keeps_a_collector_out_for_seconds_only() {
        let (mut channel, theirs, dir) = entered("mute");
        let mut outbox = outbox(0);
        drop(theirs);
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Open(_))
        })
        .await;
        let socket = dir.join(crate::transport::HATCH_SOCKET);
        let _mute = UnixStream::connect(&socket).unwrap();
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Asked(..))
        })
        .await;
        let start = Instant::now();
        channel.pump(&mut outbox).await;
        assert!(matches!(channel.state, State::Open(_)));
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
        assert!(socket.exists());
        drop(channel);
        assert!(!socket.exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_came_in_and_fell_silent_is_given_up() {
        let (mut channel, _theirs, dir) = entered("silent");
        let mut outbox = outbox(0);
        let start = Instant::now();
        channel.pump(&mut outbox).await;
        assert!(!channel.is_up());
        assert_eq!(start.elapsed().as_secs(), SILENCE.as_secs());
        channel.pump(&mut outbox).await;
        assert!(matches!(channel.state, State::Open(_)));
        fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_welcome_us_is_left_and_another_is_looked_for() {
        let (mut channel, theirs, socket) = channel("left");
        let mut outbox = outbox(1);
        drop(theirs);
        let listener = UnixListener::bind(&socket).unwrap();
        let answers: [&[u8]; 4] = [
            b"",
            b"rubbish\n",
            &[b'x'; MAX_FRAME],
            &encode(&welcome(PROTOCOL + 1, 0), MAX_FRAME).unwrap(),
        ];
        for answer in answers {
            pump_until(&mut channel, &mut outbox, |channel, _| {
                matches!(channel.state, State::Returning(..))
            })
            .await;
            let (mut stream, _) = listener.accept().unwrap();
            // It may have hung up before all of it was written.
            let _ = stream.write_all(answer);
            drop(stream);
            pump_until(&mut channel, &mut outbox, |channel, _| {
                matches!(channel.state, State::Away(_))
            })
            .await;
        }
        assert!(!outbox.is_settled());
        fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_says_nothing_is_waited_for_no_longer_than_the_first() {
        let (mut channel, theirs, socket) = channel("silent");
        let mut outbox = outbox(1);
        drop(theirs);
        let _listener = UnixListener::bind(&socket).unwrap();
        pump_until(&mut channel, &mut outbox, |channel, _| {
            matches!(channel.state, State::Returning(..))
        })
        .await;
        let start = Instant::now();
        channel.pump(&mut outbox).await;
        assert!(matches!(channel.state, State::Away(_)));
        assert_eq!(start.elapsed().as_secs(), PATIENCE.as_secs());
        fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_looked_for_ever_more_rarely_and_at_once_at_the_end() {
        let (mut channel, theirs, socket) = channel("rarely");
        let mut outbox = outbox(0);
        drop(theirs);
        channel.pump(&mut outbox).await;
        let start = Instant::now();
        for _ in 0..30 {
            channel.pump(&mut outbox).await;
        }
        let passed = start.elapsed().as_secs();
        assert!((40..60).contains(&passed), "{passed}");
        channel.hurry();
        let start = Instant::now();
        channel.pump(&mut outbox).await;
        assert_eq!(start.elapsed().as_millis(), 0);
        fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    #[test]
    fn the_pause_has_a_bound() {
        assert_eq!(pause(0).as_millis(), 50);
        assert_eq!(pause(1).as_millis(), 100);
        assert_eq!(pause(6).as_secs(), 2);
        assert_eq!(pause(u32::MAX).as_secs(), 2);
    }

    #[tokio::test]
    async fn what_the_host_orders_is_handed_on_in_its_order() {
        let (mut channel, mut theirs, _) = channel("orders");
        let mut outbox = outbox(0);
        let policy = report::PolicyOrder {
            generation: 2,
            digest: Printable::new("ab"),
            list: report::List::Allow(vec!["a.example".into()]),
        };
        say(&mut theirs, &HostMessage::Policy(policy.clone()));
        say(&mut theirs, &HostMessage::Stop { grace_ms: 7 });
        let mut orders = Vec::new();
        while orders.len() < 2 {
            orders.extend(channel.pump(&mut outbox).await);
        }
        assert_eq!(orders, [Order::Policy(policy), Order::Stop { grace_ms: 7 }]);
    }
}
