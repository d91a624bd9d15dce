//! The proxy's answer to a `CONNECT`: a connection, or why there is none.

use std::io::{self, Read, Write};

use policy::Destination;
use serde::Deserialize;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotEstablished {
    #[error("denied: {reason}{}", .hint.as_ref().map(|hint| format!(": {hint}")).unwrap_or_default())]
    Denied {
        reason: String,
        hint: Option<String>,
    },
    #[error("failed: {cause}: {detail}")]
    Failed { cause: String, detail: String },
    #[error("the proxy answered {status} and no reason")]
    Unexplained { status: u16 },
    #[error("the proxy did not answer in HTTP/1.1")]
    NotHttp,
    #[error("the proxy did not answer")]
    NoAnswer,
}

/// What the proxy says in its body.
#[derive(Deserialize)]
struct Body {
    reason: Option<String>,
    hint: Option<String>,
    cause: Option<String>,
    detail: Option<String>,
}

/// Asks for a connection, and gives back what came on it together with the answer.
pub(super) fn ask(
    stream: &mut (impl Read + Write),
    destination: &Destination,
) -> Result<Vec<u8>, NotEstablished> {
    let request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n");
    let sent = stream.write_all(request.as_bytes());
    sent.map_err(|_| NotEstablished::NoAnswer)?;
    let mut bytes = Vec::new();
    let (status, length) = loop {
        if let Some(head) = head(&bytes)? {
            break head;
        }
        match more(stream, &mut bytes) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(NotEstablished::NoAnswer),
        }
    };
    if (200..300).contains(&status) {
        return Ok(bytes.split_off(length));
    }
    // The proxy ends the connection after it, so that it is whole where nothing more comes.
    while bytes.len() < MAX_ANSWER && matches!(more(stream, &mut bytes), Ok(1..)) {}
    Err(explained(status, bytes.get(length..).unwrap_or_default()))
}

/// The status, and how long the head is; `None` until it is whole.
fn head(bytes: &[u8]) -> Result<Option<(u16, usize)>, NotEstablished> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => Ok(response.code.map(|status| (status, length))),
        Ok(httparse::Status::Partial) if bytes.len() < MAX_ANSWER => Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => Err(NotEstablished::NotHttp),
    }
}

fn explained(status: u16, body: &[u8]) -> NotEstablished {
    match serde_json::from_slice(body) {
        Ok(Body {
            reason: Some(reason),
            hint,
            ..
        }) => NotEstablished::Denied { reason, hint },
        Ok(Body {
            cause: Some(cause),
            detail: Some(detail),
            ..
        }) => NotEstablished::Failed { cause, detail },
        Ok(_) | Err(_) => NotEstablished::Unexplained { status },
    }
}

fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 4096];
    let length = loop {
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    bytes.extend_from_slice(buffer.get(..length).unwrap_or_default());
    Ok(length)
}

/// No answer of the proxy's is nearly as long.
const MAX_ANSWER: usize = 64 * 1024;
const MAX_FIELDS: usize = 32;

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A proxy that answers so, in reads of at most `piece` bytes.
    struct Played {
        answer: Cursor<Vec<u8>>,
        piece: usize,
        asked: Vec<u8>,
    }

    impl Read for Played {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(self.piece);
            self.answer.read(&mut buffer[..length])
        }
    }

    impl Write for Played {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answered(answer: &[u8], piece: usize) -> (Result<Vec<u8>, String>, String) {
        let mut played = Played {
            answer: Cursor::new(answer.to_vec()),
            piece,
            asked: Vec::new(),
        };
        let destination = Destination::parse("2001:db8::1", 22).unwrap();
        let early = ask(&mut played, &destination).map_err(|error| error.to_string());
        (early, String::from_utf8(played.asked).unwrap())
    }

    #[test]
    fn what_came_with_the_answer_belongs_to_the_connection() {
        let answer = b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-x\r\n";
        let (early, asked) = answered(answer, 4096);
        assert_eq!(early.unwrap(), b"SSH-2.0-x\r\n");
        let request = "CONNECT [2001:db8::1]:22 HTTP/1.1\r\nHost: [2001:db8::1]:22\r\n\r\n";
        assert_eq!(asked, request);
        assert_eq!(answered(answer, 1).0.unwrap(), b"");
    }

    #[test]
    fn a_refusal_is_told_with_its_reason_and_its_remedy() {
        let denied = |body: &str| format!("HTTP/1.1 403 egress denied\r\nX: y\r\n\r\n{body}");
        for (body, words) in [
            (
                r#"{"error":"egress_denied","reason":"not_allowed","hint":"add it"}"#,
                "denied: not_allowed: add it",
            ),
            (r#"{"reason":"limit","hint":null}"#, "denied: limit"),
            (
                r#"{"error":"egress_failed","cause":"dns_error","detail":"no such name"}"#,
                "failed: dns_error: no such name",
            ),
            ("", "the proxy answered 403 and no reason"),
            ("{}", "the proxy answered 403 and no reason"),
            ("[1", "the proxy answered 403 and no reason"),
        ] {
            let answer = denied(body);
            for piece in [1, 7, 4096] {
                let (early, _) = answered(answer.as_bytes(), piece);
                assert_eq!(early.unwrap_err(), words, "{body}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_told_so() {
        for (answer, words) in [
            (&b""[..], "the proxy did not answer"),
            (b"HTTP/1.1 200 OK\r\n", "the proxy did not answer"),
            (b"SSH-2.0-x\r\n", "the proxy did not answer in HTTP/1.1"),
        ] {
            assert_eq!(answered(answer, 4096).0.unwrap_err(), words);
        }
    }

    #[test]
    fn an_answer_without_end_is_given_up() {
        let mut endless = b"HTTP/1.1 403 no\r\nX: ".to_vec();
        endless.resize(2 * MAX_ANSWER, b'x');
        let (early, _) = answered(&endless, 4096);
        assert_eq!(early.unwrap_err(), "the proxy did not answer in HTTP/1.1");
        let mut endless = b"HTTP/1.1 403 no\r\n\r\n".to_vec();
        endless.resize(100 * MAX_ANSWER, b'x');
        let mut played = Played {
            answer: Cursor::new(endless),
            piece: 4096,
            asked: Vec::new(),
        };
        let destination = Destination::parse("a.example", 22).unwrap();
        ask(&mut played, &destination).unwrap_err();
        assert!(played.answer.position() < 2 * MAX_ANSWER as u64);
    }
}
