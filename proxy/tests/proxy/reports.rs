//! What PID 1 is told adds up to what happened.

use std::{io::Write as _, thread, time::Instant};

use policy::DenyReason;
use report::link::FromProxy;

use crate::{
    harness::{Proxy, Setup},
    origin::Origin,
};

fn rule(origin: &Origin) -> String {
    format!("origin.test:{}/tcp@127.0.0.0/8", origin.port())
}

fn authority(origin: &Origin) -> String {
    format!("origin.test:{}", origin.port())
}

#[test]
fn a_denial_is_reported_without_being_asked_for() {
    let mut proxy = Proxy::start(&["origin.test"]);
    proxy
        .client()
        .request("CONNECT other.test:443 HTTP/1.1\r\n\r\n");
    let report = proxy.pid1.receive();
    let FromProxy::Denied(denied) = report else {
        panic!("{report:?}")
    };
    assert_eq!(
        (denied.reason, denied.count, denied.target.port),
        (DenyReason::NotAllowed, 1, Some(443))
    );
    assert!(denied.first <= denied.last);
}

#[test]
fn reports_add_up_to_what_many_clients_did() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin)]);
    let work = |worker: usize| {
        for round in 0..20 {
            let host = format!("{}.test", (worker + round) % 5);
            let response = proxy
                .client()
                .request(&format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n"));
            assert!(response.head.starts_with("HTTP/1.1 403 "), "{response:?}");
            let mut client = proxy.client().connect(&authority(&origin));
            let bytes = vec![b'x'; worker * 100 + round];
            client.send(&bytes);
            client.end();
            assert_eq!(client.rest(), bytes);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let bytes: usize = (0..8)
        .flat_map(|worker| (0..20).map(move |round| worker * 100 + round))
        .sum();
    let bytes = bytes as u64;
    let sums = proxy.finish();
    assert_eq!(
        sums.allowed,
        [(authority(&origin), [160, 0, bytes, bytes])].into()
    );
    assert_eq!(sums.denied.len(), 5, "{sums:?}");
    assert_eq!(sums.denied.values().sum::<u64>(), 160);
    assert_eq!(origin.connections(), 160);
}

#[test]
fn a_connection_too_many_is_told_so_and_counted() {
    let origin = Origin::echo();
    let setup = Setup {
        max_connections: 2,
        ..Setup::default()
    };
    let proxy = Proxy::with(&[&rule(&origin)], &setup);
    let mut first = proxy.client().connect(&authority(&origin));
    let second = proxy.client().connect(&authority(&origin));
    let response = proxy.client().response();
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 503 egress denied: limit\r\n"),
        "{response:?}"
    );
    assert!(
        response.body.contains(r#""retry_useful":true"#),
        "{response:?}"
    );
    assert_eq!(
        proxy.redirected("198.51.100.1:443".parse().unwrap()).rest(),
        b""
    );
    first.end();
    assert_eq!(first.rest(), b"");
    // The place of the first is free once its end has been noticed, which it was before it was told.
    let mut again = proxy.client();
    again.send(format!("CONNECT {} HTTP/1.1\r\n\r\n", authority(&origin)));
    drop(second);
    let sums = proxy.finish();
    let denials = sums.denials();
    assert!(
        denials.contains(&("198.51.100.1:443", DenyReason::Limit, 1)),
        "{denials:?}"
    );
    assert!(
        denials
            .iter()
            .any(|denial| denial.0 == "-" && denial.1 == DenyReason::Limit),
        "{denials:?}"
    );
}

#[test]
fn a_tunnel_that_is_still_open_at_the_end_is_reported_with_its_bytes() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin)]);
    let mut client = proxy.client().connect(&authority(&origin));
    client.send("hello");
    assert_eq!(client.exactly(5), b"hello");
    let began = Instant::now();
    let sums = proxy.finish();
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert_eq!(sums.allowed, [(authority(&origin), [1, 0, 5, 5])].into());
    assert_eq!(client.rest(), b"");
}

#[test]
fn a_tunnel_that_ends_in_an_error_is_reported_with_its_bytes() {
    let origin = Origin::serve(|mut peer| {
        peer.stream.write_all(b"some").unwrap();
        // Closing with unread bytes resets the connection.
        let mut first = [0];
        peer.stream.peek(&mut first).unwrap();
    });
    let proxy = Proxy::start(&[&rule(&origin)]);
    let mut client = proxy.client().connect(&authority(&origin));
    assert_eq!(client.exactly(4), b"some");
    client.send("unread");
    assert_eq!(client.rest(), b"");
    assert_eq!(
        proxy.finish().allowed,
        [(authority(&origin), [1, 0, 6, 4])].into()
    );
}

#[test]
fn what_a_guest_invents_is_printable_in_reports() {
    let proxy = Proxy::start(&["origin.test"]);
    let response = proxy
        .client()
        .request("CONNECT a\u{202e}b:443 HTTP/1.1\r\n\r\n");
    assert!(response.head.starts_with("HTTP/1.1 400 "), "{response:?}");
    let response = proxy
        .client()
        .request("CONNECT a_%1b[31m:443 HTTP/1.1\r\n\r\n");
    assert!(response.head.starts_with("HTTP/1.1 403 "), "{response:?}");
    let sums = proxy.finish();
    assert_eq!(sums.denied.values().sum::<u64>(), 2, "{sums:?}");
    for (target, _) in sums.denied.keys() {
        assert!(target.chars().all(|c| c.is_ascii_graphic()), "{target:?}");
    }
}
