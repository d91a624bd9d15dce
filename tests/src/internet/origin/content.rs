//! What an origin answers an HTTP request with: a file, a stream of events, a WebSocket, or else
//! its own words on what was asked.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{SinkExt as _, StreamExt as _};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header::{
        CONNECTION, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE,
    },
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use crate::internet::site::{Found, Site};

/// A body that is sent at once, and after which there may be nothing for as long as anyone waits.
pub(super) struct Reply {
    content: Option<Bytes>,
    ends: bool,
}

impl Reply {
    /// All of it.
    pub(super) fn whole(content: impl Into<Bytes>) -> Self {
        Self {
            content: Some(content.into()),
            ends: true,
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.content.take() {
            Some(content) => Poll::Ready(Some(Ok(Frame::data(content)))),
            None if self.ends => Poll::Ready(None),
            // Whoever reads the stream ends it.
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ends && self.content.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.content.as_ref().map_or(0, Bytes::len) as u64;
        if self.ends {
            SizeHint::with_exact(length)
        } else {
            SizeHint::new()
        }
    }
}

/// Answers `request`, which is described by `visit`.
pub(super) fn respond(request: &Request<Incoming>, visit: &str, site: &Site) -> Response<Reply> {
    if let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) {
        let accept = derive_accept_key(key.as_bytes());
        return switch(&accept);
    }
    if request.uri().path() == EVENTS {
        let mut response = Response::new(Reply {
            content: Some(Bytes::from(format!("data: served {visit}\n\n"))),
            ends: false,
        });
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        return response;
    }
    let content = match site.read(request.uri().path()) {
        Found::File(content) => content,
        Found::Elsewhere => return Response::new(Reply::whole(format!("served {visit}\n"))),
        Found::Nothing => {
            let mut response = Response::new(Reply::whole("no such file\n"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
    };
    let html = content.starts_with(b"<!DOCTYPE html>");
    let mut response = Response::new(Reply::whole(content));
    if html {
        let kind = HeaderValue::from_static("text/html");
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

/// Says again whatever it is told over the WebSocket (RFC 6455) that was opened.
pub(super) async fn echo(opened: OnUpgrade) -> anyhow::Result<()> {
    let stream = TokioIo::new(opened.await?);
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None);
    let (mut sink, mut messages) = socket.await.split();
    while let Some(message) = messages.next().await {
        let message = message?;
        // The library answers pings and the end itself.
        if message.is_text() || message.is_binary() {
            sink.send(message).await?;
        }
    }
    Ok(())
}

/// The answer that opens a WebSocket.
fn switch(accept: &str) -> Response<Reply> {
    let mut response = Response::new(Reply::whole(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// The path of a stream that sends one event and stays open.
const EVENTS: &str = "/events";
