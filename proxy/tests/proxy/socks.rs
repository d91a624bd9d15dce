//! SOCKS5: what it leads to is what `CONNECT` leads to, and every refusal has its number.

use std::{
    io::Write as _,
    net::{IpAddr, Ipv6Addr},
};

use policy::DenyReason;

use crate::{
    harness::{Client, LOOPBACK, Proxy, Setup},
    origin::Origin,
    tls::{self, Identity},
};

const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
const GREETING: [u8; 3] = [5, 1, 0];
const SUCCEEDED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn rule(origin: &Origin, kind: &str) -> String {
    format!("origin.test:{}/{kind}@127.0.0.0/8", origin.port())
}

fn authority(origin: &Origin) -> String {
    format!("origin.test:{}", origin.port())
}

/// A request to connect to a name.
fn to_name(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    let head = [5, 1, 0, 3, length];
    [&head, name.as_bytes(), &port.to_be_bytes()].concat()
}

/// A request to connect to an address.
fn to_address(address: IpAddr, port: u16) -> Vec<u8> {
    let (kind, octets) = match address {
        IpAddr::V4(address) => (1, address.octets().to_vec()),
        IpAddr::V6(address) => (4, address.octets().to_vec()),
    };
    [&[5, 1, 0, kind], &octets[..], &port.to_be_bytes()].concat()
}

/// Greets, asks, and gives back the reply.
fn asked(client: &mut Client, request: &[u8]) -> Vec<u8> {
    client.send(GREETING);
    assert_eq!(client.exactly(2), [5, 0]);
    client.send(request);
    client.exactly(10)
}

/// Opens a tunnel.
fn connected(proxy: &Proxy, request: &[u8]) -> Client {
    let mut client = proxy.client();
    assert_eq!(asked(&mut client, request), SUCCEEDED);
    client
}

#[test]
fn a_tunnel_to_an_allowed_name_carries_bytes_both_ways_and_counts_them() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = connected(&proxy, &to_name("Origin.TEST.", origin.port()));
    client.send("hello");
    assert_eq!(client.exactly(5), b"hello");
    client.end();
    assert_eq!(client.rest(), b"");
    let sums = proxy.finish();
    assert_eq!(sums.allowed, [(authority(&origin), [1, 0, 5, 5])].into());
    assert_eq!(sums.denials(), []);
}

#[test]
fn a_client_that_does_not_wait_for_answers_loses_nothing() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client();
    let all = [
        &GREETING,
        &to_name("origin.test", origin.port())[..],
        b"early",
    ];
    client.send(all.concat());
    let answer = [&[5, 0], &SUCCEEDED[..], b"early"].concat();
    assert_eq!(client.exactly(answer.len()), answer);
}

#[test]
fn a_client_may_send_byte_by_byte() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client();
    for byte in GREETING {
        client.send([byte]);
    }
    assert_eq!(client.exactly(2), [5, 0]);
    for byte in to_name("origin.test", origin.port()) {
        client.send([byte]);
    }
    assert_eq!(client.exactly(10), SUCCEEDED);
}

#[test]
fn every_refusal_has_its_reply_and_its_reason_and_the_origin_is_not_reached() {
    let origin = Origin::echo();
    let allow = [
        "origin.test",
        "denied.test",
        "!denied.test",
        "private.test:*",
    ];
    let names: &[(&str, &[IpAddr])] = &[("private.test", &[LOOPBACK])];
    let setup = Setup {
        names,
        ..Setup::default()
    };
    let proxy = Proxy::with(&allow, &setup);
    let port = origin.port();
    let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1]);
    let cases = [
        (to_name("other.test", port), DenyReason::NotAllowed),
        (to_name("origin.test", port), DenyReason::PortNotAllowed),
        (to_name("denied.test", 443), DenyReason::DeniedByRule),
        (to_name("private.test", port), DenyReason::PrivateAddress),
        (to_address(LOOPBACK, port), DenyReason::AddressLiteral),
        (to_address(mapped, port), DenyReason::AddressLiteral),
        (to_name("127.0.0.1", port), DenyReason::AddressLiteral),
        (to_name("0x7f.1", port), DenyReason::Malformed),
        (to_name("origin.test", 0), DenyReason::Malformed),
    ];
    for (request, reason) in &cases {
        let mut client = proxy.client();
        let reply = asked(&mut client, request);
        assert_eq!(reply[..2], [5, 2], "{reason}");
        assert_eq!(client.rest(), b"", "{reason}");
    }
    let sums = proxy.finish();
    for (_, reason) in cases {
        assert!(
            sums.denied.keys().any(|(_, counted)| *counted == reason),
            "{reason}: {sums:?}"
        );
    }
    assert_eq!(sums.denied.values().sum::<u64>(), 9, "{sums:?}");
    assert_eq!(sums.allowed, [].into());
    assert_eq!(origin.connections(), 0);
}

#[test]
fn an_allowed_attempt_that_fails_is_a_failure_and_no_denial() {
    let gone = crate::harness::listener().local_addr().unwrap().port();
    let proxy = Proxy::start(&[&format!("origin.test:{gone}@127.0.0.0/8"), "nowhere.test:7"]);
    for (request, reply) in [
        (to_name("origin.test", gone), 5),
        (to_name("nowhere.test", 7), 4),
    ] {
        let mut client = proxy.client();
        assert_eq!(asked(&mut client, &request)[..2], [5, reply]);
        assert_eq!(client.rest(), b"");
    }
    let sums = proxy.finish();
    assert_eq!(sums.denials(), []);
    assert_eq!(
        sums.allowed.values().collect::<Vec<_>>(),
        [&[1, 1, 0, 0], &[1, 1, 0, 0]]
    );
}

#[test]
fn an_address_that_a_rule_names_is_reached_in_either_family() {
    let origin = Origin::echo();
    let v4 = format!("127.0.0.1:{}/tcp", origin.port());
    let listener = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = Proxy::start(&[&v4, &format!("[::1]:{port}/tcp")]);
    let mut client = connected(&proxy, &to_address(LOOPBACK, origin.port()));
    client.send("x");
    assert_eq!(client.exactly(1), b"x");
    let _client = connected(&proxy, &to_address(Ipv6Addr::LOCALHOST.into(), port));
    listener.accept().unwrap();
    let targets: Vec<_> = proxy.finish().allowed.into_keys().collect();
    assert_eq!(
        targets,
        [
            format!("127.0.0.1:{}", origin.port()),
            format!("::1:{port}")
        ]
    );
}

#[test]
fn a_tls_stream_is_held_to_the_name_that_was_asked_for() {
    let identity = Identity::of("origin.test");
    let origin = identity.origin();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    let request = to_name("origin.test", origin.port());
    let client = connected(&proxy, &request);
    assert_eq!(identity.greeting("origin.test", client.0), "welcome");
    let mut client = connected(&proxy, &request);
    client.send(tls::hello("other.test"));
    assert_eq!(client.rest(), ACCESS_DENIED);
    let mut client = connected(&proxy, &request);
    client.send("SSH-2.0-x\r\n");
    assert_eq!(client.rest(), b"");
    let (own, other) = (authority(&origin), format!("other.test:{}", origin.port()));
    assert_eq!(
        proxy.finish().denials(),
        [
            (own.as_str(), DenyReason::NotTls, 1),
            (other.as_str(), DenyReason::NameMismatch, 1)
        ]
    );
}

#[test]
fn requests_are_held_to_the_host_that_was_asked_for() {
    let origin = Origin::http();
    let proxy = Proxy::start(&[&rule(&origin, "http")]);
    let mut client = connected(&proxy, &to_name("origin.test", origin.port()));
    let host = authority(&origin);
    let response = client.request(&format!("GET /one HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(response.body.starts_with("GET /one "), "{response:?}");
    let response = client.request("GET /two HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: name_mismatch\r\n"),
        "{response:?}"
    );
    assert!(!origin.received().contains("/two"));
    let other = format!("other.test:{}", origin.port());
    assert_eq!(
        proxy.finish().denials(),
        [(other.as_str(), DenyReason::NameMismatch, 1)]
    );
}

#[test]
fn a_client_that_resolved_a_name_itself_is_judged_by_the_name_on_its_stream() {
    let identity = Identity::of("origin.test");
    let origin = identity.origin();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    // Nobody is there: what is dialled is the name's own address.
    let request = to_address([192, 0, 2, 9].into(), origin.port());
    let client = connected(&proxy, &request);
    assert_eq!(identity.greeting("origin.test", client.0), "welcome");
    let mut client = connected(&proxy, &request);
    client.send(tls::hello("other.test"));
    assert_eq!(client.rest(), ACCESS_DENIED);
    let mut client = connected(&proxy, &request);
    client.send("SSH-2.0-x\r\n");
    assert_eq!(client.rest(), b"");
    let port = origin.port();
    let (other, unnamed) = (format!("other.test:{port}"), format!("192.0.2.9:{port}"));
    let sums = proxy.finish();
    assert_eq!(
        sums.denials(),
        [
            (unnamed.as_str(), DenyReason::NoName, 1),
            (other.as_str(), DenyReason::NotAllowed, 1)
        ]
    );
    let reached: Vec<_> = sums.allowed.into_keys().collect();
    assert_eq!(reached, [authority(&origin)]);
}

#[test]
fn requests_of_a_client_that_resolved_a_name_itself_are_judged_by_their_host() {
    let origin = Origin::http();
    let proxy = Proxy::start(&[&rule(&origin, "http")]);
    let mut client = connected(&proxy, &to_address([192, 0, 2, 9].into(), origin.port()));
    let host = authority(&origin);
    let response = client.request(&format!("GET /one HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert!(response.body.starts_with("GET /one "), "{response:?}");
    let other = format!("other.test:{}", origin.port());
    let response = client.request(&format!("GET /two HTTP/1.1\r\nHost: {other}\r\n\r\n"));
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: not_allowed\r\n"),
        "{response:?}"
    );
    assert!(!origin.received().contains("/two"));
    assert_eq!(
        proxy.finish().denials(),
        [(other.as_str(), DenyReason::NotAllowed, 1)]
    );
}

#[test]
fn the_guests_window_is_there_too() {
    let proxy = Proxy::start(&["origin.test"]);
    let mut client = connected(&proxy, &to_name("egress.sandbox", 80));
    let response = client.request("GET / HTTP/1.1\r\nHost: egress.sandbox\r\n\r\n");
    assert!(response.head.starts_with("HTTP/1.1 200 "), "{response:?}");
    assert_eq!(proxy.finish().denials(), []);
}

#[test]
fn what_is_not_served_is_answered_and_counted() {
    let proxy = Proxy::start(&["origin.test"]);
    for (sent, answer) in [
        // UDP ASSOCIATE, BIND, an address type that is none, a bad greeting, SOCKS4a.
        (
            &b"\x05\x01\0\x05\x03\0\x01\0\0\0\0\0\0"[..],
            &[5, 0, 5, 7][..],
        ),
        (
            b"\x05\x01\0\x05\x02\0\x03\x0bother.test.\0\x15",
            &[5, 0, 5, 7],
        ),
        (b"\x05\x01\0\x05\x01\0\x02", &[5, 0, 5, 8]),
        (b"\x05\x01\x02", &[5, 0xff]),
        (b"\x04\x01\x01\xbb\0\0\0\x01\0origin.test\0", &[0, 91]),
    ] {
        let mut client = proxy.client();
        client.send(sent);
        assert!(client.rest().starts_with(answer), "{sent:?}");
    }
    let sums = proxy.finish();
    assert_eq!(
        sums.denials(),
        [
            ("-", DenyReason::Malformed, 4),
            ("other.test:21", DenyReason::Malformed, 1)
        ]
    );
    assert_eq!(sums.allowed, [].into());
}

#[test]
fn an_upstream_proxy_is_given_the_name() {
    let upstream = Origin::serve(|mut peer| {
        peer.request().expect("a request");
        let answer = b"HTTP/1.1 200 ok\r\n\r\nbanner";
        peer.stream.write_all(answer).unwrap();
        while peer.read().is_some() {}
    });
    let setup = Setup {
        upstream_proxy: Some(upstream.address.to_string()),
        ..Setup::default()
    };
    let proxy = Proxy::with(&["far.test:22"], &setup);
    let mut client = connected(&proxy, &to_name("far.test", 22));
    assert_eq!(client.exactly(6), b"banner");
    let received = upstream.received();
    assert!(
        received.starts_with("CONNECT far.test:22 HTTP/1.1\r\n"),
        "{received}"
    );
}
