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
