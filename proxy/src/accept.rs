//! Takes connections off their listeners, in turn, and does not stop when descriptors run out.
//!
//! A connection that gets no descriptor waits in the queue of its listener, and its client hangs
//! without a word. So a few descriptors are held in reserve: one is given up for such a connection,
//! which is then told that it is one too many, and counted.

use std::{
    future::poll_fn,
    io,
    os::fd::{AsFd as _, OwnedFd},
    task::{Context, Poll},
    time::Duration,
};

use report::link::Ingress;
use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    net::{SocketFlags, accept_with},
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::refusal::is_exhaustion;

/// Sockets that accept, asked in turn so that none starves the others.
pub(crate) struct Listeners {
    sockets: Vec<(Ingress, TcpListener)>,
    next: usize,
    reserve: Vec<OwnedFd>,
}

/// A connection that was accepted.
pub(crate) struct Arrival {
    pub(crate) ingress: Ingress,
    pub(crate) stream: TcpStream,
    pub(crate) room: Room,
}

/// Whether there is room for an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There was a descriptor for it.
    Free,
    /// Its descriptor is one of the reserve: it can be told to go, and no more.
    Reserve,
}

impl Listeners {
    pub(crate) fn new(listeners: Vec<(Ingress, std::net::TcpListener)>) -> io::Result<Self> {
        let sockets = listeners.into_iter().map(|(ingress, socket)| {
            // Small answers must not wait for an acknowledgement; that it worked is not essential.
            // What is accepted has it from its listener, and needs no call of its own.
            let _ = SockRef::from(&socket).set_tcp_nodelay(true);
            Ok((ingress, TcpListener::from_std(socket)?))
        });
        Ok(Self {
            sockets: sockets.collect::<io::Result<_>>()?,
            next: 0,
            reserve: Vec::new(),
        })
    }

    /// Waits for the next connection. Safe to drop and to call again.
    pub(crate) async fn accept(&mut self) -> Arrival {
        loop {
            self.refill();
            let arrival = |room| {
                move |(ingress, stream)| Arrival {
                    ingress,
                    stream,
                    room,
                }
            };
            match poll_fn(|cx| self.poll_accept(cx)).await {
                Ok(accepted) => return arrival(Room::Free)(accepted),
                Err(error) if is_exhaustion(&error) && self.reserve.pop().is_some() => {
                    match self.accept_now().await {
                        Some(Ok(accepted)) => return arrival(Room::Reserve)(accepted),
                        // The kernel looks for a descriptor before it looks for a connection. The
                        // place is taken back before anything else could have it.
                        None => continue,
                        Some(Err(_)) => {}
                    }
                }
                // It gave up while it was waiting.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {}
            }
            // The listener stays ready: asking again at once would spin.
            sleep(PAUSE).await;
        }
    }

    /// Hands over what waits at this moment, and listens no more: false if that could not be all. The
    /// kernel itself is asked, since the runtime may not know yet of what has come last.
    pub(crate) fn finish(mut self, mut take: impl FnMut(Arrival)) -> bool {
        self.refill();
        let sockets = std::mem::take(&mut self.sockets).into_iter();
        sockets.fold(true, |all, (ingress, socket)| {
            self.empty(ingress, socket, &mut take) && all
        })
    }

    fn empty(
        &mut self,
        ingress: Ingress,
        socket: TcpListener,
        take: &mut impl FnMut(Arrival),
    ) -> bool {
        let Ok(socket) = socket.into_std() else {
            return false;
        };
        let mut room = Room::Free;
        // Whoever goes on dialling all the while is not waited for.
        for _ in 0..LONGEST_QUEUE {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let stream = match accept_with(&socket, flags) {
                Ok(stream) => TcpStream::from_std(stream.into()),
                Err(Errno::AGAIN) => return true,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) if is_exhaustion(&error.into()) && self.reserve.pop().is_some() => {
                    room = Room::Reserve;
                    continue;
                }
                Err(error) => Err(error.into()),
            };
            let Ok(stream) = stream else {
                return false;
            };
            take(Arrival {
                ingress,
                stream,
                room,
            });
        }
        false
    }

    /// What waits at this moment, if anything does.
    async fn accept_now(&mut self) -> Option<io::Result<(Ingress, TcpStream)>> {
        poll_fn(|cx| match self.poll_accept(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Ingress, TcpStream)>> {
        self.next = self.next.wrapping_add(1);
        let (before, from) = self.sockets.split_at(self.next % self.sockets.len().max(1));
        for (ingress, socket) in from.iter().chain(before) {
            if let Poll::Ready(accepted) = socket.poll_accept(cx) {
                return Poll::Ready(accepted.map(|(stream, _)| (*ingress, stream)));
            }
        }
        Poll::Pending
    }

    /// Any descriptor will do to hold a place; this process can open no file.
    fn refill(&mut self) {
        while self.reserve.len() < RESERVE
            && let Some((_, socket)) = self.sockets.first()
            && let Ok(place) = fcntl_dupfd_cloexec(socket.as_fd(), 0)
        {
            self.reserve.push(place);
        }
    }
}

/// How many can be told at once that there is no descriptor for them.
pub(crate) const RESERVE: usize = 16;
/// Twice as many as a queue holds where nobody has changed that (`net.core.somaxconn`).
const LONGEST_QUEUE: usize = 8192;
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream as Guest};

    use super::*;

    fn listeners(count: usize) -> (Listeners, Vec<SocketAddr>) {
        let sockets: Vec<_> = (0..count)
            .map(|_| {
                let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                (Ingress::Explicit, socket)
            })
            .collect();
        let addresses = sockets
            .iter()
            .map(|(_, socket)| socket.local_addr().unwrap())
            .collect();
        (Listeners::new(sockets).unwrap(), addresses)
    }

    #[tokio::test]
    async fn a_busy_listener_does_not_starve_another() {
        let (mut listeners, addresses) = listeners(2);
        let _busy: Vec<_> = (0..20)
            .map(|_| Guest::connect(addresses[0]).unwrap())
            .collect();
        let _quiet = Guest::connect(addresses[1]).unwrap();
        // Both are known to be ready once each has been asked.
        let mut accepted = Vec::new();
        for _ in 0..4 {
            let arrival = listeners.accept().await;
            assert_eq!(arrival.room, Room::Free);
            accepted.push(arrival.stream.local_addr().unwrap());
        }
        assert!(accepted.contains(&addresses[1]), "{accepted:?}");
    }

    #[tokio::test]
    async fn what_is_accepted_sends_at_once() {
        let (mut listeners, addresses) = listeners(1);
        let _guest = Guest::connect(addresses[0]).unwrap();
        assert!(listeners.accept().await.stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_reserve_is_held_and_filled_again() {
        let (mut listeners, addresses) = listeners(1);
        for _ in 0..2 {
            let _guest = Guest::connect(addresses[0]).unwrap();
            listeners.accept().await;
            assert_eq!(listeners.reserve.len(), RESERVE);
            listeners.reserve.truncate(3);
        }
    }

    #[tokio::test]
    async fn those_that_wait_at_the_end_are_handed_over() {
        let (listeners, addresses) = listeners(2);
        // Nobody has asked the runtime yet, which knows of none of them.
        let dial = |n: usize| Guest::connect(addresses[n % 2]).unwrap();
        let mut guests: Vec<_> = (0..100).map(dial).collect();
        guests.truncate(50);
        let mut taken = 0;
        assert!(listeners.finish(|arrival| {
            assert_eq!(arrival.room, Room::Free);
            taken += 1;
        }));
        assert_eq!(taken, 100);
        assert!(Guest::connect(addresses[0]).is_err());
    }

    #[tokio::test]
    async fn nothing_is_accepted_at_once_where_nobody_waits() {
        let (mut listeners, _) = listeners(1);
        assert!(listeners.accept_now().await.is_none());
    }
}
