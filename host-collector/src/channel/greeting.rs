//! Decides whether a peer is the container that was launched: one line, judged before anything else.

use std::{io, time::Duration};

use procwatch::Identity;
use report::{
    Body, FrameError, FrameReader, Hello, MAX_FRAME, Opening, PROTOCOL, Printable, Report, Resume,
};
use tokio::{net::UnixStream, process::Child};

use super::{peer::Peer, secret::Secret};

/// Whom the door is open for.
#[derive(Debug)]
pub(crate) enum Expected {
    /// The container, before its guest exists.
    Newcomer {
        nonce: Secret,
        policy_digest: Option<String>,
    },
    /// The container again, when its guest may be at work: so the secret alone is not enough.
    Returner {
        token: Secret,
        /// Which process it was, where it was one of this machine.
        process: Option<Identity>,
    },
}

/// A peer whose first line is accepted. Only [`greet`] makes one.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) stream: UnixStream,
    pub(crate) peer: Peer,
    /// The hello of a newcomer.
    pub(crate) hello: Option<Report>,
    /// Holds what came after the first line, if anything did.
    pub(crate) reader: FrameReader,
}

/// Why a peer was turned away.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It said nothing for too long.
    #[error("it sent no hello within {}", seconds(PATIENCE))]
    Silent,
    /// It left, or reading from it was not possible.
    #[error("it left before its hello: {0}")]
    Gone(io::Error),
    /// It sent something that is no message.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    /// Its first message was another.
    #[error("its first message was no hello")]
    NoHello,
    /// It speaks another version.
    #[error(
        "it speaks protocol {0}, and this is {PROTOCOL}: build the image with this version of sandbox-egress"
    )]
    Protocol(u32),
    /// It does not know this run's secret.
    #[error("it did not know the nonce of this run")]
    Nonce,
    /// It reads the allowlist otherwise than this host does.
    #[error(
        "version {version} of its entrypoint reads the allowlist otherwise (digest {theirs}, here {ours}): \
         build the image with this version of sandbox-egress"
    )]
    Policy {
        /// The container's version.
        version: Printable,
        /// Its digest.
        theirs: Printable,
        /// Ours.
        ours: String,
    },
    /// It does not know what this run's container was told in its welcome.
    #[error("it did not know the resume token of this run")]
    Token,
    /// It comes back where nobody has been, or introduces itself where somebody has.
    #[error("it sent a {said} where only a {due} is due")]
    NotDue {
        /// What it said.
        said: &'static str,
        /// What it should have said.
        due: &'static str,
    },
    /// It knows the secret and is another process than the one that was told.
    #[error("it is not the process that was welcomed")]
    Stranger,
    /// Its process could not be pinned.
    #[error("its process could not be pinned: {0}")]
    Unpinned(io::Error),
}

/// Reads the first line of a peer that has connected, judges it, and pins the peer.
pub(crate) async fn greet(stream: UnixStream, expected: &Expected) -> Result<Greeted, Refusal> {
    let (hello, reader) = hear(&stream, expected, PATIENCE).await?;
    let peer = Peer::pin(&stream).map_err(Refusal::Unpinned)?;
    if let Expected::Returner { process, .. } = expected
        && (process.is_none() || peer.identity() != *process)
    {
        return Err(Refusal::Stranger);
    }
    Ok(Greeted {
        stream,
        peer,
        hello,
        reader,
    })
}

/// The same for one whose channel the engine brings: whose it is was decided by naming the
/// container, and the secrets, which go both ways, show that PID 1 is at its end.
pub(crate) async fn greet_through(
    stream: UnixStream,
    expected: &Expected,
) -> Result<Greeted, Refusal> {
    let (hello, reader) = hear(&stream, expected, PATIENCE_WITH_ENGINES).await?;
    Ok(Greeted {
        stream,
        peer: Peer::Contained(None),
        hello,
        reader,
    })
}

impl Greeted {
    /// With the client that brings the channel, which ends with it.
    pub(crate) fn held_by(self, client: Child) -> Self {
        let peer = Peer::Contained(Some(Box::new(client)));
        Self { peer, ..self }
    }
}

/// The hello of a newcomer, and what came after the first line.
async fn hear(
    stream: &UnixStream,
    expected: &Expected,
    patience: Duration,
) -> Result<(Option<Report>, FrameReader), Refusal> {
    let mut reader = FrameReader::new(MAX_FRAME);
    let first = tokio::time::timeout(patience, opening(stream, &mut reader));
    let opening = first.await.map_err(|_| Refusal::Silent)??;
    judge_opening(&opening, expected)?;
    let hello = match opening {
        Opening::Report(report) => Some(report),
        Opening::Resume(_) => None,
    };
    Ok((hello, reader))
}

fn judge_opening(opening: &Opening, expected: &Expected) -> Result<(), Refusal> {
    match opening {
        Opening::Report(report) => {
            let Body::Hello(hello) = &report.message.body else {
                return Err(Refusal::NoHello);
            };
            match expected {
                Expected::Newcomer {
                    nonce,
                    policy_digest,
                } => judge(hello, nonce, policy_digest.as_deref()),
                Expected::Returner { .. } => Err(Refusal::NotDue {
                    said: HELLO,
                    due: RESUME,
                }),
            }
        }
        Opening::Resume(resume) => match expected {
            Expected::Returner { token, .. } => judge_return(resume, token),
            Expected::Newcomer { .. } => Err(Refusal::NotDue {
                said: RESUME,
                due: HELLO,
            }),
        },
    }
}

fn judge(hello: &Hello, nonce: &Secret, policy_digest: Option<&str>) -> Result<(), Refusal> {
    if hello.protocol != PROTOCOL {
        return Err(Refusal::Protocol(hello.protocol));
    }
    if !nonce.matches(&hello.nonce) {
        return Err(Refusal::Nonce);
    }
    let Some(ours) = policy_digest else {
        return Ok(());
    };
    let theirs = hello
        .policy_digest
        .as_ref()
        .map_or("none", Printable::as_str);
    if theirs == ours {
        return Ok(());
    }
    Err(Refusal::Policy {
        version: hello.version.clone(),
        theirs: Printable::new(theirs),
        ours: ours.to_owned(),
    })
}

fn judge_return(resume: &Resume, token: &Secret) -> Result<(), Refusal> {
    if resume.protocol != PROTOCOL {
        Err(Refusal::Protocol(resume.protocol))
    } else if token.matches(&resume.resume_token) {
        Ok(())
    } else {
        Err(Refusal::Token)
    }
}

async fn opening(stream: &UnixStream, reader: &mut FrameReader) -> Result<Opening, Refusal> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(line) = reader.next_line()? {
            return Ok(Opening::read(line)?);
        }
        stream.readable().await.map_err(Refusal::Gone)?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Err(Refusal::Gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => reader.push(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Refusal::Gone(error)),
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs())
}

const HELLO: &str = "hello";
const RESUME: &str = "resume";
/// As long as the container itself waits for its welcome.
const PATIENCE: Duration = Duration::from_secs(5);
/// The engine starts a process first.
const PATIENCE_WITH_ENGINES: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(nonce: &str, protocol: u32, digest: Option<&str>) -> Hello {
        let version = Printable::new("9.9");
        Hello {
            protocol,
            nonce: nonce.into(),
            version,
            policy_digest: digest.map(Printable::new),
            guest_uid: 1000,
            named: None,
        }
    }

    #[test]
    fn only_the_right_secret_protocol_and_policy_pass() {
        let nonce = Secret::random().unwrap();
        let right = nonce.expose();
        assert!(judge(&hello(right, PROTOCOL, Some("aa")), &nonce, Some("aa")).is_ok());
        for (said, refusal) in [
            (hello("", PROTOCOL, Some("aa")), "nonce"),
            (hello(right, PROTOCOL + 1, Some("aa")), "protocol 2"),
            (hello(right, PROTOCOL, Some("bb")), "digest bb, here aa"),
            (hello(right, PROTOCOL, None), "digest none"),
        ] {
            let line = judge(&said, &nonce, Some("aa")).unwrap_err().to_string();
            assert!(line.contains(refusal), "{line}");
        }
    }

    #[test]
    fn without_a_policy_to_compare_any_digest_passes() {
        let nonce = Secret::random().unwrap();
        let said = hello(nonce.expose(), PROTOCOL, Some("bb"));
        assert!(judge(&said, &nonce, None).is_ok());
    }

    #[test]
    fn only_the_right_token_comes_back() {
        let token = Secret::random().unwrap();
        let resume = |protocol, resume_token: &str| Resume {
            protocol,
            resume_token: resume_token.into(),
        };
        assert!(judge_return(&resume(PROTOCOL, token.expose()), &token).is_ok());
        for (said, refusal) in [
            (resume(PROTOCOL, ""), "resume token"),
            (resume(PROTOCOL, &token.expose()[1..]), "resume token"),
            (resume(PROTOCOL + 1, token.expose()), "protocol 2"),
        ] {
            let line = judge_return(&said, &token).unwrap_err().to_string();
            assert!(line.contains(refusal), "{line}");
        }
    }

    #[test]
    fn who_is_new_cannot_come_back_and_who_was_here_cannot_be_new() {
        let secret = Secret::random().unwrap();
        let newcomer = Expected::Newcomer {
            nonce: secret.clone(),
            policy_digest: None,
        };
        let returner = Expected::Returner {
            token: secret.clone(),
            process: Some(Identity {
                pid: 1,
                start_time: 1,
            }),
        };
        let resume = format!(
            r#"{{"type":"resume","protocol":1,"resume_token":"{}"}}"#,
            secret.expose()
        );
        let hello = format!(
            r#"{{"type":"hello","protocol":1,"nonce":"{}","version":"1","guest_uid":1,"seq":1,"t":1}}"#,
            secret.expose()
        );
        let judged = |line: &str, expected| {
            judge_opening(&Opening::read(line.as_bytes()).unwrap(), expected)
        };
        assert!(judged(&hello, &newcomer).is_ok() && judged(&resume, &returner).is_ok());
        for (line, expected, due) in [(&hello, &returner, "resume"), (&resume, &newcomer, "hello")]
        {
            let refusal = judged(line, expected).unwrap_err().to_string();
            assert!(
                refusal.contains(&format!("only a {due} is due")),
                "{refusal}"
            );
        }
    }

    #[test]
    fn every_refusal_is_one_line() {
        for refusal in [
            Refusal::Silent,
            Refusal::NoHello,
            Refusal::Nonce,
            Refusal::Protocol(9),
            Refusal::Token,
            Refusal::Stranger,
            Refusal::NotDue {
                said: HELLO,
                due: RESUME,
            },
            Refusal::Frame(FrameError::TooLong { limit: 7 }),
            Refusal::Gone(io::ErrorKind::UnexpectedEof.into()),
            Refusal::Unpinned(io::ErrorKind::NotFound.into()),
            Refusal::Policy {
                version: Printable::new("1\n"),
                theirs: Printable::new("\u{1b}"),
                ours: "aa".into(),
            },
        ] {
            let line = refusal.to_string();
            assert!(
                !line.contains(char::is_control) && line.len() > 10,
                "{line}"
            );
        }
    }
}
