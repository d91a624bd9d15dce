//! Where questions arrive: datagrams, and connections that carry one question after the other.

use std::{sync::Arc, time::Duration};

use report::Transport;
use rustix::{io::Errno, net::RecvFlags};
use tokio::{
    io::{self, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{Step, consider};
use crate::proxy::Proxy;

/// Answers datagrams until `asked` ends: then those that have come are counted, and nobody waits for
/// an answer. Refusals are answered at once, and what must be asked of the resolver by so many tasks
/// at most.
pub(crate) async fn datagrams(
    socket: UdpSocket,
    proxy: Arc<Proxy>,
    mut asked: watch::Receiver<()>,
) {
    let socket = Arc::new(socket);
    let mut lookups = JoinSet::new();
    let mut buffer = vec![0; LARGEST_QUESTION + 1];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = lookups.join_next() => continue,
            _ = asked.changed() => break,
        };
        let Ok((length, peer)) = received else {
            // Out of memory: asking again at once would spin.
            sleep(PAUSE).await;
            continue;
        };
        let message = buffer.get(..length).unwrap_or_default();
        let answer = match consider(message, Transport::Udp, &proxy) {
            Step::Answer(answer) => answer,
            Step::Ask(lookup) if lookups.len() < MAX_LOOKUPS => {
                let (socket, proxy) = (Arc::clone(&socket), Arc::clone(&proxy));
                lookups.spawn(async move {
                    let answer = lookup.resolve(&proxy).await;
                    // A client that is gone, or a full buffer: it asks again if it needs to.
                    let _ = socket.try_send_to(&answer, peer);
                });
                continue;
            }
            Step::Ask(lookup) => lookup.give_up(&proxy),
            Step::Silence => continue,
        };
        let _ = socket.try_send_to(&answer, peer);
    }
    // The kernel itself is asked: the runtime may not know yet of what has come last.
    for _ in 0..LONGEST_QUEUE {
        match rustix::net::recv(&*socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => {
                let message = buffer.get(..length).unwrap_or_default();
                drop(consider(message, Transport::Udp, &proxy));
            }
            // What a client has closed comes back as an error, and not as the end.
            Err(Errno::INTR | Errno::CONNREFUSED) => {}
            Err(_) => break,
        }
    }
}

/// Answers the questions of one connection, in their order (RFC 7766).
pub(crate) async fn converse(mut stream: TcpStream, proxy: &Proxy) {
    while let Ok(Ok(message)) = timeout(IDLE, next(&mut stream)).await {
        let answer = match consider(&message, Transport::Tcp, proxy) {
            Step::Answer(answer) => answer,
            Step::Ask(lookup) => lookup.resolve(proxy).await,
            Step::Silence => return,
        };
        if !matches!(timeout(IDLE, send(&mut stream, &answer)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// A message comes after its length (RFC 1035 section 4.2.2). One that is too long is cut, which
/// makes it unreadable, and its connection useless.
async fn next(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    let mut message = vec![0; length.min(LARGEST_QUESTION)];
    stream.read_exact(&mut message).await?;
    if length > LARGEST_QUESTION {
        message.clear();
    }
    Ok(message)
}

async fn send(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], answer].concat();
    stream.write_all(&framed).await
}

/// A name has 255 bytes and EDNS a few options; 4096 are more than any client sends.
const LARGEST_QUESTION: usize = 4096;
/// Questions of datagrams that are being asked at once.
const MAX_LOOKUPS: usize = 256;
/// How long a connection may be silent, and how long an answer may wait for its reader.
const IDLE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// Far more datagrams than a socket keeps where nobody has changed that (`net.core.rmem_default`).
const LONGEST_QUEUE: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::soon;

    /// A question for the address of `b.test` (RFC 1035 section 4.1).
    const QUESTION: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01b\x04test\0\0\x01\0\x01";

    #[tokio::test]
    async fn questions_that_have_come_are_counted_when_no_more_are_expected() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let guest = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..9 {
            guest
                .send_to(QUESTION, socket.local_addr().unwrap())
                .unwrap();
        }
        let proxy = Arc::new(Proxy::allowing("a.example"));
        let (asked, expected) = watch::channel(());
        drop(asked);
        soon(datagrams(socket, Arc::clone(&proxy), expected)).await;
        let counted = proxy.account.take().0.denied;
        assert_eq!(counted.iter().map(|denied| denied.count).sum::<u64>(), 9);
    }
}
