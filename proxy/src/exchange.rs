//! One HTTP/1.1 connection to an origin: requests go out, responses come in, bytes are counted.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use policy::Destination;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::JoinSet,
};

use crate::{account::Flow, body::RequestBody, refusal::Failure};

/// A connection to the origin `destination`.
#[derive(Debug)]
pub(crate) struct Exchange {
    destination: Destination,
    sender: SendRequest<RequestBody>,
    flow: Arc<Flow>,
    used: bool,
    /// Drives the connection; dropped, it ends it.
    _driver: JoinSet<()>,
}

/// A stream that was switched to another protocol, and what came on it already.
pub(crate) struct Switched {
    pub(crate) stream: TcpStream,
    pub(crate) early: Bytes,
    pub(crate) flow: Arc<Flow>,
}

impl Exchange {
    /// Takes over a connection that was dialled for `destination`.
    pub(crate) async fn open(
        stream: TcpStream,
        destination: Destination,
        flow: Flow,
    ) -> Result<Self, Failure> {
        let flow = Arc::new(flow);
        let counted = Counted {
            stream,
            flow: Arc::clone(&flow),
        };
        let (sender, connection) = Builder::new()
            .title_case_headers(true)
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(counted))
            .await
            .map_err(|error| failure(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // What goes wrong is told to the request that it happens to.
            let _ = connection.with_upgrades().await;
        });
        Ok(Self {
            destination,
            sender,
            flow,
            used: false,
            _driver: driver,
        })
    }

    /// Whether it can take another request for `destination`.
    pub(crate) async fn serves(&mut self, destination: &Destination) -> bool {
        self.destination == *destination && self.sender.ready().await.is_ok()
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|error| failure(&error))?;
        self.used = true;
        Ok(response)
    }

    /// The count of what passes.
    pub(crate) fn flow(&self) -> Arc<Flow> {
        Arc::clone(&self.flow)
    }

    /// Whether it has answered before: then the origin may be closing it at this moment.
    pub(crate) fn was_used(&self) -> bool {
        self.used
    }

    /// After `101 Switching Protocols`: gives up HTTP and hands out the stream.
    pub(crate) async fn switch(self, response: Response<Incoming>) -> Result<Switched, Failure> {
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(|error| failure(&error))?;
        let parts = upgraded
            .downcast::<TokioIo<Counted>>()
            .map_err(|_| Failure::Incomplete)?;
        Ok(Switched {
            stream: parts.io.into_inner().stream,
            early: parts.read_buf,
            flow: self.flow,
        })
    }
}

/// What an error of the origin's side means.
fn failure(error: &hyper::Error) -> Failure {
    if error.is_parse() {
        Failure::Response(error.to_string())
    } else {
        Failure::Incomplete
    }
}

/// A stream to an origin that counts what passes.
struct Counted {
    stream: TcpStream,
    flow: Arc<Flow>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, space))?;
        self.flow.add_down(space.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.flow.add_up(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        self.flow.add_up(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The greatest response head, in bytes.
const MAX_BUFFER: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};
    use http_body_util::BodyExt as _;
    use report::{RunClock, Target};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{account::Account, client::Client, head::Framing};

    fn origin() -> Destination {
        Destination::parse("a.example", 80).unwrap()
    }

    fn get() -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::new(Framing::Empty).0);
        *request.method_mut() = Method::GET;
        request
            .headers_mut()
            .insert("host", "a.example".parse().unwrap());
        request
    }

    /// An exchange, and the origin's end of it.
    async fn opened() -> (Exchange, TcpStream) {
        let (near, far) = Client::pair().await;
        let flow = Arc::new(Account::new(RunClock::start(), report::Seed([0; 16])))
            .flow(Target::default());
        (
            Exchange::open(far, origin(), flow).await.unwrap(),
            near.stream,
        )
    }

    async fn answer(far: &mut TcpStream, response: &str) -> String {
        let mut request = vec![0; 1024];
        let length = far.read(&mut request).await.unwrap();
        far.write_all(response.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    #[tokio::test]
    async fn every_byte_in_either_direction_is_counted() {
        let (mut exchange, mut far) = opened().await;
        let (response, request) = tokio::join!(exchange.send(get()), answer(&mut far, OK));
        let body = response
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(&body[..], b"ok");
        assert_eq!(exchange.flow.moved(), (request.len() + OK.len()) as u64);
    }

    #[tokio::test]
    async fn an_exchange_serves_its_own_origin_for_as_long_as_it_is_open() {
        let (mut exchange, mut far) = opened().await;
        assert!(exchange.serves(&origin()).await && !exchange.was_used());
        assert!(
            !exchange
                .serves(&Destination::parse("a.example", 81).unwrap())
                .await
        );
        let (response, _) = tokio::join!(exchange.send(get()), answer(&mut far, OK));
        response.unwrap().into_body().collect().await.unwrap();
        assert!(exchange.serves(&origin()).await && exchange.was_used());
        drop(far);
        while !exchange.sender.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(!exchange.serves(&origin()).await);
    }

    #[tokio::test]
    async fn an_origin_that_does_not_speak_http_is_told_from_one_that_leaves() {
        let (mut exchange, mut far) = opened().await;
        let (response, _) =
            tokio::join!(exchange.send(get()), answer(&mut far, "SSH-2.0-x\r\n\r\n"));
        assert!(matches!(response, Err(Failure::Response(_))));
        let (mut exchange, far) = opened().await;
        drop(far);
        assert!(matches!(
            exchange.send(get()).await,
            Err(Failure::Incomplete)
        ));
    }

    #[tokio::test]
    async fn a_switch_hands_out_the_stream_with_what_came_on_it() {
        let (mut exchange, mut far) = opened().await;
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nearly";
        let (response, _) = tokio::join!(exchange.send(get()), answer(&mut far, switch));
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let mut switched = exchange.switch(response).await.unwrap();
        assert_eq!(&switched.early[..], b"early");
        far.write_all(b"late").await.unwrap();
        let mut late = [0; 4];
        switched.stream.read_exact(&mut late).await.unwrap();
        assert_eq!(&late, b"late");
    }

    #[tokio::test]
    async fn dropping_an_exchange_ends_its_connection() {
        let (exchange, mut far) = opened().await;
        drop(exchange);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    }
}
