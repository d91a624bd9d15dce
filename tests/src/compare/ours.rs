//! Our proxy as PID 1 starts it: another user, an empty environment, its sockets over its standard
//! input.

use std::{
    io::{self, BufRead, BufReader, IoSlice, Write},
    mem::MaybeUninit,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use policy::Policy;
use report::{
    RunClock,
    link::{FromProxy, Ingress, MAX_FRAME, Start, ToProxy},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{contestant::Rules, ends::NAME};

/// The proxy, started and ready.
#[derive(Debug)]
pub struct Started {
    /// The process.
    pub child: Child,
    /// Where it answers questions.
    pub questions: SocketAddr,
    /// PID 1's end of its link.
    pub link: Link,
    /// From before it was executed until it said that it serves.
    pub took: Duration,
    /// What it had to do without.
    pub degradations: Vec<String>,
}

/// PID 1's end of the link: reports are read, as PID 1 would, and dropped.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    reader: Option<BufReader<UnixStream>>,
    reading: Option<JoinHandle<()>>,
}

/// Starts the proxy to serve `listener`.
pub fn start(program: &Path, listener: &TcpListener, rules: Rules) -> anyhow::Result<Started> {
    let names = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let questions = names.local_addr()?;
    let start = encoded(&ToProxy::Start(Box::new(start_of(rules)?)))?;
    let (ours, theirs) = UnixStream::pair()?;
    let began = Instant::now();
    let child = Command::new(program)
        .env_clear()
        .uid(NOBODY)
        .gid(NOBODY)
        .process_group(0)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    hand_over(&ours, listener, &names)?;
    (&ours).write_all(&start)?;
    let mut reader = BufReader::new(ours.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let took = began.elapsed();
    let FromProxy::Ready { degradations, .. } = serde_json::from_str(&line)? else {
        bail!("it is not ready: {line}");
    };
    Ok(Started {
        child,
        questions,
        link: Link {
            socket: ours,
            reader: Some(reader),
            reading: None,
        },
        took,
        degradations: degradations.iter().map(ToString::to_string).collect(),
    })
}

/// Ends a proxy that was started to see how long that takes.
pub fn end(mut started: Started) -> anyhow::Result<()> {
    started.child.kill().context("end the proxy")?;
    started.child.wait().context("wait for the proxy")?;
    Ok(())
}

/// The list that lets the ends be reached, and so many other names.
pub fn list(rules: Rules) -> impl Iterator<Item = String> {
    let ends = rules
        .ports
        .map(|port| format!("{NAME}:{port}/tls@127.0.0.0/8"));
    let rest = rules.entries.saturating_sub(ends.len());
    ends.into_iter().chain(others(rest))
}

/// So many names that nobody asks for.
pub fn others(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("host{n}.project{}.example.com", n % 97))
}

fn start_of(rules: Rules) -> anyhow::Result<Start> {
    let policy = Policy::from_entries(list(rules)).context("read the list")?;
    Ok(Start {
        generation: report::FIRST_GENERATION,
        allow: policy.entries(),
        policy_digest: policy.digest().to_string(),
        guard: Vec::new(),
        clock_origin_ms: RunClock::start().origin_ms(),
        seed: report::Seed([0; 16]),
        max_connections: rules.connections,
        resolvers: vec![Ipv4Addr::LOCALHOST.into()],
        upstream_proxy: None,
    })
}

fn hand_over(link: &UnixStream, listener: &TcpListener, names: &UdpSocket) -> anyhow::Result<()> {
    let announcement = encoded(&ToProxy::Listeners {
        kinds: vec![Ingress::Explicit, Ingress::DnsUdp],
    })?;
    let descriptors = [listener.as_fd(), names.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(&announcement)];
    sendmsg(link, &parts, &mut control, SendFlags::empty()).context("hand sockets over")?;
    Ok(())
}

fn encoded(message: &ToProxy) -> anyhow::Result<Vec<u8>> {
    report::encode(message, MAX_FRAME).context("write a message to the proxy")
}

impl Link {
    /// Reads reports from now on, on a thread that runs where the calling one does.
    pub fn read(&mut self) {
        self.reading = self.reader.take().map(|mut reader| {
            thread::spawn(move || {
                // It ends with the proxy.
                let _ = io::copy(&mut reader, &mut io::sink());
            })
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The proxy is gone already, or goes now.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_as_many_entries_as_were_asked_for() {
        for entries in [2, 10, 1000] {
            let rules = Rules {
                ports: [1000, 1001],
                entries,
                connections: 1,
            };
            assert_eq!(start_of(rules).unwrap().allow.len(), entries);
        }
    }
}
