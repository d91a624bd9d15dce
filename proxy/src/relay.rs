//! Copies bytes both ways between a guest and what it was let through to, until both have ended.
//!
//! A tunnel that is silent costs no buffer: one is borrowed only while there are bytes in it. The
//! end of one direction is passed on, and the other goes on. A connection that is open both ways is
//! never cut for silence; one that is half open is, or peers that forget their side would pile up.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::Shutdown;
use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::sleep,
};

use crate::{account::Flow, client::Client};

/// Relays until both directions have ended, one fails, or a half-open one stays silent. What the
/// client has sent already goes first.
///
/// A failure is passed on as a reset: an orderly end would tell either side that it has got all.
pub(crate) async fn run(
    client: &mut Client,
    upstream: &mut TcpStream,
    flow: &Flow,
    buffers: &Buffers,
) {
    if copy(client, upstream, flow, buffers).await.is_err() {
        client.abort();
        // Where it fails the connection is gone already.
        let _ = upstream.set_zero_linger();
    }
}

async fn copy(
    client: &mut Client,
    upstream: &mut TcpStream,
    flow: &Flow,
    buffers: &Buffers,
) -> io::Result<()> {
    let (mut from_guest, mut to_guest) = client.stream.split();
    let (mut from_far, mut to_far) = upstream.split();
    let early = std::mem::take(&mut client.pending);
    let up = async {
        flow.add_up(early.len());
        to_far.write_all(&early).await?;
        drop(early);
        pump(&mut from_guest, &mut to_far, buffers, |bytes| {
            flow.add_up(bytes);
        })
        .await
    };
    let down = pump(&mut from_far, &mut to_guest, buffers, |bytes| {
        flow.add_down(bytes);
    });
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

/// Copies until the source ends, and passes the end on.
async fn pump(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    buffers: &Buffers,
    count: impl Fn(usize),
) -> io::Result<()> {
    loop {
        let chunk = poll_fn(|cx| poll_chunk(from, buffers, cx)).await?;
        if chunk.length == 0 {
            let socket: &TcpStream = to.as_ref();
            return Ok(rustix::net::shutdown(socket, Shutdown::Write)?);
        }
        count(chunk.length);
        to.write_all(chunk.bytes()).await?;
    }
}

/// Waits for the end of the direction that is left, for as long as bytes come now and then.
async fn unless_silent(
    rest: Pin<&mut impl Future<Output = io::Result<()>>>,
    flow: &Flow,
) -> io::Result<()> {
    let silence = async {
        let mut seen = flow.moved();
        let mut silent_for = 0;
        while silent_for < HALF_OPEN_MINUTES {
            sleep(MINUTE).await;
            let now = flow.moved();
            silent_for = if now == seen { silent_for + 1 } else { 0 };
            seen = now;
        }
    };
    tokio::select! {
        ended = rest => ended,
        () = silence => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads once, into a buffer that is borrowed only if there is something to read.
fn poll_chunk<'b>(
    from: &mut ReadHalf<'_>,
    buffers: &'b Buffers,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Chunk<'b>>> {
    let mut chunk = Chunk {
        memory: buffers.take(),
        length: 0,
        owner: buffers,
    };
    let mut space = ReadBuf::new(&mut chunk.memory);
    ready!(Pin::new(from).poll_read(cx, &mut space))?;
    let length = space.filled().len();
    chunk.length = length;
    Poll::Ready(Ok(chunk))
}

/// Buffers that no connection is using right now.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Box<[u8]>>>);

/// Bytes on their way, in a buffer that goes back when they have passed.
struct Chunk<'b> {
    memory: Box<[u8]>,
    length: usize,
    owner: &'b Buffers,
}

impl Buffers {
    fn take(&self) -> Box<[u8]> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice())
    }

    fn put_back(&self, memory: Box<[u8]>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(memory);
        }
    }
}

impl Chunk<'_> {
    fn bytes(&self) -> &[u8] {
        self.memory.get(..self.length).unwrap_or_default()
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.owner.put_back(std::mem::take(&mut self.memory));
    }
}

const BUFFER: usize = 64 * 1024;
/// Buffers beyond these are freed: they were needed by peers that do not take what they are sent.
const SPARE: usize = 8;
const MINUTE: Duration = Duration::from_secs(60);
const HALF_OPEN_MINUTES: u32 = 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use report::{RunClock, Target};
    use tokio::{
        io::AsyncReadExt as _,
        time::{Instant, timeout},
    };

    use super::*;
    use crate::{account::Account, client::soon};

    /// A relay, with the guest at one end and the far end at the other.
    struct Relayed {
        guest: TcpStream,
        far: TcpStream,
        client: Client,
        upstream: TcpStream,
        flow: Flow,
        buffers: Buffers,
    }

    impl Relayed {
        async fn new() -> Self {
            let (client, guest) = Client::pair().await;
            let (far, upstream) = Client::pair().await;
            let flow = Arc::new(Account::new(RunClock::start())).flow(Target::default());
            Self {
                guest,
                far: far.stream,
                client,
                upstream,
                flow,
                buffers: Buffers::default(),
            }
        }
    }

    async fn all_of(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
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
            buffers,
        } = Relayed::new().await;
        client.pending.extend_from_slice(b"early ");
        let talking = async {
            guest.write_all(b"late").await.unwrap();
            guest.shutdown().await.unwrap();
            let heard = all_of(&mut far).await.unwrap();
            far.shutdown().await.unwrap();
            heard
        };
        let relay = run(&mut client, &mut upstream, &flow, &buffers);
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
            buffers,
        } = Relayed::new().await;
        far.set_zero_linger().unwrap();
        drop(far);
        soon(run(&mut client, &mut upstream, &flow, &buffers)).await;
        client.finish().await;
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
            buffers,
        } = Relayed::new().await;
        guest.set_zero_linger().unwrap();
        drop(guest);
        soon(run(&mut client, &mut upstream, &flow, &buffers)).await;
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
            buffers,
        } = Relayed::new().await;
        let talking = async {
            guest.write_all(b"x").await.unwrap();
            assert_eq!(far.read_u8().await.unwrap(), b'x');
            // Every buffer that was ever made is back: one, used by both directions in turn.
            buffers.0.lock().unwrap().len()
        };
        tokio::select! {
            () = run(&mut client, &mut upstream, &flow, &buffers) => panic!("the relay ended"),
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
            buffers,
        } = Relayed::new().await;
        let relay = run(&mut client, &mut upstream, &flow, &buffers);
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
            buffers,
        } = Relayed::new().await;
        guest.shutdown().await.unwrap();
        let began = Instant::now();
        run(&mut client, &mut upstream, &flow, &buffers).await;
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
            buffers,
        } = Relayed::new().await;
        guest.shutdown().await.unwrap();
        let dripping = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(500)).await;
                far.write_all(b"x").await.unwrap();
            }
            far.shutdown().await.unwrap();
        };
        let ((), ()) = tokio::join!(dripping, run(&mut client, &mut upstream, &flow, &buffers));
        assert_eq!(soon(all_of(&mut guest)).await.unwrap(), b"xxxxx");
    }

    #[test]
    fn spare_buffers_are_bounded() {
        let buffers = Buffers::default();
        let taken: Vec<_> = (0..SPARE * 2).map(|_| buffers.take()).collect();
        for memory in taken {
            buffers.put_back(memory);
        }
        assert_eq!(buffers.0.lock().unwrap().len(), SPARE);
    }
}
