//! The far ends of what is measured: an origin that echoes, one that only sends, a name server.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use super::cores::Cores;

/// The far ends, for as long as this process lives.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// Sends back what it is sent.
    pub echo: SocketAddr,
    /// Sends without end once it has heard a `ClientHello`.
    pub source: SocketAddr,
}

/// The one name that there is.
pub const NAME: &str = "bench.test";
/// How many bytes at a time the source sends.
const PIECE: usize = 256 * 1024;

impl Ends {
    /// Starts them, and a name server on port 53 of loopback.
    pub fn start(cores: Cores) -> anyhow::Result<Self> {
        cores.stay_with_ends()?;
        let (echo, source) = (listener()?, listener()?);
        let names = UdpSocket::bind((Ipv4Addr::LOCALHOST, 53))
            .context("be the name server: run tests/bench/compare, which makes room for one")?;
        let ends = Self {
            echo: echo.local_addr()?,
            source: source.local_addr()?,
        };
        thread::spawn(move || echo_all(echo));
        thread::spawn(move || {
            for stream in source.incoming().flatten() {
                thread::spawn(move || send_all(stream));
            }
        });
        thread::spawn(move || answer_all(&names));
        Ok(ends)
    }
}

fn listener() -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")
}

fn echo_all(listener: TcpListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut echoing = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => echoing.spawn(echo(accepted?.0)),
                Some(_) = echoing.join_next() => continue,
            };
        }
    })
}

async fn echo(mut stream: tokio::net::TcpStream) {
    let mut bytes = Vec::with_capacity(2048);
    while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        if stream.write_all(&bytes).await.is_err() {
            break;
        }
        bytes.clear();
    }
}

/// Whoever measures goes away when it has enough.
fn send_all(mut stream: TcpStream) {
    let mut hello = [0; 2048];
    if stream.read(&mut hello).is_ok_and(|length| length > 0) {
        let piece = vec![0x5a; PIECE];
        while stream.write_all(&piece).is_ok() {}
    }
}

/// Says that every name is at 127.0.0.1 (RFC 1035, section 4.1): the question, and behind it an
/// answer that points back to its name.
fn answer_all(socket: &UdpSocket) {
    let mut message = [0; 512];
    while let Ok((length, peer)) = socket.recv_from(&mut message) {
        if let Some(answer) = message.get(..length).and_then(answer) {
            // A question that was lost is asked again.
            let _ = socket.send_to(&answer, peer);
        }
    }
}

fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let labels_end = HEADER + query.get(HEADER..)?.iter().position(|byte| *byte == 0)?;
    let question = query.get(HEADER..labels_end + 5)?;
    let is_v4 = question.get(question.len() - 4..)? == [0, 1, 0, 1];
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x85, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    answer.extend(question);
    if is_v4 {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

const HEADER: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_addresses_is_answered_and_any_other_has_no_answers() {
        let query = |kind: u8| {
            let mut query = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            query.extend(b"\x05bench\x04test\0\0");
            query.extend([kind, 0, 1]);
            query
        };
        let v4 = answer(&query(1)).unwrap();
        assert_eq!(
            (v4[0], v4[7], &v4[v4.len() - 4..]),
            (7, 1, &[127, 0, 0, 1][..])
        );
        assert_eq!(answer(&query(28)).unwrap()[7], 0);
        assert_eq!(answer(b"short"), None);
    }
}
