//! Dials through the HTTP proxy of a network that demands one.
//!
//! The decision is the same as without it. The destination goes to that proxy by name, and it is
//! that proxy which resolves it: the address guard has nothing to judge then.

use std::{io, net::SocketAddr};

use policy::{Destination, HostError};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{dial, refusal::Failure, resolve::Resolver};

/// The proxy to dial through.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    addresses: Vec<SocketAddr>,
}

/// Why there is no proxy to dial through.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// It is not written as `host:port`.
    #[error("the upstream proxy `{0}` is not `host:port`")]
    Form(String),
    /// Its host is not one.
    #[error("the upstream proxy `{given}` has no usable host: {cause}")]
    Host {
        /// As it was given.
        given: String,
        /// What is wrong with it.
        cause: HostError,
    },
    /// It has no address.
    #[error("the upstream proxy `{given}` cannot be resolved: {cause}")]
    Address {
        /// As it was given.
        given: String,
        /// What went wrong.
        cause: String,
    },
}

impl Upstream {
    /// Finds the addresses of the proxy `given` as `host:port`, once.
    pub(crate) async fn find(given: &str, resolver: &Resolver) -> Result<Self, UpstreamError> {
        let form = || UpstreamError::Form(given.to_owned());
        let (host, port) = given.rsplit_once(':').ok_or_else(form)?;
        let port = port
            .parse::<u16>()
            .ok()
            .filter(|&port| port != 0)
            .ok_or_else(form)?;
        let proxy = Destination::parse(host, port).map_err(|cause| UpstreamError::Host {
            given: given.to_owned(),
            cause,
        })?;
        let addresses =
            resolver
                .resolve(&proxy.host)
                .await
                .map_err(|cause| UpstreamError::Address {
                    given: given.to_owned(),
                    cause: cause.to_string(),
                })?;
        Ok(Self {
            addresses: addresses
                .into_iter()
                .map(|address| SocketAddr::new(address, port))
                .collect(),
        })
    }

    /// Has the proxy connect to `destination`.
    pub(crate) async fn connect(&self, destination: &Destination) -> Result<TcpStream, Failure> {
        let mut stream = dial::first_of(&self.addresses).await?;
        let request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .await
            .map_err(|error| dial::failure(&error))?;
        match status(&mut stream).await? {
            200..=299 => Ok(stream),
            status => Err(Failure::UpstreamProxy(status)),
        }
    }
}

/// Reads the head of the response, and no byte of what follows it.
async fn status(stream: &mut TcpStream) -> Result<u16, Failure> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() <= MAX_HEAD {
        let peeked = stream
            .peek(&mut part)
            .await
            .map_err(|_| Failure::UpstreamProxyProtocol)?;
        if peeked == 0 {
            return Err(Failure::UpstreamProxyProtocol);
        }
        let before = head.len();
        head.extend_from_slice(part.get(..peeked).unwrap_or_default());
        let end = head
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .map(|at| at + 4);
        head.truncate(end.unwrap_or(head.len()));
        take(stream, head.len() - before)
            .await
            .map_err(|_| Failure::UpstreamProxyProtocol)?;
        if end.is_some() {
            return parse(&head).ok_or(Failure::UpstreamProxyProtocol);
        }
    }
    Err(Failure::UpstreamProxyProtocol)
}

async fn take(stream: &mut TcpStream, length: usize) -> io::Result<()> {
    let mut taken = vec![0; length];
    stream.read_exact(&mut taken).await.map(drop)
}

fn parse(head: &[u8]) -> Option<u16> {
    let mut slots = [httparse::EMPTY_HEADER; 100];
    let mut response = httparse::Response::new(&mut slots);
    response
        .parse(head)
        .ok()
        .filter(httparse::Status::is_complete)?;
    response.code
}

const MAX_HEAD: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn resolver() -> Resolver {
        Resolver::new(&[]).unwrap()
    }

    /// Answers one CONNECT with `parts`, each sent by itself, and gives back what was asked.
    async fn asked_of(parts: &[&[u8]]) -> (Result<TcpStream, Failure>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let given = listener.local_addr().unwrap().to_string();
        let upstream = Upstream::find(&given, &resolver()).await.unwrap();
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 1024];
            let length = stream.read(&mut asked).await.unwrap();
            for part in parts {
                stream.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            String::from_utf8_lossy(&asked[..length]).into_owned()
        };
        let destination = Destination::parse("a.example", 443).unwrap();
        tokio::join!(upstream.connect(&destination), answering)
    }

    #[tokio::test]
    async fn what_follows_the_answer_is_left_on_the_stream() {
        for parts in [
            &[&b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-x"[..]][..],
            &[b"HTTP/1.1 200 OK\r\nVia: x\r", b"\n\r", b"\nSSH-2.0-x"],
        ] {
            let (stream, asked) = asked_of(parts).await;
            assert_eq!(
                asked,
                "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
            );
            let mut rest = String::new();
            stream.unwrap().read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "SSH-2.0-x", "{parts:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_of_the_proxy_is_a_failure_with_its_status() {
        let (stream, _) = asked_of(&[b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"]).await;
        assert_eq!(stream.unwrap_err(), Failure::UpstreamProxy(407));
        for garbage in [&b"SSH-2.0-x\r\n\r\n"[..], b"", b"HTTP/1.1 200 OK\r\n"] {
            let (stream, _) = asked_of(&[garbage]).await;
            assert_eq!(
                stream.unwrap_err(),
                Failure::UpstreamProxyProtocol,
                "{garbage:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_proxy_that_cannot_be_found_is_named() {
        for given in [
            "proxy.example",
            "proxy.example:0",
            "proxy.example:x",
            "http://proxy.example:3128",
            "0x7f.1:3128",
        ] {
            let error = Upstream::find(given, &resolver())
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains(given), "{error}");
        }
    }
}
