//! Writes an origin's response to the client that asked, as it comes.

use std::{error::Error, fmt::Write as _, io};

use bytes::{Buf, Bytes};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header,
    response::Parts,
};
use http_body::Body;
use http_body_util::BodyExt as _;
use hyper::ext::ReasonPhrase;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::{
    answer::{
        After,
        Body::{Sent, Withheld},
        Manner,
    },
    head::{Framing, Head},
    outgoing::{self, connection_options, strip_hop_by_hop, upgrade},
    trailers,
};

/// What of a request bears on how its response is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    version: Version,
    is_head: bool,
    after: After,
    /// It waits for `100 Continue` before it sends its body.
    pub(crate) waits: bool,
    /// It asks to switch to another protocol, and may.
    pub(crate) upgrades: bool,
}

/// How the end of the response is told to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NoBody,
    Length,
    Chunks,
    Close,
}

impl Requester {
    pub(crate) fn of(head: &Head) -> Self {
        let wants_close = connection_options(&head.headers).any(|option| option == "close");
        let keeps = head.version == Version::HTTP_11 && !wants_close;
        Self {
            version: head.version,
            is_head: head.method == Method::HEAD,
            after: if keeps { After::Keep } else { After::Close },
            waits: outgoing::waits(head),
            upgrades: head.version == Version::HTTP_11 && upgrade(&head.headers).is_some(),
        }
    }

    /// How it is answered where nobody but us has seen it.
    pub(crate) fn manner(self, framing: Framing) -> Manner {
        Manner {
            body: if self.is_head { Withheld } else { Sent },
            // A body that nobody wants is not read, so that no next request could be found behind it.
            after: if framing == Framing::Empty {
                self.after
            } else {
                After::Close
            },
        }
    }

    /// The same, of a client whose connection is of no more use.
    pub(crate) fn closing(self) -> Self {
        Self {
            after: After::Close,
            ..self
        }
    }

    /// What it understands.
    pub(crate) fn version(self) -> Version {
        self.version
    }

    fn ending(self, status: StatusCode, length: Option<u64>) -> Ending {
        let bodiless =
            self.is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match (length, self.version) {
            _ if bodiless => Ending::NoBody,
            (Some(_), _) => Ending::Length,
            (None, Version::HTTP_11) => Ending::Chunks,
            (None, _) => Ending::Close,
        }
    }
}

/// Sends `response`, and says what becomes of the connection.
///
/// # Errors
/// When either end fails. The client sees a response that is cut short, never one that looks whole.
pub(crate) async fn send<W, B>(
    client: &mut W,
    response: Response<B>,
    requester: Requester,
) -> io::Result<After>
where
    W: AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + Send + Sync + 'static,
{
    let (mut parts, mut body) = response.into_parts();
    let length = body.size_hint().exact();
    let ending = requester.ending(parts.status, length);
    let after = if ending == Ending::Close {
        After::Close
    } else {
        requester.after
    };
    strip_hop_by_hop(&mut parts.headers);
    if ending != Ending::NoBody {
        // One framing, ours: an origin that sent two had one of them overruled.
        parts.headers.remove(header::CONTENT_LENGTH);
        parts
            .headers
            .extend(length.map(|length| (header::CONTENT_LENGTH, length.into())));
    }
    if ending != Ending::Chunks {
        parts.headers.remove(header::TRAILER);
    }
    client.write_all(&head(&parts, ending, after)).await?;
    let mut end = with_fields("0\r\n".to_owned(), &HeaderMap::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))?;
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let fields = frame.into_trailers().unwrap_or_default();
                end = with_fields("0\r\n".to_owned(), trailers::passed_on(&fields));
                continue;
            }
        };
        match ending {
            Ending::NoBody => {}
            Ending::Chunks if data.is_empty() => {}
            Ending::Chunks => client.write_all_buf(&mut chunk(data)).await?,
            Ending::Length | Ending::Close => client.write_all(&data).await?,
        }
    }
    if ending == Ending::Chunks {
        client.write_all(&end).await?;
    }
    Ok(after)
}

/// A response before the response.
pub(crate) fn interim(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let mut headers = headers.clone();
    strip_hop_by_hop(&mut headers);
    // It has no body, whatever it says.
    headers.remove(header::CONTENT_LENGTH);
    with_fields(status_line(status, &Extensions::new()), &headers)
}

/// The head of `101 Switching Protocols`, the only response that keeps `Upgrade`.
pub(crate) fn switching<B>(response: &Response<B>) -> Vec<u8> {
    let mut headers = response.headers().clone();
    let protocol = headers.get(header::UPGRADE).cloned();
    strip_hop_by_hop(&mut headers);
    let mut head = status_line(response.status(), response.extensions());
    head.push_str("Connection: upgrade\r\n");
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol);
    }
    with_fields(head, &headers)
}

fn head(parts: &Parts, ending: Ending, after: After) -> Vec<u8> {
    let mut head = status_line(parts.status, &parts.extensions);
    if ending == Ending::Chunks {
        head.push_str("Transfer-Encoding: chunked\r\n");
    }
    if after == After::Close {
        head.push_str("Connection: close\r\n");
    }
    with_fields(head, &parts.headers)
}

fn status_line(status: StatusCode, extensions: &Extensions) -> String {
    let phrase = match extensions.get::<ReasonPhrase>() {
        Some(phrase) => String::from_utf8_lossy(phrase.as_bytes()),
        None => status.canonical_reason().unwrap_or_default().into(),
    };
    format!("HTTP/1.1 {} {phrase}\r\n", status.as_u16())
}

fn with_fields<'h>(
    head: String,
    headers: impl IntoIterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) -> Vec<u8> {
    let mut head = head.into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn chunk(data: Bytes) -> impl Buf {
    let mut size = String::with_capacity(18);
    // Writing to a String cannot fail.
    let _ = write!(size, "{:x}\r\n", data.len());
    Bytes::from(size)
        .chain(data)
        .chain(Bytes::from_static(b"\r\n"))
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use http_body::Frame;

    use super::*;

    fn requester(raw: &str) -> Requester {
        Requester::of(
            &Head::parse(raw.as_bytes())
                .unwrap()
                .expect("a whole head")
                .0,
        )
    }

    #[test]
    fn a_connection_is_kept_if_the_client_can_and_wants_to() {
        for (raw, after) in [
            ("GET / HTTP/1.1\r\n\r\n", After::Keep),
            ("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", After::Close),
            (
                "GET / HTTP/1.1\r\nProxy-Connection: close\r\n\r\n",
                After::Close,
            ),
            (
                "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                After::Close,
            ),
        ] {
            assert_eq!(requester(raw).after, after, "{raw:?}");
        }
    }

    #[test]
    fn the_end_of_a_response_is_told_in_a_way_the_client_knows() {
        let new = requester("GET / HTTP/1.1\r\n\r\n");
        let old = requester("GET / HTTP/1.0\r\n\r\n");
        let head = requester("HEAD / HTTP/1.1\r\n\r\n");
        for (requester, status, length, ending) in [
            (new, StatusCode::OK, Some(3), Ending::Length),
            (new, StatusCode::OK, None, Ending::Chunks),
            (old, StatusCode::OK, None, Ending::Close),
            (old, StatusCode::OK, Some(3), Ending::Length),
            (head, StatusCode::OK, None, Ending::NoBody),
            (new, StatusCode::NO_CONTENT, None, Ending::NoBody),
            (new, StatusCode::NOT_MODIFIED, Some(0), Ending::NoBody),
        ] {
            assert_eq!(
                requester.ending(status, length),
                ending,
                "{requester:?} {status} {length:?}"
            );
        }
    }

    #[test]
    fn a_switch_of_protocols_keeps_what_it_switches_to() {
        let response = Response::builder()
            .status(101)
            .header("upgrade", "websocket")
            .header("connection", "Upgrade, X-Hop")
            .header("x-hop", "1")
            .header("sec-websocket-accept", "y")
            .body(())
            .unwrap();
        let text = String::from_utf8(switching(&response)).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"),
            "{text}"
        );
        for kept in [
            "\r\nupgrade: websocket\r\n",
            "\r\nsec-websocket-accept: y\r\n",
        ] {
            assert!(text.contains(kept), "{kept:?} in {text}");
        }
        assert!(!text.contains("x-hop"), "{text}");
    }

    #[test]
    fn only_an_expectation_that_is_known_is_waited_on() {
        assert!(requester("POST / HTTP/1.1\r\nExpect: 100-Continue\r\n\r\n").waits);
        assert!(!requester("POST / HTTP/1.1\r\nExpect: more\r\n\r\n").waits);
        assert!(!requester("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").waits);
    }

    /// A body that comes in these pieces, and then ends or fails.
    struct Pieces(Vec<Result<Frame<Bytes>, io::Error>>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            Poll::Ready(self.0.pop())
        }
    }

    fn data(piece: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from(piece))
    }

    /// What a client sees of a response whose body comes in `pieces`, and how sending it ended.
    async fn seen(
        request: &str,
        pieces: Vec<Result<Frame<Bytes>, io::Error>>,
    ) -> (String, io::Result<After>) {
        let body = Pieces(pieces.into_iter().rev().collect());
        let mut seen = Vec::new();
        let end = send(&mut seen, Response::new(body), requester(request)).await;
        (String::from_utf8(seen).unwrap(), end)
    }

    const NEW: &str = "GET / HTTP/1.1\r\n\r\n";
    const OLD: &str = "GET / HTTP/1.0\r\n\r\n";

    #[tokio::test]
    async fn every_piece_is_a_chunk_and_none_is_taken_for_the_end() {
        let (seen, end) = seen(
            NEW,
            vec![Ok(data("one")), Ok(data("")), Ok(data("two and more"))],
        )
        .await;
        let chunks = "3\r\none\r\nc\r\ntwo and more\r\n0\r\n\r\n";
        assert_eq!(
            seen,
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}")
        );
        assert_eq!(end.unwrap(), After::Keep);
    }

    #[tokio::test]
    async fn trailers_follow_the_last_chunk_less_what_belongs_into_a_head() {
        let fields = [header::ETAG, header::SET_COOKIE, header::CONTENT_LENGTH];
        let fields = fields.map(|name| (name, HeaderValue::from_static("7")));
        let trailers = || Ok(Frame::trailers(HeaderMap::from_iter(fields.clone())));
        let (new, _) = seen(NEW, vec![Ok(data("one")), trailers()]).await;
        assert!(
            new.ends_with("\r\n\r\n3\r\none\r\n0\r\netag: 7\r\n\r\n"),
            "{new}"
        );
        // Who takes no chunks has no place for them.
        let (old, _) = seen(OLD, vec![Ok(data("one")), trailers()]).await;
        assert!(old.ends_with("\r\n\r\none"), "{old}");
    }

    #[test]
    fn a_response_before_the_response_is_a_head_and_nothing_else() {
        let fields = [
            (header::LINK, HeaderValue::from_static("</x>")),
            (header::CONNECTION, HeaderValue::from_static("close")),
            (header::CONTENT_LENGTH, HeaderValue::from_static("5")),
        ];
        let head = interim(StatusCode::EARLY_HINTS, &fields.into_iter().collect());
        assert_eq!(head, b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
    }

    #[tokio::test]
    async fn a_body_for_an_old_client_ends_with_its_connection() {
        let (seen, end) = seen(OLD, vec![Ok(data("one")), Ok(data("two"))]).await;
        assert_eq!(seen, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonetwo");
        assert_eq!(end.unwrap(), After::Close);
    }

    #[tokio::test]
    async fn a_body_that_fails_is_an_error_and_has_no_last_chunk() {
        for request in [NEW, OLD] {
            let failure = Err(io::ErrorKind::ConnectionReset.into());
            let (seen, end) = seen(request, vec![Ok(data("one")), failure]).await;
            assert!(end.is_err() && !seen.contains("0\r\n\r\n"), "{seen}");
        }
    }

    #[tokio::test]
    async fn a_length_is_told_as_the_origin_told_it() {
        let mut seen = Vec::new();
        let response = Response::new(http_body_util::Full::new(Bytes::from("three")));
        let after = send(&mut seen, response, requester(NEW)).await.unwrap();
        assert_eq!(
            String::from_utf8(seen).unwrap(),
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthree"
        );
        assert_eq!(after, After::Keep);
    }
}
