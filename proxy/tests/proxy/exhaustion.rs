//! Guests that take more than there is, or give nothing back: the program itself, so that its
//! descriptors and its memory can be looked at.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    process::Child,
    sync::mpsc,
    time::Instant,
};

use hickory_resolver::proto::rr::RecordType;
use policy::DenyReason;
use report::link::{FromProxy, Ingress, Start, ToProxy};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use socket2::SockRef;

use crate::{
    harness::{Client, Pid1, Sums, TIMEOUT, listener, start},
    origin::Origin,
    questions::question,
    startup::started,
};

/// The program, serving.
struct Program {
    child: Child,
    pid1: Pid1,
    explicit: SocketAddr,
    datagrams: SocketAddr,
}

impl Program {
    fn start(allow: &str) -> Self {
        Self::with(start(&[allow]))
    }

    fn with(start: Start) -> Self {
        let (child, mut pid1) = started();
        let socket = listener();
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        pid1.hand_over(&[
            (Ingress::Explicit, socket.as_fd()),
            (Ingress::DnsUdp, datagrams.as_fd()),
        ]);
        pid1.send(&ToProxy::Start(Box::new(start)));
        assert!(matches!(pid1.receive(), FromProxy::Ready { .. }));
        Self {
            child,
            pid1,
            explicit: socket.local_addr().unwrap(),
            datagrams: datagrams.local_addr().unwrap(),
        }
    }

    fn client(&self) -> Client {
        Client::to(self.explicit)
    }

    /// A client that was refused, and stays.
    fn refused(&self) -> Client {
        let mut client = self.client();
        let response = client.request("CONNECT denied.test:443 HTTP/1.1\r\n\r\n");
        assert!(response.head.starts_with("HTTP/1.1 403 "), "{response:?}");
        client
    }

    /// How many descriptors it has while it serves nobody. All are there once it has served
    /// somebody, and somebody who left is forgotten once the next has been answered.
    fn base(&self) -> usize {
        let mut leaves = self.refused();
        leaves.end();
        leaves.rest();
        let stays = self.refused();
        let base = self.descriptors() - 1;
        drop(stays);
        self.returns_to(base);
        base
    }

    /// The head of the answer to a client that wants a tunnel, and the client.
    fn tunnel(&self, to: &str) -> (String, Client) {
        let mut client = self.client();
        let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
        let head = client.request(&request).head;
        (head, client)
    }

    fn descriptors(&self) -> usize {
        self.numbers().len()
    }

    /// The numbers of its descriptors; whoever runs the tests may have left it some high ones.
    fn numbers(&self) -> BTreeSet<usize> {
        let directory = format!("/proc/{}/fd", self.child.id());
        let entries = std::fs::read_dir(directory).unwrap();
        entries
            .map(|entry| {
                entry
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect()
    }

    /// Its memory that no other process shares, in KiB.
    fn memory(&self) -> usize {
        let file = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(file).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let size = line.unwrap().trim().strip_suffix(" kB").unwrap();
        size.parse().unwrap()
    }

    /// From now on it gets so many descriptors and no more.
    fn leave(&self, descriptors: usize) {
        let taken = self.numbers();
        let mut free = (0..).filter(|number| !taken.contains(number));
        let limit = free.nth(descriptors).unwrap();
        let limit = Rlimit {
            current: Some(limit as u64),
            maximum: Some(limit as u64),
        };
        let pid = Pid::from_child(&self.child);
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    }

    /// Waits until it has given back all descriptors but so many.
    fn returns_to(&self, descriptors: usize) {
        let began = Instant::now();
        while self.descriptors() > descriptors {
            let left = self.descriptors();
            assert!(began.elapsed() < TIMEOUT, "{left} instead of {descriptors}");
            std::thread::yield_now();
        }
    }

    fn finish(mut self) -> Sums {
        let sums = self.pid1.drain();
        assert!(self.child.wait().unwrap().success());
        sums
    }
}

fn roomy(allow: &str) -> Start {
    Start {
        max_connections: 4096,
        ..start(&[allow])
    }
}

/// Sends without end to whoever connects.
fn gushing() -> Origin {
    Origin::serve(|mut peer| {
        let bytes = vec![b'x'; 64 * 1024];
        while peer.stream.write_all(&bytes).is_ok() {}
    })
}

#[test]
fn without_descriptors_it_says_so_counts_it_and_recovers() {
    let origin = Origin::echo();
    let to = origin.address.to_string();
    let program = Program::start(&to);
    let base = program.base();
    // Room for one tunnel and for one client more, whose far end finds none.
    program.leave(3);
    let (head, mut open) = program.tunnel(&to);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut turned_away = Vec::new();
    for which in ["dialled for", "accepted", "accepted either"] {
        let (head, client) = program.tunnel(&to);
        assert!(
            head.starts_with("HTTP/1.1 503 egress denied: limit\r\n"),
            "one that cannot be {which}: {head}"
        );
        turned_away.push(client);
    }
    open.send("still there");
    assert_eq!(open.exactly(11), b"still there");
    drop((turned_away, open));
    program.returns_to(base);
    let (head, mut client) = program.tunnel(&to);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.send("again");
    assert_eq!(client.exactly(5), b"again");
    let sums = program.finish();
    let limited: u64 = sums
        .denials()
        .iter()
        .filter(|(_, reason, _)| *reason == DenyReason::Limit)
        .map(|(_, _, count)| count)
        .sum();
    assert_eq!(limited, 3, "{sums:?}");
    assert_eq!(sums.allowed[&to][..2], [2, 0], "{sums:?}");
}

#[test]
fn a_refused_client_that_stays_costs_no_descriptor() {
    let program = Program::start("origin.test");
    let base = program.base();
    let stay: Vec<_> = (0..40).map(|_| program.refused()).collect();
    program.returns_to(base);
    drop(stay);
    program.finish();
}

#[test]
fn a_flood_of_connections_leaves_nothing_behind() {
    let origin = Origin::echo();
    let to = origin.address.to_string();
    let program = Program::with(roomy(&to));
    let base = program.base();
    for round in 0..2000 {
        let mut stream = TcpStream::connect(program.explicit).unwrap();
        match round % 4 {
            // Ended, reset, reset with a request under way, ended within one.
            0 => {}
            1 => SockRef::from(&stream)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap(),
            2 => {
                write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
                SockRef::from(&stream)
                    .set_linger(Some(std::time::Duration::ZERO))
                    .unwrap();
            }
            _ => {
                stream.write_all(b"CONNECT ").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
        }
    }
    let (head, mut client) = program.tunnel(&to);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.send("x");
    assert_eq!(client.exactly(1), b"x");
    drop(client);
    program.returns_to(base);
    program.finish();
}

#[test]
fn clients_that_read_nothing_take_bounded_memory_and_nobody_elses_time() {
    const STALLED: usize = 100;
    let (bulk, echo) = (gushing(), Origin::echo());
    let (from, to) = (bulk.address.to_string(), echo.address.to_string());
    let program = Program::with(Start {
        max_connections: 4096,
        ..start(&[&from, &to])
    });
    let before = program.memory();
    let stalled: Vec<_> = (0..STALLED)
        .map(|_| {
            let (head, mut client) = program.tunnel(&from);
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            // That it has begun is all that it waits for.
            client.exactly(1);
            client
        })
        .collect();
    let (head, mut client) = program.tunnel(&to);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let sent = vec![b'y'; 1 << 20];
    let mut sender = Client(client.0.try_clone().unwrap());
    let sending = std::thread::spawn(move || sender.send(vec![b'y'; 1 << 20]));
    assert!(client.exactly(sent.len()) == sent);
    sending.join().unwrap();
    let each = program.memory().saturating_sub(before) / STALLED;
    assert!(each <= 96, "{each} KiB for each client that does not read");
    drop(stalled);
    program.finish();
}

#[test]
fn what_a_tunnel_takes_does_not_grow_with_what_it_carried() {
    const TUNNELS: usize = 100;
    let origin = Origin::echo();
    let to = origin.address.to_string();
    let program = Program::with(roomy(&to));
    let mut tunnels: Vec<_> = (0..TUNNELS).map(|_| program.tunnel(&to).1).collect();
    let carry = |tunnels: &mut [Client], bytes: usize| {
        for client in tunnels {
            let mut sender = Client(client.0.try_clone().unwrap());
            let sending = std::thread::spawn(move || sender.send(vec![b'x'; bytes]));
            client.exactly(bytes);
            sending.join().unwrap();
        }
    };
    carry(&mut tunnels, 1);
    let little = program.memory();
    carry(&mut tunnels, 1 << 20);
    let grown = program.memory().saturating_sub(little);
    assert!(
        grown <= 2048,
        "{grown} KiB more after {TUNNELS} tunnels carried a megabyte each"
    );
    drop(tunnels);
    program.finish();
}

#[test]
fn a_client_that_resets_frees_an_origin_that_never_answers() {
    let (asked, was_asked) = mpsc::sync_channel(1);
    let (ended, was_ended) = mpsc::sync_channel(1);
    let origin = Origin::serve(move |mut peer| {
        peer.request();
        asked.send(()).unwrap();
        while peer.read().is_some() {}
        ended.send(()).unwrap();
    });
    let to = origin.address.to_string();
    let program = Program::start(&format!("{to}/http"));
    let base = program.base();
    let mut client = program.client();
    client.send(format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    was_asked.recv_timeout(TIMEOUT).unwrap();
    SockRef::from(&client.0)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
    drop(client);
    was_ended.recv_timeout(TIMEOUT).unwrap();
    program.returns_to(base);
    program.finish();
}

#[test]
fn what_was_asked_before_the_end_is_decided_though_nobody_waits_for_it() {
    let mut start = start(&["a.example"]);
    start.max_connections = 1000;
    let mut program = Program::with(start);
    let process = Pid::from_child(&program.child);
    // It wakes to all of it at once, and to the order to end.
    kill_process(process, Signal::STOP).unwrap();
    for n in 0..100 {
        let mut client = program.client();
        client.send(format!("CONNECT n{n}.test:443 HTTP/1.1\r\n\r\n"));
    }
    for _ in 0..50 {
        let question = question("b.test.", RecordType::A);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(&question, program.datagrams).unwrap();
    }
    program.pid1.send(&ToProxy::Drain);
    kill_process(process, Signal::CONT).unwrap();
    let sums = program.pid1.until_drained();
    let refused: u64 = sums.denied.values().sum();
    assert_eq!(refused, 150, "{sums:?}");
    program.child.wait().unwrap();
}

fn is_answered(at: SocketAddr) -> bool {
    let Ok(mut probe) = TcpStream::connect(at) else {
        return false;
    };
    let mut answer = [0];
    probe.write_all(b"no request\r\n\r\n").is_ok() && matches!(probe.read(&mut answer), Ok(1))
}

#[test]
fn a_response_under_way_is_finished_and_counted_when_the_run_ends() {
    let (go_on, may_go_on) = mpsc::sync_channel::<()>(1);
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let origin = Origin::serve(move |mut peer| {
        peer.request();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst";
        peer.stream.write_all(head.as_bytes()).unwrap();
        may_go_on.lock().unwrap().recv().unwrap();
        peer.stream.write_all(b"-rest").unwrap();
        while peer.read().is_some() {}
    });
    let to = origin.address.to_string();
    let mut program = Program::start(&format!("{to}/http"));
    let mut client = program.client();
    client.send(format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    let mut said = Vec::new();
    while !said.ends_with(b"first") {
        said.extend(client.exactly(1));
    }
    program.pid1.send(&ToProxy::Drain);
    // The run is at its end once nobody is accepted any more. Each is answered before the next comes:
    // a crowd of them would take the time that the response has.
    while is_answered(program.explicit) {}
    go_on.send(()).unwrap();
    let mut rest = [0; 5];
    client.0.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"-rest");
    let sums = program.pid1.until_drained();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n".len();
    assert_eq!(sums.allowed[&to][3], (head + 10) as u64, "{sums:?}");
    program.child.wait().unwrap();
}
