//! Decides whether a peer is the container that was launched: one hello, judged before anything else.

use std::{io, time::Duration};

use report::{Body, FrameError, FrameReader, Hello, MAX_FRAME, PROTOCOL, Printable, Report};
use tokio::net::UnixStream;

use super::{peer::Peer, secret::Secret};

/// What a hello must say.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) nonce: Secret,
    pub(crate) policy_digest: Option<String>,
}

/// A peer whose hello is accepted. Only [`greet`] makes one.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) stream: UnixStream,
    pub(crate) peer: Peer,
    pub(crate) hello: Report,
    /// Holds what came after the hello, if anything did.
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
    /// Its process could not be pinned.
    #[error("its process could not be pinned: {0}")]
    Unpinned(io::Error),
}

/// Reads the first message of a peer and judges it.
pub(crate) async fn greet(stream: UnixStream, expected: &Expected) -> Result<Greeted, Refusal> {
    let mut reader = FrameReader::new(MAX_FRAME);
    let first = tokio::time::timeout(PATIENCE, first_message(&stream, &mut reader));
    let hello = first.await.map_err(|_| Refusal::Silent)??;
    let Body::Hello(said) = &hello.message.body else {
        return Err(Refusal::NoHello);
    };
    judge(said, expected)?;
    let peer = Peer::pin(&stream).map_err(Refusal::Unpinned)?;
    Ok(Greeted {
        stream,
        peer,
        hello,
        reader,
    })
}

fn judge(hello: &Hello, expected: &Expected) -> Result<(), Refusal> {
    if hello.protocol != PROTOCOL {
        return Err(Refusal::Protocol(hello.protocol));
    }
    if !expected.nonce.matches(&hello.nonce) {
        return Err(Refusal::Nonce);
    }
    let Some(ours) = &expected.policy_digest else {
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
        ours: ours.clone(),
    })
}

async fn first_message(stream: &UnixStream, reader: &mut FrameReader) -> Result<Report, Refusal> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(line) = reader.next_line()? {
            return Ok(Report::read(line)?);
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

/// As long as the container itself waits for its welcome.
const PATIENCE: Duration = Duration::from_secs(5);

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
        }
    }

    #[test]
    fn only_the_right_secret_protocol_and_policy_pass() {
        let nonce = Secret::random().unwrap();
        let right = nonce.expose().to_owned();
        let expected = Expected {
            nonce,
            policy_digest: Some("aa".into()),
        };
        assert!(judge(&hello(&right, PROTOCOL, Some("aa")), &expected).is_ok());
        for (said, refusal) in [
            (hello("", PROTOCOL, Some("aa")), "nonce"),
            (hello(&right, PROTOCOL + 1, Some("aa")), "protocol 2"),
            (hello(&right, PROTOCOL, Some("bb")), "digest bb, here aa"),
            (hello(&right, PROTOCOL, None), "digest none"),
        ] {
            let line = judge(&said, &expected).unwrap_err().to_string();
            assert!(line.contains(refusal), "{line}");
        }
    }

    #[test]
    fn without_a_policy_to_compare_any_digest_passes() {
        let expected = Expected {
            nonce: Secret::random().unwrap(),
            policy_digest: None,
        };
        let right = expected.nonce.expose().to_owned();
        assert!(judge(&hello(&right, PROTOCOL, Some("bb")), &expected).is_ok());
    }

    #[test]
    fn every_refusal_is_one_line() {
        for refusal in [
            Refusal::Silent,
            Refusal::NoHello,
            Refusal::Nonce,
            Refusal::Protocol(9),
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
