//! Carries the body of a request from the client to the origin, chunk by chunk, held nowhere whole.
//!
//! The framing is taken off here and put on again by hyper, so no framing byte of the guest's
//! reaches the origin. A body counts as ended only if its end was seen: one that is cut short must
//! never look complete to whoever acts on it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::mpsc,
};

use crate::{head::Framing, trailers};

/// The body of a request, as hyper sends it.
#[derive(Debug)]
pub(crate) struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Empty,
    Stream(mpsc::Receiver<Part>),
    Ended,
}

#[derive(Debug)]
enum Part {
    Bytes(Bytes),
    Trailers(HeaderMap),
    End,
}

/// Where the body of a request is fed from.
#[derive(Debug)]
pub(crate) struct Feed {
    parts: mpsc::Sender<Part>,
    /// The fields that may follow the body: hyper writes no others.
    pub(crate) announced: Vec<HeaderName>,
}

/// The body ended without its end having been seen.
#[derive(Debug, thiserror::Error)]
#[error("the client did not send its whole body")]
pub(crate) struct CutShort;

/// Why no more of a body is taken from the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client ended the connection, or it failed.
    #[error("the client is gone")]
    Gone(#[from] io::Error),
    /// It is not in chunks (RFC 9112 §7.1).
    #[error("the body is not in chunks")]
    Chunks,
}

/// How far a body was carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// To its end: what follows on the connection is the next request.
    Whole,
    /// Until the origin took no more: what follows is the rest of it.
    Partly,
}

impl RequestBody {
    /// A body, and where to feed it from unless it is empty.
    pub(crate) fn new(framing: Framing) -> (Self, Option<Feed>) {
        if framing == Framing::Empty {
            return (Self(Source::Empty), None);
        }
        let (sender, receiver) = mpsc::channel(1);
        let feed = Feed {
            parts: sender,
            announced: Vec::new(),
        };
        (Self(Source::Stream(receiver)), Some(feed))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        let Source::Stream(parts) = &mut self.0 else {
            return Poll::Ready(None);
        };
        match parts.poll_recv(cx) {
            Poll::Ready(Some(Part::Bytes(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(Some(Part::Trailers(fields))) => {
                Poll::Ready(Some(Ok(Frame::trailers(fields))))
            }
            Poll::Ready(Some(Part::End)) => {
                self.0 = Source::Ended;
                Poll::Ready(None)
            }
            Poll::Ready(None) => Poll::Ready(Some(Err(CutShort))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Source::Empty | Source::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            SizeHint::with_exact(0)
        } else {
            SizeHint::default()
        }
    }
}

/// Carries one body from `source`, of which `pending` was read already, into `feed`.
pub(crate) async fn carry<R: AsyncRead + Unpin>(
    source: &mut R,
    pending: &mut BytesMut,
    framing: Framing,
    feed: Feed,
) -> Result<Carried, BodyError> {
    let mut reader = Reader {
        source,
        pending,
        feed,
    };
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => {
            if reader.bytes(length).await? == Carried::Partly {
                return Ok(Carried::Partly);
            }
        }
        Framing::Chunked => {
            if reader.chunks().await? == Carried::Partly {
                return Ok(Carried::Partly);
            }
        }
    }
    // Who knows the length from the start may have stopped listening: the body is whole all the same.
    let _ = reader.feed.parts.send(Part::End).await;
    Ok(Carried::Whole)
}

struct Reader<'a, R> {
    source: &'a mut R,
    pending: &'a mut BytesMut,
    feed: Feed,
}

impl<R: AsyncRead + Unpin> Reader<'_, R> {
    async fn bytes(&mut self, mut left: u64) -> Result<Carried, BodyError> {
        while left > 0 {
            if self.pending.is_empty() {
                self.more().await?;
            }
            let length = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(self.pending.len());
            let part = self.pending.split_to(length).freeze();
            left -= length as u64;
            if self.feed.parts.send(Part::Bytes(part)).await.is_err() {
                return Ok(Carried::Partly);
            }
        }
        Ok(Carried::Whole)
    }

    async fn chunks(&mut self) -> Result<Carried, BodyError> {
        loop {
            let line = self.line().await?;
            let size = chunk_size(&line).ok_or(BodyError::Chunks)?;
            if size == 0 {
                let trailers = self.trailers().await?;
                if !trailers.is_empty() {
                    // Who has stopped listening has the body whole all the same.
                    let _ = self.feed.parts.send(Part::Trailers(trailers)).await;
                }
                return Ok(Carried::Whole);
            }
            if self.bytes(size).await? == Carried::Partly {
                return Ok(Carried::Partly);
            }
            if !self.line().await?.is_empty() {
                return Err(BodyError::Chunks);
            }
        }
    }

    /// The fields behind the last chunk, of which those are kept that were announced.
    async fn trailers(&mut self) -> Result<HeaderMap, BodyError> {
        let mut kept = HeaderMap::new();
        for _ in 0..MAX_TRAILERS {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(kept);
            }
            let (name, value) = trailers::field(&line).ok_or(BodyError::Chunks)?;
            if self.feed.announced.contains(&name) {
                kept.append(name, value);
            }
        }
        Err(BodyError::Chunks)
    }

    /// Takes the next line, which ends in CR LF and nothing else.
    async fn line(&mut self) -> Result<Bytes, BodyError> {
        loop {
            if let Some(end) = self.pending.iter().position(|&b| b == b'\n') {
                let mut line = self.pending.split_to(end + 1).freeze();
                if !line.ends_with(b"\r\n") {
                    return Err(BodyError::Chunks);
                }
                line.truncate(end - 1);
                return Ok(line);
            }
            if self.pending.remaining() > MAX_LINE {
                return Err(BodyError::Chunks);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), BodyError> {
        self.pending.reserve(READ_SIZE);
        match self.source.read_buf(self.pending).await? {
            0 => Err(BodyError::Gone(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }
}

/// Up to 15 hexadecimal digits, then nothing or an extension (RFC 9112 §7.1.1).
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&b| b == b';').next().unwrap_or_default();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

const READ_SIZE: usize = 16 * 1024;
const MAX_LINE: usize = 4096;
const MAX_TRAILERS: usize = 100;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use proptest::prelude::*;

    use super::*;

    /// Carries a body of which `cut` bytes were read with the head.
    async fn carried(
        raw: &[u8],
        cut: usize,
        framing: Framing,
    ) -> (
        Result<Carried, BodyError>,
        Result<Bytes, CutShort>,
        BytesMut,
    ) {
        let (early, mut late) = raw.split_at(cut);
        let mut pending = BytesMut::from(early);
        let (body, feed) = RequestBody::new(framing);
        let (carried, collected) = tokio::join!(
            carry(&mut late, &mut pending, framing, feed.unwrap()),
            body.collect()
        );
        pending.extend_from_slice(late);
        (
            carried,
            collected.map(http_body_util::Collected::to_bytes),
            pending,
        )
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    proptest! {
        #[test]
        fn a_body_is_carried_whole_and_what_follows_it_is_left(cut in 0usize..40) {
            for (raw, framing) in [
                (&b"hello worldGET / HTTP/1.1\r\n"[..], Framing::Length(11)),
                (b"6\r\nhello \r\n005;x=y\r\nworld\r\n0\r\nT: u\r\n\r\nGET / HTTP/1.1\r\n", Framing::Chunked),
            ] {
                let cut = cut.min(raw.len());
                let (end, body, rest) = run(carried(raw, cut, framing));
                prop_assert_eq!(end.unwrap(), Carried::Whole);
                prop_assert_eq!(&body.unwrap()[..], b"hello world");
                prop_assert_eq!(&rest[..], b"GET / HTTP/1.1\r\n");
            }
        }

        #[test]
        fn a_body_that_is_cut_short_never_looks_complete(cut in 0usize..26) {
            for (raw, framing) in [
                (&b"hello world"[..], Framing::Length(12)),
                (&b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"[..cut], Framing::Chunked),
            ] {
                let (end, body, _) = run(carried(raw, 0, framing));
                prop_assert!(matches!(end, Err(BodyError::Gone(_))), "{end:?}");
                prop_assert!(body.is_err());
            }
        }
    }

    #[test]
    fn chunks_with_two_readings_are_refused() {
        for raw in [
            "\r\nhello",
            "+5\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            "-1\r\n",
            ";x\r\n",
            "1000000000000000\r\n",
            "fffffffffffffffff\r\n",
            "5\r\nhello\n0\r\n\r\n",
        ] {
            let (end, body, _) = run(carried(raw.as_bytes(), 0, Framing::Chunked));
            assert!(matches!(end, Err(BodyError::Chunks)), "{raw:?}: {end:?}");
            assert!(body.is_err(), "{raw:?}");
        }
    }

    #[test]
    fn a_size_line_and_trailers_are_bounded() {
        for raw in [
            format!("1;{}", "x".repeat(MAX_LINE)),
            format!("0\r\n{}", "T: u\r\n".repeat(MAX_TRAILERS + 1)),
        ] {
            let (end, _, _) = run(carried(raw.as_bytes(), 0, Framing::Chunked));
            assert!(matches!(end, Err(BodyError::Chunks)), "{end:?}");
        }
    }

    #[test]
    fn announced_trailers_follow_the_body_and_others_do_not() {
        let raw = b"2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\nx-sum: 3\r\n\r\n";
        let (body, feed) = RequestBody::new(Framing::Chunked);
        let mut feed = feed.unwrap();
        feed.announced = vec![HeaderName::from_static("x-sum")];
        let (mut source, mut pending) = (&raw[..], BytesMut::new());
        let carrying = carry(&mut source, &mut pending, Framing::Chunked, feed);
        let (end, body) = run(async { tokio::join!(carrying, body.collect()) });
        assert_eq!(end.unwrap(), Carried::Whole);
        let body = body.unwrap();
        let trailers = body.trailers().unwrap();
        assert_eq!(trailers.get_all("x-sum").iter().count(), 2);
        assert!(!trailers.contains_key("x-other"));
    }

    #[test]
    fn a_trailer_that_is_no_field_is_refused() {
        for raw in [
            "0\r\nx\r\n\r\n",
            "0\r\nT: u\r\n folded\r\n\r\n",
            "0\r\n: x\r\n\r\n",
        ] {
            let (end, body, _) = run(carried(raw.as_bytes(), 0, Framing::Chunked));
            assert!(matches!(end, Err(BodyError::Chunks)), "{raw:?}");
            assert!(body.is_err(), "{raw:?}");
        }
    }

    #[test]
    fn while_the_origin_takes_nothing_no_more_than_a_few_reads_are_taken_from_the_client() {
        let (body, feed) = RequestBody::new(Framing::Length(u64::MAX));
        let mut taken = tokio::io::repeat(b'x').take(1 << 30);
        let mut pending = BytesMut::new();
        let carrying = carry(
            &mut taken,
            &mut pending,
            Framing::Length(u64::MAX),
            feed.unwrap(),
        );
        let mut carrying = Box::pin(carrying);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..1000 {
            assert!(Future::poll(carrying.as_mut(), &mut cx).is_pending());
        }
        drop(carrying);
        let held = (1 << 30) - taken.limit();
        assert!(held <= 4 * READ_SIZE as u64, "{held} bytes are held");
        drop(body);
    }

    #[test]
    fn an_origin_that_takes_no_more_stops_the_carrying() {
        let (body, feed) = RequestBody::new(Framing::Length(100_000));
        drop(body);
        let raw = vec![b'x'; 100_000];
        let end = run(carry(
            &mut &raw[..],
            &mut BytesMut::new(),
            Framing::Length(100_000),
            feed.unwrap(),
        ));
        assert_eq!(end.unwrap(), Carried::Partly);
    }

    #[test]
    fn an_empty_body_says_so_before_it_is_read() {
        let (body, feed) = RequestBody::new(Framing::Empty);
        assert!(feed.is_none() && body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
}
