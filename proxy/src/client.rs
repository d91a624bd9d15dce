//! The guest's side of a connection: what it has sent and has not been consumed, and when to stop
//! waiting for more.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use rustix::net::Shutdown;
use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    net::{TcpStream, tcp::ReadHalf},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    account::Flow,
    head::{Head, HeadError, MAX_HEAD},
    spoken::Spoken,
};

/// A connection from the guest.
///
/// Bytes stay in `pending` until the step that understands them takes them out, so that a step
/// which finds that they are not its own leaves them for another.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) pending: BytesMut,
    end: End,
}

/// Who ends the connection, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// We do, and the client is to read what it was sent.
    Ours,
    /// Both sides have ended already.
    Both,
    /// A reset does.
    Reset,
}

/// Why a client did not say what was waited for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unheard {
    /// It ended the connection, or went silent for longer than is waited.
    #[error("the client is gone")]
    Gone,
    /// It said something else.
    #[error(transparent)]
    Head(#[from] HeadError),
}

impl Client {
    /// Takes over a connection that was just accepted.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            pending: BytesMut::new(),
            end: End::Ours,
        }
    }

    /// Reads the head of the next request. `None`: the client ended the connection between two.
    pub(crate) async fn head(&mut self, patience: Duration) -> Result<Option<Head>, Unheard> {
        if self.first(patience).await.is_none() {
            return Ok(None);
        }
        let deadline = Instant::now() + SPEAK_FIRST;
        let (mut tried, mut blank) = (0, 0);
        loop {
            // Lines that are empty are let pass before a request (RFC 9112 §2.2), and taken off, or
            // one after the other would have all before it read again.
            while self.pending.starts_with(b"\r\n") {
                self.pending.advance(2);
                (tried, blank) = (0, blank + 2);
            }
            if blank > MAX_HEAD {
                return Err(HeadError::TooLong.into());
            }
            if !self.pending.is_empty() && self.worth_parsing(tried) {
                tried = self.pending.len();
                if let Some((head, length)) = Head::parse(&self.pending)? {
                    self.pending.advance(length);
                    return Ok(Some(head));
                }
            }
            match timeout_at(deadline, self.more()).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) | Err(_) => return Err(Unheard::Gone),
            }
        }
    }

    /// Waits for the first byte of what comes next, and leaves it where it is. `None`: the client
    /// ended the connection or stayed silent.
    pub(crate) async fn first(&mut self, patience: Duration) -> Option<u8> {
        if self.pending.is_empty() && !matches!(timeout(patience, self.more()).await, Ok(Ok(1..))) {
            return None;
        }
        self.pending.first().copied()
    }

    /// Waits until the first bytes tell what the client speaks. `None`: it ended or stayed silent.
    pub(crate) async fn spoken(&mut self, patience: Duration) -> Option<Spoken> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(spoken) = Spoken::classify(&self.pending) {
                return Some(spoken);
            }
            match timeout_at(deadline, self.more()).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) | Err(_) if self.pending.is_empty() => return None,
                Ok(Ok(0) | Err(_)) | Err(_) => return Some(Spoken::Other),
            }
        }
    }

    /// Reads what the client sends next into `pending`. 0: it sends no more.
    ///
    /// By way of the stack: a client that is silent holds no room for what it might say, and one
    /// that says little holds little.
    pub(crate) async fn more(&mut self) -> io::Result<usize> {
        let (stream, pending) = (&mut self.stream, &mut self.pending);
        poll_fn(|cx| {
            let mut part = [const { MaybeUninit::uninit() }; READ_SIZE];
            let mut part = ReadBuf::uninit(&mut part);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
            pending.extend_from_slice(part.filled());
            Poll::Ready(Ok(part.filled().len()))
        })
        .await
    }

    /// Sends all of `bytes`, unless the client does not take them in time.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match timeout(SPEAK_FIRST, self.stream.write_all(bytes)).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Ends the connection, when it is dropped, with a reset: what the client has got is not all
    /// that there was, and an orderly end would tell it otherwise.
    pub(crate) fn abort(&mut self) {
        self.end = End::Reset;
        // Where it fails the connection is gone already.
        let _ = self.stream.set_zero_linger();
    }

    /// Says that both sides have ended in order: there is nothing left to wait for.
    pub(crate) fn ended(&mut self) {
        self.end = End::Both;
    }

    /// Ends the connection so that the client reads what was sent to it.
    ///
    /// Closing a socket with unread bytes resets the connection, and a reset discards what the peer
    /// has not read yet: the explanation of a denial, for one. So the rest is read and dropped.
    pub(crate) async fn finish(&mut self) {
        if self.end != End::Ours || rustix::net::shutdown(&self.stream, Shutdown::Write).is_err() {
            return;
        }
        let mut left = LINGER_BYTES;
        let drain = async {
            while left > 0 {
                self.pending.clear();
                match self.more().await {
                    Ok(read @ 1..) => left = left.saturating_sub(read),
                    Ok(0) | Err(_) => return,
                }
            }
        };
        // Whether it ended or not, the socket may be closed now.
        let _ = timeout(LINGER, drain).await;
    }

    /// A head is parsed once its end was seen, or when so much came that an error would show: a
    /// client that sends byte by byte must not have each of them parse the whole anew.
    fn worth_parsing(&self, tried: usize) -> bool {
        let new = self
            .pending
            .get(tried.saturating_sub(3)..)
            .unwrap_or_default();
        self.pending.len() >= 2 * tried
            || new.windows(2).any(|pair| matches!(pair, b"\n\r" | b"\n\n"))
    }
}

/// Waits until a client whose request was answered or is being answered has left: it has failed, or
/// it has ended its side and nothing moves on `flow` any more.
///
/// An end of its side alone says little: it may be a script that sends its request and ends, or a
/// process that is gone. What it sends meanwhile, its next request, is read up to a bound, since its
/// end stands behind it.
pub(crate) async fn left(
    from: &mut ReadHalf<'_>,
    pending: &mut BytesMut,
    flow: &Flow,
) -> io::Error {
    while pending.len() < READ_AHEAD {
        // No room is made before there is something to read: the wait may be long.
        if let Err(error) = from.readable().await {
            return error;
        }
        pending.reserve(READ_SIZE);
        match from.try_read_buf(pending) {
            Ok(0) => {
                silence(flow).await;
                return io::ErrorKind::UnexpectedEof.into();
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return error,
        }
    }
    std::future::pending().await
}

async fn silence(flow: &Flow) {
    let mut seen = flow.moved();
    loop {
        sleep(HALF_CLOSED).await;
        let now = flow.moved();
        if now == seen {
            return;
        }
        seen = now;
    }
}

/// How long a client that must speak first has for it.
pub(crate) const SPEAK_FIRST: Duration = Duration::from_secs(30);
/// How long a client may keep a connection open between two requests.
pub(crate) const BETWEEN_REQUESTS: Duration = Duration::from_secs(120);
/// For how long nothing may move for a client that has ended its side.
pub(crate) const HALF_CLOSED: Duration = Duration::from_secs(30);
const READ_SIZE: usize = 4096;
const READ_AHEAD: usize = 16 * 1024;
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 256 * 1024;

/// What `future` gives, or a failure of the test that would hang without it.
#[cfg(test)]
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(20);
    timeout(limit, future).await.expect("an end within 20 s")
}

#[cfg(test)]
impl Client {
    /// A client, and the guest's end of its connection.
    pub(crate) async fn pair() -> (Self, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        let (guest, accepted) = tokio::join!(socket.connect(address), listener.accept());
        (Self::new(accepted.unwrap().0), guest.unwrap())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn empty_lines_before_a_request_pass_in_whatever_pieces_and_not_without_end() {
        let (mut client, mut guest) = Client::pair().await;
        let sending = async {
            for piece in [
                &b"\r"[..],
                b"\n\r",
                b"\n",
                b"\r\nGET / HTTP/1.1\r\n",
                b"\r\n",
            ] {
                guest.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (head, ()) = soon(async { tokio::join!(client.head(SPEAK_FIRST), sending) }).await;
        assert_eq!(head.unwrap().unwrap().target, "/");
        let (mut client, mut guest) = Client::pair().await;
        let lines = b"\r\n".repeat(MAX_HEAD);
        let sending = async { guest.write_all(&lines).await };
        let (head, _) = soon(async { tokio::join!(client.head(SPEAK_FIRST), sending) }).await;
        assert!(
            matches!(head.unwrap_err(), Unheard::Head(HeadError::TooLong)),
            "without end"
        );
    }

    #[tokio::test]
    async fn a_head_leaves_what_follows_it_pending() {
        let (mut client, mut guest) = Client::pair().await;
        guest
            .write_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n\x16\x03\x01")
            .await
            .unwrap();
        let head = client.head(SPEAK_FIRST).await.unwrap().expect("a head");
        assert_eq!(head.target, "a.example:443");
        while client.pending.len() < 3 {
            client.more().await.unwrap();
        }
        assert_eq!(&client.pending[..], b"\x16\x03\x01");
    }

    #[tokio::test]
    async fn a_head_may_come_byte_by_byte() {
        let (mut client, mut guest) = Client::pair().await;
        let sending = async {
            for byte in b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n" {
                guest.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (head, ()) = tokio::join!(client.head(SPEAK_FIRST), sending);
        assert_eq!(head.unwrap().expect("a head").target, "http://a.example/");
    }

    #[tokio::test]
    async fn an_end_between_requests_is_no_error_and_one_within_is() {
        let (mut client, guest) = Client::pair().await;
        drop(guest);
        assert!(client.head(SPEAK_FIRST).await.unwrap().is_none());

        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"GET / HT").await.unwrap();
        drop(guest);
        assert!(matches!(client.head(SPEAK_FIRST).await, Err(Unheard::Gone)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_speak_is_not_waited_for_for_ever() {
        let (mut client, _guest) = Client::pair().await;
        let began = Instant::now();
        assert_eq!(client.spoken(SPEAK_FIRST).await, None);
        assert!(began.elapsed() >= SPEAK_FIRST, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn an_answer_is_read_although_the_client_had_sent_more() {
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(&vec![b'x'; 100_000]).await.unwrap();
        client.send(b"refused").await.unwrap();
        let mut answer = Vec::new();
        let reading = async {
            guest.shutdown().await.unwrap();
            guest.read_to_end(&mut answer).await
        };
        let (read, ()) = tokio::join!(reading, client.finish());
        read.unwrap();
        assert_eq!(answer, b"refused");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_told_and_stays_is_left_after_2_s() {
        let (mut client, _guest) = Client::pair().await;
        client.send(b"refused").await.unwrap();
        let began = Instant::now();
        client.finish().await;
        assert_eq!(began.elapsed(), LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_without_end_is_left_after_so_many_bytes() {
        let (mut client, mut guest) = Client::pair().await;
        client.send(b"refused").await.unwrap();
        let sending = async {
            let mut sent = 0;
            while guest.write_all(&[b'x'; 4096]).await.is_ok() {
                sent += 4096;
                assert!(sent < 64 << 20, "it reads without end");
            }
        };
        let ending = async {
            client.finish().await;
            drop(client);
        };
        tokio::join!(sending, ending);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_now_and_then_do_not_make_up_a_head() {
        let (mut client, mut guest) = Client::pair().await;
        let dripping = async {
            for byte in b"GET /".iter().chain(std::iter::repeat(&b'x')) {
                if guest.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let began = Instant::now();
        tokio::select! {
            head = client.head(SPEAK_FIRST) => assert!(matches!(head, Err(Unheard::Gone))),
            () = dripping => panic!("the guest's side failed"),
        }
        assert_eq!(began.elapsed().as_secs(), SPEAK_FIRST.as_secs());
    }

    #[tokio::test]
    async fn an_aborted_connection_is_reset_and_not_ended() {
        let (mut client, mut guest) = Client::pair().await;
        client.send(b"part").await.unwrap();
        client.abort();
        client.finish().await;
        drop(client);
        let mut got = Vec::new();
        let error = guest.read_to_end(&mut got).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn what_is_spoken_is_told_without_taking_it_off_the_stream() {
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        assert_eq!(client.spoken(SPEAK_FIRST).await, Some(Spoken::Http));
        assert_eq!(&client.pending[..], b"GET / HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn a_client_that_ends_in_its_first_line_spoke_something_else() {
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"GET ").await.unwrap();
        guest.shutdown().await.unwrap();
        assert_eq!(client.spoken(SPEAK_FIRST).await, Some(Spoken::Other));
    }

    #[tokio::test]
    async fn a_bad_head_is_told_from_a_client_that_is_gone() {
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"\x05\x01\x00").await.unwrap();
        let error = client.head(SPEAK_FIRST).await.unwrap_err();
        assert!(
            matches!(error, Unheard::Head(HeadError::Syntax(_))),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_was_begun_must_be_ended() {
        let (mut client, mut guest) = Client::pair().await;
        guest.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let began = Instant::now();
        assert!(matches!(
            client.head(BETWEEN_REQUESTS).await,
            Err(Unheard::Gone)
        ));
        assert_eq!(began.elapsed().as_secs(), SPEAK_FIRST.as_secs());
    }
}
