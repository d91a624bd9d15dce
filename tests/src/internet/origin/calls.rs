//! A gRPC server that answers every unary call with the message of the call.

use anyhow::Context;
use h2::{RecvStream, server, server::SendResponse};
use hyper::{
    HeaderMap, Response,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves the calls of one connection one after another, and tells the path of each.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    visit: impl Fn(&str),
) -> anyhow::Result<()> {
    let mut connection = server::handshake(stream).await.context("begin HTTP/2")?;
    let mut calls = tokio::task::JoinSet::new();
    while let Some(call) = connection.accept().await {
        let (request, response) = call.context("accept a call")?;
        visit(request.uri().path());
        // The connection moves only while it is asked for the next call.
        calls.spawn(answer(request.into_body(), response));
    }
    Ok(())
}

async fn answer(mut body: RecvStream, mut response: SendResponse<Bytes>) -> anyhow::Result<()> {
    let mut message = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        message.extend_from_slice(&part);
    }
    let mut head = Response::new(());
    let kind = HeaderValue::from_static("application/grpc");
    head.headers_mut().insert(CONTENT_TYPE, kind);
    let mut stream = response.send_response(head, false)?;
    stream.send_data(message.into(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Ok(stream.send_trailers(trailers)?)
}
