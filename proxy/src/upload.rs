//! The client's side of a request that was sent on: its body, on its way while the response may
//! already come, and then its end, which ends the waiting.
//!
//! Without the second, a client that went away while its origin is silent would hold a connection,
//! an origin and two descriptors for as long as the origin likes.

use std::{
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::BytesMut;
use tokio::net::tcp::ReadHalf;

use crate::{
    account::Flow,
    body::{self, BodyError, Carried, Feed},
    client,
    head::Framing,
};

/// What the client does while its response is awaited and sent.
pub(crate) struct Upload<'w, F> {
    attending: Pin<Box<F>>,
    is_whole: &'w AtomicBool,
}

/// Carries the body, if there is one, and then waits until the client is gone. Sets `is_whole` once
/// the body has been taken from the client.
pub(crate) async fn attend(
    from: &mut ReadHalf<'_>,
    pending: &mut BytesMut,
    body: Option<(Framing, Feed)>,
    flow: &Flow,
    is_whole: &AtomicBool,
) -> BodyError {
    if let Some((framing, feed)) = body {
        match body::carry(from, pending, framing, feed).await {
            Ok(Carried::Whole) => {}
            // What the client sends now is the rest of a body that nobody wants.
            Ok(Carried::Partly) => return std::future::pending().await,
            Err(error) => return error,
        }
    }
    is_whole.store(true, Ordering::Relaxed);
    client::left(from, pending, flow).await.into()
}

impl<'w, F: Future<Output = BodyError>> Upload<'w, F> {
    pub(crate) fn new(attending: F, is_whole: &'w AtomicBool) -> Self {
        Self {
            attending: Box::pin(attending),
            is_whole,
        }
    }

    /// Runs `other` to its end, and attends to the client meanwhile.
    ///
    /// # Errors
    /// When the body cannot be had from the client, or it is gone; `other` is given up then.
    pub(crate) async fn beside<T>(
        &mut self,
        other: impl Future<Output = T>,
    ) -> Result<T, BodyError> {
        let other = pin!(other);
        tokio::select! {
            biased;
            error = &mut self.attending => Err(error),
            done = other => Ok(done),
        }
    }

    /// Whether the whole body was taken from the client: then what follows is its next request.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::Arc,
        time::Duration,
    };

    use tokio::{
        io::AsyncWriteExt as _,
        net::TcpStream,
        time::{Instant, timeout},
    };

    use super::*;
    use crate::{
        account::Account,
        body::RequestBody,
        client::{Client, HALF_CLOSED, soon},
    };

    fn flow() -> Flow {
        Arc::new(Account::new(
            report::RunClock::start(),
            report::Seed([0; 16]),
        ))
        .flow(report::Target::default())
    }

    /// Attends to a client whose other end `act` has, and says how that ended.
    async fn attended(
        body: Option<(Framing, Feed)>,
        act: impl AsyncFnOnce(TcpStream) -> Option<TcpStream>,
    ) -> (BodyError, bool) {
        let (mut client, guest) = Client::pair().await;
        let is_whole = AtomicBool::new(false);
        let (flow, pending) = (flow(), &mut client.pending);
        let (mut from, _to) = client.stream.split();
        let attending = attend(&mut from, pending, body, &flow, &is_whole);
        let mut upload = Upload::new(attending, &is_whole);
        let _guest = act(guest).await;
        let error = upload
            .beside(std::future::pending::<()>())
            .await
            .unwrap_err();
        let whole = upload.is_whole();
        (error, whole)
    }

    #[tokio::test]
    async fn a_response_does_not_wait_for_the_body() {
        let whole = AtomicBool::new(false);
        let mut upload = Upload::new(pending(), &whole);
        assert_eq!(upload.beside(ready(7)).await.unwrap(), 7);
        assert!(!upload.is_whole());
    }

    #[tokio::test]
    async fn a_client_that_fails_ends_the_waiting() {
        let whole = AtomicBool::new(false);
        let mut upload = Upload::new(ready(BodyError::Chunks), &whole);
        assert!(upload.beside(pending::<()>()).await.is_err());
    }

    #[tokio::test]
    async fn the_body_is_carried_while_the_response_is_awaited() {
        let (mut client, mut guest) = Client::pair().await;
        let (mut body, feed) = RequestBody::new(Framing::Length(3));
        let is_whole = AtomicBool::new(false);
        let flow = flow();
        let (mut from, _to) = client.stream.split();
        let body_of = feed.map(|feed| (Framing::Length(3), feed));
        let attending = attend(&mut from, &mut client.pending, body_of, &flow, &is_whole);
        let mut upload = Upload::new(attending, &is_whole);
        guest.write_all(b"abcGET /next").await.unwrap();
        let arrived = async {
            let mut frames = Vec::new();
            while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
                frames.extend_from_slice(&frame.unwrap().into_data().unwrap());
            }
            frames
        };
        assert_eq!(soon(upload.beside(arrived)).await.unwrap(), b"abc");
        assert!(upload.is_whole());
        drop(upload);
        assert!(b"GET /next".starts_with(&client.pending[..]));
    }

    #[tokio::test]
    async fn a_client_that_resets_its_connection_is_not_answered_any_more() {
        let (error, whole) = soon(attended(None, async |guest| {
            guest.set_zero_linger().unwrap();
            drop(guest);
            None
        }))
        .await;
        assert!(matches!(error, BodyError::Gone(_)), "{error}");
        assert!(whole, "no body is a whole one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_ended_its_side_is_answered_for_half_a_minute_of_silence() {
        let began = Instant::now();
        let attended = attended(None, async |mut guest| {
            guest.write_all(b"GET /next HTTP/1.1\r\n").await.unwrap();
            guest.shutdown().await.unwrap();
            Some(guest)
        });
        let attended = timeout(10 * HALF_CLOSED, attended).await;
        let (error, _) = attended.expect("an end");
        assert!(matches!(error, BodyError::Gone(_)), "{error}");
        assert!(began.elapsed() >= HALF_CLOSED, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_there_is_waited_for_without_end() {
        let day = Duration::from_secs(24 * 3600);
        let waiting = timeout(
            day,
            attended(None, async |mut guest| {
                guest.write_all(b"GET /next HTTP/1.1\r\n").await.unwrap();
                Some(guest)
            }),
        );
        assert!(waiting.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_was_carried_in_part_is_not_whole() {
        let (body, feed) = RequestBody::new(Framing::Length(3));
        drop(body);
        let body = feed.map(|feed| (Framing::Length(3), feed));
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"abc").await.unwrap();
        let (is_whole, flow) = (AtomicBool::new(false), flow());
        let (mut from, _to) = client.stream.split();
        let attending = attend(&mut from, &mut client.pending, body, &flow, &is_whole);
        assert!(timeout(HALF_CLOSED, attending).await.is_err());
        assert!(!is_whole.load(Ordering::Relaxed));
    }
}
