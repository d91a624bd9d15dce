//! Carries bytes both ways between a guest and what it was let through to, until both have ended.
//!
//! The first bytes of a direction are copied; one that proves to carry much is spliced. A connection
//! that is silent holds neither a buffer nor a pipe. The end of one direction is passed on, and the
//! other goes on. A connection that is open both ways is never cut for silence; one that is half
//! open is, or peers that forget their side would pile up.

mod copy;
mod pipes;
mod splice;
mod turn;

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::BytesMut;
use rustix::net::Shutdown;
use tokio::{
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::sleep,
};

use crate::{account::Flow, client::Client};
use copy::Buffers;
use pipes::Pipes;
use splice::Stopped;
use turn::Turn;

/// Buffers and pipes that no connection is using right now.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    buffers: Buffers,
    pipes: Pipes,
}

/// One direction of a connection.
struct Line<'a, C: Fn(usize)> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    spares: &'a Spares,
    /// Is told of all bytes that the kernel has taken for the far side.
    count: C,
    turn: Turn,
}

/// How much of what a direction carries came in big pieces, one after the other.
#[derive(Debug, Default)]
struct Bulk(usize);

/// Relays until both directions have ended, one fails, or a half-open one stays silent. What the
/// client has sent already goes first.
///
/// A failure is passed on as a reset: an orderly end would tell either side that it has got all.
pub(crate) async fn run(
    client: &mut Client,
    upstream: &mut TcpStream,
    flow: &Flow,
    spares: &Spares,
) {
    if both_ways(client, upstream, flow, spares).await.is_ok() {
        client.ended();
    } else {
        client.abort();
        // Where it fails the connection is gone already.
        let _ = upstream.set_zero_linger();
    }
}

async fn both_ways(
    client: &mut Client,
    upstream: &mut TcpStream,
    flow: &Flow,
    spares: &Spares,
) -> io::Result<()> {
    let (from_guest, to_guest) = client.stream.split();
    let (from_far, to_far) = upstream.split();
    let mut up = Line::new(from_guest, to_far, spares, |bytes| flow.add_up(bytes));
    let mut down = Line::new(from_far, to_guest, spares, |bytes| flow.add_down(bytes));
    let early = &mut client.pending;
    let up = async {
        up.send(early).await?;
        *early = BytesMut::new();
        up.carry().await
    };
    let down = down.carry();
    let (mut up, mut down) = (pin!(up), pin!(down));
    tokio::select! {
        ended = &mut up => {
            ended?;
            unless_silent(down, flow).await
        }
        ended = &mut down => {
            ended?;
            unless_silent(up, flow).await
        }
    }
}

/// Waits for the end of the direction that is left, for as long as bytes come now and then.
async fn unless_silent(
    rest: Pin<&mut impl Future<Output = io::Result<()>>>,
    flow: &Flow,
) -> io::Result<()> {
    let silence = Box::pin(async {
        let mut seen = flow.moved();
        let mut silent_for = 0;
        while silent_for < HALF_OPEN_MINUTES {
            sleep(MINUTE).await;
            let now = flow.moved();
            silent_for = if now == seen { silent_for + 1 } else { 0 };
            seen = now;
        }
    });
    tokio::select! {
        ended = rest => ended,
        () = silence => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl<'a, C: Fn(usize)> Line<'a, C> {
    fn new(from: ReadHalf<'a>, to: WriteHalf<'a>, spares: &'a Spares, count: C) -> Self {
        Self {
            from,
            to,
            spares,
            count,
            turn: Turn::default(),
        }
    }

    /// Carries until the source ends, and passes the end on.
    async fn carry(&mut self) -> io::Result<()> {
        let mut bulk = Bulk::default();
        let mut may_splice = true;
        loop {
            let length = self.copy().await?;
            if length == 0 {
                return self.end();
            }
            if may_splice && bulk.is_proved_by(length) {
                // Boxed, as are other things that few connections come to: every tunnel holds the
                // room for what is not.
                match Box::pin(splice::carry(self)).await? {
                    Stopped::Ended => return self.end(),
                    Stopped::NotWorthIt => bulk = Bulk::default(),
                    Stopped::Refused => may_splice = false,
                }
            }
        }
    }

    /// Copies what comes next, and says how much that was; 0 at the end.
    async fn copy(&mut self) -> io::Result<usize> {
        let (from, buffers) = (&mut self.from, &self.spares.buffers);
        let chunk = poll_fn(|cx| copy::poll_chunk(from, buffers, cx)).await?;
        let length = chunk.bytes().len();
        if length == 0 {
            return Ok(0);
        }
        self.send(chunk.bytes()).await?;
        drop(chunk);
        self.turn.spend(length).await;
        Ok(length)
    }

    /// Sends all of `bytes`. The kernel takes most of what comes at once, and then nothing is held.
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let taken = copy::try_send(&self.to, bytes, &self.count)?;
        match bytes.get(taken..) {
            None | Some([]) => Ok(()),
            Some(rest) => Box::pin(copy::send(&mut self.to, rest, &self.count)).await,
        }
    }

    fn end(&self) -> io::Result<()> {
        let to: &TcpStream = self.to.as_ref();
        Ok(rustix::net::shutdown(to, Shutdown::Write)?)
    }
}

impl Bulk {
    fn is_proved_by(&mut self, length: usize) -> bool {
        self.0 = if length < BIG { 0 } else { self.0 + length };
        self.0 >= PROOF
    }
}

/// A smaller piece is part of a conversation.
const BIG: usize = 16 * 1024;
const PROOF: usize = 256 * 1024;
const MINUTE: Duration = Duration::from_secs(60);
const HALF_OPEN_MINUTES: u32 = 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use report::{RunClock, Target};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::{Instant, timeout},
    };

    use super::{pipes::Calls, *};
    use crate::{account::Account, client::soon};

    /// A relay, with the guest at one end and the far end at the other.
    pub(super) struct Relayed {
        pub(super) guest: TcpStream,
        pub(super) far: TcpStream,
        pub(super) client: Client,
        pub(super) upstream: TcpStream,
        pub(super) flow: Flow,
        pub(super) spares: Spares,
    }

    impl Relayed {
        pub(super) async fn new() -> Self {
            Self::over(Calls::default()).await
        }

        /// One that gets from the kernel what `calls` get.
        pub(super) async fn over(calls: Calls) -> Self {
            let (client, guest) = Client::pair().await;
            let (far, upstream) = Client::pair().await;
            let flow = Arc::new(Account::new(RunClock::start(), report::Seed([0; 16])))
                .flow(Target::default());
            Self {
                guest,
                far: far.stream,
                client,
                upstream,
                flow,
                spares: Spares {
                    buffers: Buffers::default(),
                    pipes: Pipes::with(calls),
                },
            }
        }
    }

    pub(super) async fn all_of(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.map(|_| bytes)
    }

    #[tokio::test]
    async fn what_the_client_sent_before_goes_first() {
        let Relayed {
            mut guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        client.pending.extend_from_slice(b"early ");
        let talking = async {
            guest.write_all(b"late").await.unwrap();
            guest.shutdown().await.unwrap();
            let heard = all_of(&mut far).await.unwrap();
            far.shutdown().await.unwrap();
            heard
        };
        let relay = run(&mut client, &mut upstream, &flow, &spares);
        let (heard, ()) = soon(async { tokio::join!(talking, relay) }).await;
        assert_eq!(heard, b"early late");
        assert_eq!(flow.moved(), 10);
    }

    #[tokio::test]
    async fn a_reset_of_one_side_is_a_reset_of_the_other() {
        let Relayed {
            mut guest,
            far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        far.set_zero_linger().unwrap();
        drop(far);
        soon(run(&mut client, &mut upstream, &flow, &spares)).await;
        client.finish().await;
        drop(client);
        assert_eq!(
            soon(all_of(&mut guest)).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }

    #[tokio::test]
    async fn a_guest_that_resets_resets_the_far_end() {
        let Relayed {
            guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        guest.set_zero_linger().unwrap();
        drop(guest);
        soon(run(&mut client, &mut upstream, &flow, &spares)).await;
        drop(upstream);
        assert_eq!(
            soon(all_of(&mut far)).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }

    #[tokio::test]
    async fn a_silent_relay_holds_no_buffer() {
        let Relayed {
            mut guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        let talking = async {
            guest.write_all(b"x").await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), b'x');
            // Every buffer that was ever made is back: one, used by both directions in turn.
            spares.buffers.count_spare()
        };
        tokio::select! {
            () = run(&mut client, &mut upstream, &flow, &spares) => panic!("the relay ended"),
            spare = talking => assert_eq!(spare, 1),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_is_open_both_ways_may_be_silent() {
        let Relayed {
            guest: _guest,
            far: _far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        let relay = run(&mut client, &mut upstream, &flow, &spares);
        assert!(
            timeout(Duration::from_secs(24 * 3600), relay)
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_open_relay_is_ended_after_10_silent_minutes() {
        let Relayed {
            mut guest,
            far: _far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        guest.shutdown().await.unwrap();
        let began = Instant::now();
        run(&mut client, &mut upstream, &flow, &spares).await;
        let silent = began.elapsed().as_secs();
        assert!((600..660).contains(&silent), "{silent} s");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_keep_a_half_open_relay_alive() {
        let Relayed {
            mut guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::new().await;
        guest.shutdown().await.unwrap();
        let dripping = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(500)).await;
                far.write_all(b"x").await.unwrap();
            }
            far.shutdown().await.unwrap();
        };
        let ((), ()) = tokio::join!(dripping, run(&mut client, &mut upstream, &flow, &spares));
        assert_eq!(soon(all_of(&mut guest)).await.unwrap(), b"xxxxx");
    }

    #[test]
    fn a_direction_is_bulk_once_much_has_come_in_big_pieces_only() {
        for (pieces, proved) in [
            (&[PROOF][..], true),
            (&[PROOF - 1], false),
            (&[PROOF / 2, PROOF / 2], true),
            (&[PROOF / 2, BIG - 1, PROOF / 2], false),
            (&[BIG - 1; 1000], false),
            (&[BIG; PROOF / BIG], true),
        ] {
            let mut bulk = Bulk::default();
            let last = pieces.iter().map(|piece| bulk.is_proved_by(*piece)).last();
            assert_eq!(last, Some(proved), "{} pieces", pieces.len());
        }
    }
}
