//! What clients do while a contestant is measured. Every loop has an end.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, UdpSocket},
    task::JoinSet,
    time::timeout,
};

use super::ends::NAME;

/// Where clients connect, and what they say.
#[derive(Debug, Clone)]
pub struct Client {
    /// Where they connect.
    pub to: SocketAddr,
    /// Whether a proxy is there, which is told where to go.
    pub asks: bool,
    /// What they say first in a tunnel.
    pub hello: Arc<Vec<u8>>,
}

/// Tunnels that were opened, used once and ended.
#[derive(Debug, Clone)]
pub struct Tunnels {
    /// How long all of them took.
    pub took: Duration,
    /// How long each of them took until its first bytes were back, in order of length.
    pub set_ups: Vec<Duration>,
}

impl Client {
    /// Opens `count` tunnels to `far`, `at_once` of them at a time, and has each echo a hello.
    pub async fn tunnels(
        &self,
        far: SocketAddr,
        count: usize,
        at_once: usize,
    ) -> anyhow::Result<Tunnels> {
        let left = Arc::new(AtomicUsize::new(count));
        let began = Instant::now();
        let mut working = JoinSet::new();
        for _ in 0..at_once {
            let (client, left) = (self.clone(), Arc::clone(&left));
            working.spawn(async move {
                let mut set_ups = Vec::new();
                while take_one(&left) {
                    set_ups.push(client.echo_once(far).await?);
                }
                anyhow::Ok(set_ups)
            });
        }
        let mut set_ups = Vec::with_capacity(count);
        while let Some(ended) = working.join_next().await {
            set_ups.extend(ended??);
        }
        let took = began.elapsed();
        set_ups.sort_unstable();
        Ok(Tunnels { took, set_ups })
    }

    /// Asks for a name that is not on the list, at a port that is, `at_once` at a time: `count`
    /// times, or fewer where they take longer than 3 s. How often, and how long it took.
    pub async fn denied(
        &self,
        port: u16,
        count: usize,
        at_once: usize,
    ) -> anyhow::Result<(usize, Duration)> {
        let left = Arc::new(AtomicUsize::new(count));
        let began = Instant::now();
        let mut working = JoinSet::new();
        for _ in 0..at_once {
            let (client, left) = (self.clone(), Arc::clone(&left));
            working.spawn(async move {
                let mut done = 0;
                while began.elapsed() < LONGEST && take_one(&left) {
                    client.denied_once(port).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            });
        }
        let mut done = 0;
        while let Some(ended) = working.join_next().await {
            done += ended??;
        }
        Ok((done, began.elapsed()))
    }

    /// Takes what comes through `count` tunnels for so long: how many bytes, in how much time.
    pub async fn bulk(
        &self,
        far: SocketAddr,
        count: usize,
        lasting: Duration,
    ) -> anyhow::Result<(u64, Duration)> {
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = self.open(far).await?;
            stream.write_all(&self.hello).await?;
            // So that it is under way when the time begins.
            take_for(&mut stream, Instant::now() + WARM_UP).await?;
            streams.push(stream);
        }
        let began = Instant::now();
        let mut taking = JoinSet::new();
        for mut stream in streams {
            taking.spawn(async move { take_for(&mut stream, began + lasting).await });
        }
        let mut bytes = 0;
        while let Some(taken) = taking.join_next().await {
            bytes += taken??;
        }
        Ok((bytes, began.elapsed()))
    }

    /// Opens `count` tunnels that have echoed a hello and then are silent.
    pub async fn idle(&self, far: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = self.open(far).await?;
            self.echo(&mut stream).await?;
            streams.push(stream);
        }
        Ok(streams)
    }

    async fn echo_once(&self, far: SocketAddr) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let mut stream = self.open(far).await?;
        self.echo(&mut stream).await?;
        Ok(began.elapsed())
    }

    async fn echo(&self, stream: &mut TcpStream) -> anyhow::Result<()> {
        stream.write_all(&self.hello).await?;
        let mut back = vec![0; self.hello.len()];
        let reading = timeout(PATIENCE, stream.read_exact(&mut back)).await;
        reading.context("wait for an echo")??;
        ensure!(back == *self.hello, "what came back is not what was sent");
        Ok(())
    }

    async fn open(&self, far: SocketAddr) -> anyhow::Result<TcpStream> {
        let to = if self.asks { self.to } else { far };
        let mut stream = connect(to).await?;
        if self.asks {
            let port = far.port();
            let head = ask(&mut stream, NAME, port).await?;
            ensure!(is_success(&head), "no tunnel: {}", text(&head));
        }
        Ok(stream)
    }

    async fn denied_once(&self, port: u16) -> anyhow::Result<()> {
        let mut stream = connect(self.to).await?;
        let head = ask(&mut stream, "denied.example", port).await?;
        ensure!(!is_success(&head), "it is allowed: {}", text(&head));
        let mut rest = [0; 4096];
        let ending = async {
            // Whether it ends or resets is the contestant's own matter.
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        };
        timeout(PATIENCE, ending).await.context("wait for the end")
    }
}

/// Asks `questions` times over UDP, one after the other from each of a few sockets, and says how
/// long it took. Each must be answered.
pub async fn questions(server: SocketAddr, query: &[u8], count: usize) -> anyhow::Result<Duration> {
    let left = Arc::new(AtomicUsize::new(count));
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..ASKERS {
        let (query, left) = (query.to_vec(), Arc::clone(&left));
        asking.spawn(async move {
            let socket = UdpSocket::bind("127.0.0.1:0").await?;
            socket.connect(server).await?;
            let mut answer = [0; 1500];
            while take_one(&left) {
                socket.send(&query).await?;
                let receiving = timeout(PATIENCE, socket.recv(&mut answer)).await;
                receiving.context("wait for an answer")??;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

/// A question for the IPv4 addresses of `name` (RFC 1035, section 4.1).
#[must_use]
pub fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        // No label that is asked for here is as long as that.
        query.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        query.extend_from_slice(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

fn take_one(left: &AtomicUsize) -> bool {
    let taking = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(1)
    });
    taking.is_ok()
}

async fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    let connecting = timeout(PATIENCE, socket.connect(to)).await;
    connecting
        .context("wait for a connection")?
        .context("connect")
}

/// Sends a CONNECT and reads the head of its answer, and whatever comes with it.
async fn ask(stream: &mut TcpStream, host: &str, port: u16) -> anyhow::Result<Vec<u8>> {
    // Without the last field some keep the connection of a refusal open.
    let request = format!(
        "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let reading = timeout(PATIENCE, stream.read_buf(&mut head)).await;
        if reading.context("wait for an answer")?? == 0 {
            bail!("it ended with {:?}", text(&head));
        }
    }
    Ok(head)
}

fn is_success(head: &[u8]) -> bool {
    head.get(8..12)
        .is_some_and(|status| status.starts_with(b" 2"))
}

fn text(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\r').next();
    String::from_utf8_lossy(line.unwrap_or_default()).into_owned()
}

/// Takes bytes and drops them in the kernel, until it is time.
async fn take_for(stream: &mut TcpStream, end: Instant) -> anyhow::Result<u64> {
    let mut bytes = 0;
    let mut space = vec![0; TAKE];
    while Instant::now() < end {
        let waiting = timeout(PATIENCE, stream.readable()).await;
        waiting.context("wait for bytes")??;
        let flags = rustix::net::RecvFlags::TRUNC;
        let taking = || Ok(rustix::net::recv(&*stream, space.as_mut_slice(), flags)?.1);
        match stream.try_io(tokio::io::Interest::READABLE, taking) {
            Ok(0) => bail!("a bulk tunnel ended"),
            Ok(taken) => bytes += taken as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// Longer than anything here takes: what hangs fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// Some look through their whole list for every name.
const LONGEST: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(100);
const TAKE: usize = 1024 * 1024;
const ASKERS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_of_200_and_on_is_a_tunnel() {
        for (head, success) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", true),
            ("HTTP/1.0 200 ok\r\n\r\n", true),
            ("HTTP/1.1 403 egress denied: not_allowed\r\n\r\n", false),
            ("HTTP", false),
        ] {
            assert_eq!(is_success(head.as_bytes()), success, "{head}");
        }
    }

    #[test]
    fn a_question_is_its_header_its_name_and_its_type() {
        let expected = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        assert_eq!(query("a.test"), expected);
    }

    #[test]
    fn as_many_are_taken_as_there_are() {
        let left = AtomicUsize::new(3);
        assert_eq!((0..10).filter(|_| take_one(&left)).count(), 3);
    }
}
