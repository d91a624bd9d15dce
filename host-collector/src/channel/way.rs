//! The way into a container that cannot come out: the engine's `exec` brings the channel of its
//! PID 1, over the standard input and output of a client that this process has started.

use std::{io, os::unix::net::UnixStream as StdStream, process::Stdio, time::Duration};

use report::{Attach, MAX_FRAME, PROTOCOL, Printable, encode};
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{
    attendance::Refusals,
    greeting::{Expected, Greeted, Refusal, greet_through},
    secret::Secret,
};

/// How reports get out of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Over a socket if that can be reached from inside, and else through the engine.
    #[default]
    Auto,
    /// Over a socket of this host that is mounted into the container.
    Socket,
    /// Through the engine, which starts a process in the container.
    Exec,
}

impl Transport {
    /// The word in the log, and for the entrypoint.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Socket => "socket",
            Self::Exec => "exec",
        }
    }
}

/// Makes the engine's client, once there is a container.
pub(crate) type Client = Box<dyn Fn() -> Option<Command> + Send + Sync>;

/// A way in that is yet to be taken.
pub(crate) struct Way {
    client: Client,
    head_start: Duration,
}

impl Way {
    /// A way in. Where there is a door as well, that comes first.
    pub(crate) fn new(client: Client, transport: Transport) -> Self {
        let head_start = match transport {
            Transport::Auto => HEAD_START,
            Transport::Socket | Transport::Exec => Duration::ZERO,
        };
        Self { client, head_start }
    }

    /// Comes in, as soon as PID 1 opens, and hears what it says.
    ///
    /// Cancelled, it has let nobody in.
    pub(crate) async fn come_in(&self, expected: &Expected, refusals: &mut Refusals) -> Greeted {
        while (self.client)().is_none() {
            sleep(BETWEEN_LOOKS).await;
        }
        sleep(self.head_start).await;
        let mut pause = BETWEEN_LOOKS;
        loop {
            match self.attempt(expected).await {
                Ok(greeted) => return greeted,
                // Most often it was too early.
                Err(Vain::NotIn(said)) => refusals.way_in = Some(said),
                Err(Vain::Refused(refusal)) => refusals.note(refusal),
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(&self, expected: &Expected) -> Result<Greeted, Vain> {
        let not_in = |error: io::Error| Vain::NotIn(Printable::new(&error.to_string()));
        let gone = || not_in(io::ErrorKind::NotFound.into());
        let command = (self.client)().ok_or_else(gone)?;
        let (stream, client) = start(command).map_err(not_in)?;
        let first =
            encode(&attach(expected), MAX_FRAME).map_err(|e| not_in(io::Error::other(e)))?;
        let greeted = match say(&stream, &first).await {
            Ok(()) => greet_through(stream, expected).await,
            Err(error) => Err(Refusal::Gone(error)),
        };
        match greeted {
            Ok(greeted) => Ok(greeted.held_by(client)),
            Err(Refusal::Gone(_) | Refusal::Silent) => Err(Vain::NotIn(last_words(client).await)),
            Err(refusal) => Err(Vain::Refused(refusal)),
        }
    }
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way")
            .field("head_start", &self.head_start)
            .finish_non_exhaustive()
    }
}

/// Why an attempt came to nothing.
enum Vain {
    /// PID 1 was not reached, as somebody on the way has said.
    NotIn(Printable),
    /// It was, and is not the one that was launched.
    Refused(Refusal),
}

/// Starts the client with one end of a pair of sockets as its input and its output.
fn start(mut command: Command) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let output = theirs.try_clone()?;
    let client = command
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::from(std::os::fd::OwnedFd::from(output)))
        .stderr(Stdio::piped())
        // The keys of this process's terminal are for the guest.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    // The command holds the client's ends: with it they are closed here.
    drop(command);
    Ok((UnixStream::from_std(ours)?, client))
}

/// Says the first line: as nothing was written yet, it has room.
async fn say(stream: &UnixStream, first: &[u8]) -> io::Result<()> {
    stream.writable().await?;
    if stream.try_write(first)? == first.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

fn attach(expected: &Expected) -> Attach {
    let (Expected::Newcomer { nonce: secret, .. } | Expected::Returner { token: secret, .. }) =
        expected;
    Attach {
        protocol: PROTOCOL,
        secret: Secret::expose(secret).to_owned(),
    }
}

/// The end of what a client has said to standard error, which is the reason.
async fn last_words(mut client: Child) -> Printable {
    let mut said = Vec::new();
    if let Some(stderr) = client.stderr.take() {
        // A client that hangs is killed with its handle.
        let mut stderr = stderr.take(4096);
        let _ = timeout(LAST_WORDS, stderr.read_to_end(&mut said)).await;
    }
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    Printable::new(line.unwrap_or("the engine's client has not said why"))
}

/// How long a container that was made may take to come to the door by itself: an engine takes a
/// third of that to start it.
const HEAD_START: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// A container may be suspended for long, and no `exec` enters it then.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn newcomer() -> Expected {
        Expected::Newcomer {
            nonce: Secret::random().unwrap(),
            policy_digest: None,
        }
    }

    fn shell(script: &'static str) -> Way {
        let client = move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Some(command)
        };
        Way::new(Box::new(client), Transport::Exec)
    }

    #[tokio::test]
    async fn the_secret_is_said_on_the_input_and_by_nobody_else() {
        let expected = newcomer();
        let Expected::Newcomer { nonce, .. } = &expected else {
            unreachable!()
        };
        let way = shell(
            r#"read -r line; printf '{"type":"hello","protocol":1,"nonce":"%s","version":"1","guest_uid":1,"seq":1,"t":0}\n' "$(printf %s "$line" | sed 's/.*secret":"//; s/".*//')"; cat"#,
        );
        let mut refusals = Refusals::default();
        let greeted = way.come_in(&expected, &mut refusals).await;
        assert!(greeted.hello.is_some());
        assert_eq!(refusals.count, 0);
        let told = attach(&expected);
        assert_eq!(
            (told.protocol, told.secret.as_str()),
            (PROTOCOL, nonce.expose())
        );
    }

    #[tokio::test]
    async fn what_a_client_says_last_is_why_it_came_to_nothing_and_counts_as_nobody() {
        for (script, said) in [
            ("echo one >&2; echo ' two ' >&2; exit 1", "two"),
            ("exit 1", "the engine's client has not said why"),
        ] {
            let vain = shell(script).attempt(&newcomer()).await;
            let Err(Vain::NotIn(why)) = vain else {
                panic!("{script} came in")
            };
            assert_eq!(why.as_str(), said);
        }
    }

    #[tokio::test]
    async fn who_answers_and_knows_no_nonce_is_refused() {
        let way = shell(
            r#"echo '{"type":"hello","protocol":1,"nonce":"0","version":"1","guest_uid":1,"seq":1,"t":0}'; cat"#,
        );
        let vain = way.attempt(&newcomer()).await;
        assert!(matches!(vain, Err(Vain::Refused(Refusal::Nonce))));
    }

    #[test]
    fn only_where_there_is_a_door_does_the_way_in_wait() {
        let way = |transport| Way::new(Box::new(|| None), transport).head_start;
        assert_eq!(way(Transport::Auto), HEAD_START);
        assert_eq!(way(Transport::Exec), Duration::ZERO);
    }

    #[test]
    fn every_transport_is_one_word_everywhere() {
        use clap::ValueEnum as _;
        for transport in Transport::value_variants() {
            let word = format!("\"{}\"", transport.as_str());
            assert_eq!(serde_json::to_string(transport).unwrap(), word);
            assert_eq!(
                Transport::from_str(transport.as_str(), false),
                Ok(*transport)
            );
        }
    }
}
