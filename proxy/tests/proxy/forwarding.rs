//! What a request and its response are besides a head and a body, and what becomes of either when
//! one end leaves.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    sync::mpsc,
    thread,
};

use policy::DenyReason;

use crate::{
    harness::{Proxy, TIMEOUT},
    origin::{Origin, Peer},
};

fn start(origin: &Origin) -> Proxy {
    Proxy::start(&[&format!("origin.test:{}/http@127.0.0.0/8", origin.port())])
}

fn head(method: &str, origin: &Origin, fields: &str) -> String {
    let host = format!("origin.test:{}", origin.port());
    format!("{method} http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
}

/// Reads until what came contains `end`.
fn until(peer: &mut Peer, end: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(end) {
        let bytes = peer.read().expect("more");
        seen.push_str(&String::from_utf8_lossy(&bytes));
    }
    seen
}

#[test]
fn it_is_the_origin_that_says_continue() {
    let origin = Origin::serve(|mut peer| {
        let head = until(&mut peer, "\r\n\r\n").to_ascii_lowercase();
        assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
        let go = b"HTTP/1.1 100 Continue\r\n\r\n";
        peer.stream.write_all(go).unwrap();
        until(&mut peer, "hello");
        let done = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        peer.stream.write_all(done).unwrap();
    });
    let proxy = start(&origin);
    let mut client = proxy.client();
    let fields = "Content-Length: 5\r\nExpect: 100-continue\r\n";
    let response = client.request(&head("POST", &origin, fields));
    assert_eq!(response.head, "HTTP/1.1 100 Continue\r\n\r\n");
    let response = client.request("hello");
    assert!(response.head.starts_with("HTTP/1.1 200 "), "{response:?}");
    assert!(!response.head.contains("close"), "{response:?}");
}

#[test]
fn a_refused_expectation_reaches_the_client_and_its_body_is_not_waited_for() {
    for status in ["417 Expectation Failed", "401 Unauthorized"] {
        let origin = Origin::serve(move |mut peer| {
            until(&mut peer, "\r\n\r\n");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
            peer.stream.write_all(answer.as_bytes()).unwrap();
            // The proxy ends the connection, for the body will not come.
            assert!(peer.read().is_none());
        });
        let proxy = start(&origin);
        let mut client = proxy.client();
        let fields = "Content-Length: 5\r\nExpect: 100-continue\r\n";
        let response = client.request(&head("PUT", &origin, fields));
        assert!(response.head.contains(status), "{response:?}");
        assert!(
            response.head.contains("\r\nConnection: close\r\n"),
            "{response:?}"
        );
        assert_eq!(response.body, "no");
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn early_hints_are_early_for_those_who_know_them() {
    let (go, wait) = mpsc::sync_channel::<()>(0);
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::serve(move |mut peer| {
        peer.request().expect("a request");
        let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nConnection: X\r\nX: 1\r\n\r\n";
        peer.stream.write_all(hints).unwrap();
        wait.lock().unwrap().recv().unwrap();
        let done = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        peer.stream.write_all(done).unwrap();
    });
    let proxy = start(&origin);
    let mut client = proxy.client();
    let early = client.request(&head("GET", &origin, ""));
    assert_eq!(early.head, "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
    go.send(()).unwrap();
    assert!(client.response().head.starts_with("HTTP/1.1 200 "));
    let mut old = proxy.client();
    old.send(head("GET", &origin, "").replace("HTTP/1.1", "HTTP/1.0"));
    go.send(()).unwrap();
    assert!(old.response().head.starts_with("HTTP/1.1 200 "));
}

#[test]
fn trailers_are_passed_on_both_ways_and_are_never_taken_for_a_head() {
    let origin = Origin::serve(|mut peer| {
        let request = until(&mut peer, "hi\r\n0\r\nX-Sum: 1\r\n\r\n").to_ascii_lowercase();
        assert!(request.contains("\r\ntrailer: x-sum\r\n"), "{request}");
        assert!(request.contains("\r\nte: trailers\r\n"), "{request}");
        assert!(!request.contains("smuggled"), "{request}");
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Out\r\n\r\n\
                      2\r\nok\r\n0\r\nX-Out: 2\r\nContent-Length: 9\r\nSet-Cookie: a=b\r\n\r\n";
        peer.stream.write_all(answer.as_bytes()).unwrap();
    });
    let proxy = start(&origin);
    let mut client = proxy.client();
    let fields = "Transfer-Encoding: chunked\r\nTrailer: X-Sum, Host\r\nTE: trailers\r\n\
                  Connection: TE\r\n";
    client.send(head("POST", &origin, fields));
    client.send(
        "2;ext=\"x\"\r\nhi\r\n0\r\nX-Sum: 1\r\nHost: smuggled.test\r\nX-No: smuggled\r\n\r\n",
    );
    client.end();
    let seen = String::from_utf8(client.rest()).unwrap();
    assert_eq!(
        seen,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\ntrailer: X-Out\r\n\r\n\
         2\r\nok\r\n0\r\nx-out: 2\r\n\r\n"
    );
}

#[test]
fn a_denied_request_among_others_is_answered_in_its_place() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let mut client = proxy.client();
    let denied = "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n";
    let fine = head("GET", &origin, "");
    client.send([&fine, denied, &fine, denied, &fine].concat());
    for expected in ["200", "403", "200", "403", "200"] {
        let response = client.response();
        assert!(
            response.head.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{response:?}"
        );
    }
    let sums = proxy.finish();
    assert_eq!(
        sums.denials(),
        [("other.test:80", DenyReason::NotAllowed, 2)]
    );
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_client_that_leaves_ends_the_origins_connection() {
    for sent_by in ["client", "origin"] {
        let (reached, begun) = mpsc::sync_channel(1);
        let (over, ended) = mpsc::sync_channel(1);
        let origin = Origin::serve(move |mut peer| {
            until(&mut peer, "half of it");
            reached.send(()).unwrap();
            if sent_by == "origin" {
                let start = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nx";
                peer.stream.write_all(start).unwrap();
                while peer.stream.write_all(&[b'x'; 4096]).is_ok() {}
            } else {
                while peer.read().is_some() {}
            }
            over.send(()).unwrap();
        });
        let proxy = start(&origin);
        let mut client = proxy.client();
        client.send(head("POST", &origin, "Content-Length: 100\r\n"));
        client.send("half of it");
        begun.recv_timeout(TIMEOUT).expect(sent_by);
        if sent_by == "origin" {
            client.exactly(20);
        }
        drop(client);
        ended.recv_timeout(TIMEOUT).expect(sent_by);
    }
}

#[test]
fn an_origin_that_leaves_within_a_body_of_known_length_cuts_the_response() {
    let origin = Origin::fixed("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello");
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(head("GET", &origin, ""));
    let seen = String::from_utf8(client.rest()).unwrap();
    assert!(seen.ends_with("\r\n\r\nhello"), "{seen:?}");
    assert!(seen.contains("content-length: 100\r\n"), "{seen:?}");
}

#[test]
fn an_upgrade_of_a_redirected_request_becomes_a_raw_relay() {
    let origin = Origin::serve(|mut peer| {
        until(&mut peer, "\r\n\r\n");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                      Connection: Upgrade\r\n\r\nfirst";
        peer.stream.write_all(answer.as_bytes()).unwrap();
        while let Some(bytes) = peer.read() {
            peer.stream.write_all(&bytes).unwrap();
        }
        peer.stream.shutdown(Shutdown::Both).unwrap();
    });
    let proxy = start(&origin);
    let mut client = proxy.redirected(([198, 51, 100, 1], origin.port()).into());
    let host = format!("origin.test:{}", origin.port());
    let response = client.request(&format!(
        "GET /chat HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ));
    assert!(response.head.starts_with("HTTP/1.1 101 "), "{response:?}");
    assert_eq!(client.exactly(5), b"first");
    client.send([0, 1, 2]);
    assert_eq!(client.exactly(3), [0, 1, 2]);
    client.end();
    assert_eq!(client.rest(), b"");
}

#[test]
fn a_quarter_of_a_gigabyte_streams_either_way() {
    const SIZE: usize = 256 << 20;
    static PART: [u8; 1 << 14] = [b'x'; 1 << 14];
    let origin = Origin::serve(|mut peer| {
        let head = until(&mut peer, "\r\n\r\n");
        let (_, body) = head.split_once("\r\n\r\n").unwrap();
        // Not by `Peer`, which keeps what it read.
        let mut counted = body.len();
        let mut part = vec![0; 1 << 16];
        while counted < SIZE {
            counted += peer.stream.read(&mut part).unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
        peer.stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..SIZE / PART.len() {
            peer.stream.write_all(&PART).unwrap();
        }
    });
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(head("PUT", &origin, &format!("Content-Length: {SIZE}\r\n")));
    let mut up = client.0.try_clone().unwrap();
    let sending = thread::spawn(move || {
        for _ in 0..SIZE / PART.len() {
            up.write_all(&PART).unwrap();
        }
    });
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.exactly(1));
    }
    let mut part = vec![0; 1 << 16];
    let mut counted = 0;
    while counted < SIZE {
        let length = client.0.read(&mut part).unwrap();
        assert!(part[..length].iter().all(|&byte| byte == b'x'));
        counted += length;
    }
    sending.join().unwrap();
    let sums = proxy.finish();
    let [_, _, up, down] = sums.allowed.values().next().copied().unwrap();
    assert!(up >= SIZE as u64 && down >= SIZE as u64, "{sums:?}");
}
