//! Accepts connections, as many at once as there may be, until PID 1 wants no more.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use report::{
    Printable, Target,
    link::{FromProxy, Ingress},
};
use tokio::{
    net::{UdpSocket, unix::OwnedWriteHalf},
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    accept::{Arrival, Listeners, Room},
    authority::target_of,
    client::Client,
    control::{Listener, Order, Orders},
    dns, explicit,
    proxy::{Proxy, by_address},
    redirect,
    refusal::{Refusal, Refused},
    reporter::{self, ReportError},
    settings::OriginalDestination,
};

/// Serves connections.
pub(crate) struct Server {
    proxy: Arc<Proxy>,
    original_destination: OriginalDestination,
    max_connections: usize,
    connections: JoinSet<()>,
    /// One for each socket at which DNS questions arrive.
    questions: JoinSet<()>,
    /// Whether more of them are expected: it goes when they are not.
    asked: watch::Sender<()>,
    /// DNS over TCP. Apart, so that questions cannot take the room of what they are asked for.
    conversations: JoinSet<()>,
    /// Those that are told that there are too many.
    farewells: JoinSet<()>,
}

impl Server {
    pub(crate) fn new(
        proxy: Proxy,
        max_connections: usize,
        original_destination: OriginalDestination,
    ) -> Self {
        Self {
            proxy: Arc::new(proxy),
            original_destination,
            max_connections,
            connections: JoinSet::new(),
            questions: JoinSet::new(),
            asked: watch::Sender::default(),
            conversations: JoinSet::new(),
            farewells: JoinSet::new(),
        }
    }

    /// Says that it is ready, and serves until PID 1 wants no more.
    pub(crate) async fn run(
        mut self,
        listeners: Vec<Listener>,
        degradations: Vec<String>,
        mut orders: Orders,
        mut replies: OwnedWriteHalf,
    ) -> Result<(), ReportError> {
        let mut listeners = self.listeners(listeners)?;
        reporter::send(&mut replies, &ready(&degradations)).await?;
        let mut reporting = JoinSet::new();
        reporting.spawn(report(Arc::clone(&self.proxy), replies));
        match self.serve(&mut listeners, &mut orders).await {
            Order::Gone | Order::Policy(_) | Order::Opened { .. } | Order::Hurry => Ok(()),
            Order::Drain => {
                let is_settled = self.settle(listeners).await;
                self.proxy.account.close();
                match reporting.join_next().await {
                    Some(Ok(Err(error))) => Err(error),
                    Some(Ok(Ok(mut replies))) if is_settled => {
                        reporter::send(&mut replies, &FromProxy::Drained).await
                    }
                    // Without its last word PID 1 takes it that not all was told.
                    Some(_) | None => Ok(()),
                }
            }
        }
    }

    /// Decides on all that has come, and then on nothing any more: false if there was too much of it.
    async fn settle(&mut self, listeners: Listeners) -> bool {
        let all_taken = listeners.finish(|arrival| self.admit(arrival));
        self.asked = watch::Sender::default();
        while self.questions.join_next().await.is_some() {}
        self.end_connections().await && all_taken
    }

    async fn serve(&mut self, listeners: &mut Listeners, orders: &mut Orders) -> Order {
        loop {
            tokio::select! {
                order = orders.next() => match order {
                    Order::Opened { id, opened } => self.proxy.openings.answer(id, opened),
                    Order::Policy(next) => self.proxy.rulings.succeed(&next),
                    Order::Hurry => self.proxy.account.hurry(),
                    order @ (Order::Drain | Order::Gone) => return order,
                },
                arrival = listeners.accept() => self.admit(arrival),
                Some(_) = self.connections.join_next() => {}
                Some(_) = self.conversations.join_next() => {}
                Some(_) = self.farewells.join_next() => {}
            }
        }
    }

    /// Starts on those that take datagrams, and gives back those that accept connections.
    fn listeners(&mut self, handed_over: Vec<Listener>) -> io::Result<Listeners> {
        let mut accepting = Vec::new();
        for listener in handed_over {
            match listener {
                Listener::Streams(ingress, socket) => accepting.push((ingress, socket)),
                Listener::Datagrams(socket) => {
                    let (socket, proxy) = (UdpSocket::from_std(socket)?, Arc::clone(&self.proxy));
                    let asked = self.asked.subscribe();
                    self.questions.spawn(dns::datagrams(socket, proxy, asked));
                }
            }
        }
        Listeners::new(accepting)
    }

    fn admit(&mut self, arrival: Arrival) {
        let Arrival {
            ingress,
            stream,
            room,
        } = arrival;
        let client = Client::new(stream);
        // Where nobody redirected a connection, what it was meant for is this listener.
        let dialled = match ingress {
            Ingress::Explicit | Ingress::Dns | Ingress::DnsUdp => None,
            Ingress::Redirect => {
                let original = (self.original_destination)(&client.stream);
                original.or_else(|_| client.stream.local_addr()).ok()
            }
        };
        let is_full = if ingress == Ingress::Dns {
            self.conversations.len() >= MAX_CONVERSATIONS
        } else {
            self.connections.len() >= self.max_connections
        };
        if is_full || room == Room::Reserve {
            return self.turn_away(ingress, client, dialled);
        }
        let proxy = Arc::clone(&self.proxy);
        match (ingress, dialled) {
            (Ingress::Explicit, _) => self.connections.spawn(explicit::serve(client, proxy)),
            (Ingress::Redirect, Some(dialled)) => self
                .connections
                .spawn(redirect::serve(client, dialled, proxy)),
            (Ingress::Dns, _) => self
                .conversations
                .spawn(async move { dns::converse(client.stream, &proxy).await }),
            // It is gone already; datagrams make no connections.
            (Ingress::Redirect, None) | (Ingress::DnsUdp, _) => return,
        };
    }

    /// Counts one connection too many, and tells a client that can read it.
    fn turn_away(&mut self, ingress: Ingress, client: Client, dialled: Option<SocketAddr>) {
        let target =
            dialled.map_or_else(Target::default, |dialled| target_of(&by_address(dialled)));
        let refused = Refused {
            target,
            refusal: Refusal::Busy,
        };
        self.proxy.record(&refused);
        if ingress == Ingress::Explicit && self.farewells.len() < MAX_FAREWELLS {
            self.farewells
                .spawn(async move { explicit::turn_away(client, &refused).await });
        }
    }

    /// Lets connections come to their end for as long as one does after the other, and ends the rest.
    /// False where more ended all the while than there is time for: the rest may be undecided.
    async fn end_connections(&mut self) -> bool {
        let latest = Instant::now() + ALL_ENDS;
        let mut is_over = false;
        while !is_over && Instant::now() < latest {
            is_over = !matches!(timeout(DRAIN, self.next_end()).await, Ok(true));
        }
        self.connections.shutdown().await;
        self.conversations.shutdown().await;
        self.farewells.shutdown().await;
        is_over
    }

    /// Waits for the end of one that is served; false if there is none.
    async fn next_end(&mut self) -> bool {
        tokio::select! {
            Some(_) = self.connections.join_next() => true,
            Some(_) = self.conversations.join_next() => true,
            else => false,
        }
    }
}

async fn report(
    proxy: Arc<Proxy>,
    mut replies: OwnedWriteHalf,
) -> Result<OwnedWriteHalf, ReportError> {
    reporter::run(&proxy, &mut replies).await?;
    Ok(replies)
}

fn ready(degradations: &[String]) -> FromProxy {
    FromProxy::Ready {
        version: Printable::new(env!("CARGO_PKG_VERSION")),
        degradations: degradations
            .iter()
            .map(|sentence| Printable::new(sentence))
            .collect(),
    }
}

/// How long a connection may take to end after another, once no more are accepted.
const DRAIN: Duration = Duration::from_millis(300);
/// And all of them: PID 1 waits for 3 s.
const ALL_ENDS: Duration = Duration::from_secs(2);
/// How many connections for DNS there may be at once.
const MAX_CONVERSATIONS: usize = 256;
/// How many may be told at once that there are too many; those beyond are only counted.
const MAX_FAREWELLS: usize = 64;

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use policy::DenyReason;
    use tokio::time::sleep;

    use super::*;
    use crate::control::Link;

    fn arrival(ingress: Ingress, client: Client) -> Arrival {
        Arrival {
            ingress,
            stream: client.stream,
            room: Room::Free,
        }
    }

    fn server(max_connections: usize) -> Server {
        Server::new(Proxy::allowing("a.example"), max_connections, |_| {
            Err(io::ErrorKind::NotFound.into())
        })
    }

    #[tokio::test]
    async fn an_arrival_on_the_reserve_is_turned_away_however_few_there_are() {
        let mut server = server(10);
        let (client, mut guest) = Client::pair().await;
        server.admit(Arrival {
            room: Room::Reserve,
            ..arrival(Ingress::Explicit, client)
        });
        assert!(server.connections.is_empty());
        tokio::io::AsyncWriteExt::write_all(&mut guest, b"CONNECT ")
            .await
            .unwrap();
        let mut said = [0; 12];
        tokio::io::AsyncReadExt::read_exact(&mut guest, &mut said)
            .await
            .unwrap();
        assert_eq!(&said, b"HTTP/1.1 503");
        assert_eq!(server.proxy.denials(), [(String::new(), DenyReason::Limit)]);
    }

    #[tokio::test]
    async fn questions_over_tcp_are_bounded_and_take_no_room_of_others() {
        let mut server = server(1);
        let mut guests = Vec::new();
        for _ in 0..=MAX_CONVERSATIONS {
            let (client, guest) = Client::pair().await;
            server.admit(arrival(Ingress::Dns, client));
            guests.push(guest);
        }
        assert_eq!(server.conversations.len(), MAX_CONVERSATIONS);
        assert_eq!(server.proxy.denials(), [(String::new(), DenyReason::Limit)]);
        let (client, _guest) = Client::pair().await;
        server.admit(arrival(Ingress::Explicit, client));
        assert_eq!(server.connections.len(), 1);
    }

    #[tokio::test]
    async fn one_connection_too_many_is_counted_under_its_destination() {
        let dialled = |_: &tokio::net::TcpStream| Ok("203.0.113.9:443".parse().unwrap());
        let mut server = Server::new(Proxy::allowing("a.example"), 1, dialled);
        let (first, _first_guest) = Client::pair().await;
        let (second, _second_guest) = Client::pair().await;
        server.admit(arrival(Ingress::Redirect, first));
        server.admit(arrival(Ingress::Redirect, second));
        assert_eq!(server.connections.len(), 1);
        assert_eq!(
            server.proxy.denials(),
            [("203.0.113.9".to_owned(), DenyReason::Limit)]
        );
    }

    #[tokio::test]
    async fn farewells_are_bounded_and_counts_are_not() {
        let mut server = Server::new(Proxy::allowing("a.example"), 0, |_| {
            Err(io::ErrorKind::NotFound.into())
        });
        let mut guests = Vec::new();
        for _ in 0..MAX_FAREWELLS + 5 {
            let (client, guest) = Client::pair().await;
            server.admit(arrival(Ingress::Explicit, client));
            guests.push(guest);
        }
        assert_eq!(server.farewells.len(), MAX_FAREWELLS);
        let denied = server.proxy.account.take().0.denied.pop().unwrap();
        assert_eq!(
            (denied.reason, denied.count),
            (DenyReason::Limit, (MAX_FAREWELLS + 5) as u64)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_do_not_end_are_ended_after_300_ms() {
        let mut server = Server::new(Proxy::allowing("a.example"), 1, |_| {
            Err(io::ErrorKind::NotFound.into())
        });
        let (client, _guest) = Client::pair().await;
        server.admit(arrival(Ingress::Explicit, client));
        let began = Instant::now();
        server.end_connections().await;
        assert_eq!(began.elapsed(), DRAIN);
        assert!(server.connections.is_empty());
    }

    /// A server of as many connections, one of which ends each so often.
    fn ending(count: u32, each: Duration) -> Server {
        let mut server = server(1);
        for number in 1..=count {
            server.connections.spawn(sleep(each * number));
        }
        server
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_end_one_after_the_other_are_all_waited_for() {
        assert!(ending(9, DRAIN / 2).end_connections().await);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_go_on_ending_are_not_waited_for_without_end() {
        let mut server = ending(100, DRAIN / 2);
        let began = Instant::now();
        assert!(!server.end_connections().await);
        assert!(began.elapsed() <= ALL_ENDS + DRAIN && server.connections.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_word_is_said_only_where_all_was_decided() {
        for (count, is_said) in [(9, true), (100, false)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&theirs).write_all(b"{\"type\":\"drain\"}\n").unwrap();
            let (orders, replies) = Link::new(ours).serve().unwrap();
            let server = ending(count, DRAIN / 2);
            server
                .run(Vec::new(), Vec::new(), orders, replies)
                .await
                .unwrap();
            let mut said = String::new();
            (&theirs).read_to_string(&mut said).unwrap();
            assert_eq!(said.contains("drained"), is_said, "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions_over_tcp_are_let_to_their_end_too() {
        let mut server = server(1);
        let (asks, answered) = tokio::sync::oneshot::channel();
        server.conversations.spawn(async move {
            sleep(DRAIN / 2).await;
            let _ = asks.send(());
        });
        assert!(server.end_connections().await);
        answered.await.unwrap();
    }
}
