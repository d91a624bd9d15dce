//! Opens connections: to addresses that the guard let through for a permit, and to nothing else.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use policy::{Denial, Permit, Policy};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::sleep,
};

use crate::refusal::{Failure, is_exhaustion};

/// The addresses of a permitted destination that may be dialled.
///
/// Made only by asking the guard about every one of them, so that what is dialled is what was
/// judged: the name is not resolved a second time.
#[derive(Debug)]
pub(crate) struct Checked(Vec<SocketAddr>);

impl Checked {
    /// Leaves out of `answers` what the guard refuses; `private_address` if that is all.
    pub(crate) fn new(
        policy: &Policy,
        permit: &Permit,
        answers: &[IpAddr],
    ) -> Result<Self, Denial> {
        let port = permit.destination().port;
        let addresses = policy.check_addresses(permit, answers)?;
        Ok(Self(
            alternating(&addresses)
                .map(|address| SocketAddr::new(address, port))
                .collect(),
        ))
    }
}

/// Connects to the first of the addresses that answers (Happy Eyeballs, RFC 8305 §5).
pub(crate) async fn connect(checked: &Checked) -> Result<TcpStream, Failure> {
    first_of(&checked.0).await
}

/// Starts an attempt every 250 ms, or at once when one has failed, and keeps the first that works.
pub(crate) async fn first_of(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    if let [only] = addresses {
        return open(*only).await.map_err(|error| failure(&error));
    }
    let mut waiting = addresses.iter();
    let mut attempts = JoinSet::new();
    let mut cause = Failure::Unroutable;
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(open(*address));
        } else if attempts.is_empty() {
            return Err(cause);
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => cause = more_telling(cause, failure(&error)),
                Err(_) => {}
            },
            () = sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
    }
}

/// What an error of connecting means.
pub(crate) fn failure(error: &io::Error) -> Failure {
    let kind = error.kind();
    if is_exhaustion(error) {
        Failure::Exhausted
    } else if kind == io::ErrorKind::ConnectionRefused {
        Failure::ConnectionRefused
    } else if kind == io::ErrorKind::TimedOut {
        Failure::ConnectionTimeout(PATIENCE)
    } else if matches!(
        kind,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    ) {
        Failure::Unroutable
    } else {
        Failure::Connection(kind)
    }
}

/// A family without a route says nothing about the destination if the other family has one.
fn more_telling(one: Failure, other: Failure) -> Failure {
    if other == Failure::Unroutable {
        one
    } else {
        other
    }
}

/// The addresses with their families in turn, IPv6 first (RFC 8305 §4).
fn alternating(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> + '_ {
    let mut v6 = addresses.iter().filter(|address| address.is_ipv6());
    let mut v4 = addresses.iter().filter(|address| address.is_ipv4());
    let pairs = std::iter::from_fn(move || match (v6.next(), v4.next()) {
        (None, None) => None,
        pair => Some([pair.0, pair.1]),
    });
    pairs.flatten().flatten().copied()
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.connect(address).await
}

/// How long reaching a destination may take, resolving it included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The Connection Attempt Delay that RFC 8305 §5 recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// A peer that went away without a word is noticed although a silent tunnel is never cut.
const KEEPALIVE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// An address that refuses: its listener is gone.
    async fn refusing() -> SocketAddr {
        listening().await.1
    }

    #[test]
    fn families_take_turns() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let addresses = [
            ip("192.0.2.1"),
            ip("192.0.2.2"),
            ip("2001:db8::1"),
            ip("192.0.2.3"),
        ];
        let order: Vec<_> = alternating(&addresses).collect();
        assert_eq!(
            order,
            [
                ip("2001:db8::1"),
                ip("192.0.2.1"),
                ip("192.0.2.2"),
                ip("192.0.2.3")
            ]
        );
    }

    #[tokio::test]
    async fn addresses_that_refuse_do_not_keep_the_next_waiting() {
        let (_listener, works) = listening().await;
        let mut addresses = vec![refusing().await; 100];
        addresses.push(works);
        let began = std::time::Instant::now();
        let stream = first_of(&addresses).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), works);
        assert!(
            began.elapsed() < ATTEMPT_DELAY * 100,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn if_all_fail_the_most_telling_cause_is_given() {
        let refuses = refusing().await;
        assert_eq!(
            first_of(&[refuses]).await.unwrap_err(),
            Failure::ConnectionRefused
        );
        assert_eq!(
            first_of(&[refuses, refuses]).await.unwrap_err(),
            Failure::ConnectionRefused
        );
        assert_eq!(first_of(&[]).await.unwrap_err(), Failure::Unroutable);
        let order = more_telling(Failure::ConnectionRefused, Failure::Unroutable);
        assert_eq!(order, Failure::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_dialled_connection_sends_at_once_and_notices_a_dead_peer() {
        let (_listener, works) = listening().await;
        let stream = first_of(&[works]).await.unwrap();
        assert!(stream.nodelay().unwrap());
        assert!(SockRef::from(&stream).keepalive().unwrap());
    }

    #[test]
    fn an_error_of_connecting_keeps_its_cause() {
        for (kind, error_type, status) in [
            (io::ErrorKind::ConnectionRefused, "connection_refused", 502),
            (io::ErrorKind::TimedOut, "connection_timeout", 504),
            (
                io::ErrorKind::NetworkUnreachable,
                "destination_ip_unroutable",
                502,
            ),
            (
                io::ErrorKind::PermissionDenied,
                "destination_unavailable",
                502,
            ),
        ] {
            let failure = failure(&io::Error::from(kind));
            assert_eq!(
                (failure.error_type(), failure.status()),
                (error_type, status),
                "{kind:?}"
            );
        }
    }
}
