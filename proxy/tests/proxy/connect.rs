//! Tunnels: who gets one, what must be said in it, and how it ends.

use std::{io::Write as _, net::IpAddr};

use policy::DenyReason;

use crate::{
    harness::{LOOPBACK, Proxy, Setup},
    origin::Origin,
    tls::{self, Identity},
};

const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

fn rule(origin: &Origin, kind: &str) -> String {
    format!("origin.test:{}/{kind}@127.0.0.0/8", origin.port())
}

fn authority(origin: &Origin) -> String {
    format!("origin.test:{}", origin.port())
}

#[test]
fn an_allowed_tunnel_carries_bytes_both_ways_and_counts_them() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client().connect(&authority(&origin));
    client.send("hello");
    assert_eq!(client.exactly(5), b"hello");
    client.end();
    assert_eq!(client.rest(), b"");
    let sums = proxy.finish();
    assert_eq!(sums.allowed, [(authority(&origin), [1, 0, 5, 5])].into());
    assert_eq!(sums.denials(), []);
}

#[test]
fn bytes_sent_together_with_the_connect_are_kept() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client();
    client.send(format!(
        "CONNECT {} HTTP/1.1\r\n\r\nearly",
        authority(&origin)
    ));
    assert!(client.response().head.starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(5), b"early");
}

#[test]
fn a_denied_name_is_told_why_and_the_origin_is_not_reached() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client();
    let response = client.request(&format!(
        "CONNECT other.test:{} HTTP/1.1\r\n\r\n",
        origin.port()
    ));
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: not_allowed\r\n"),
        "{response:?}"
    );
    assert!(
        response
            .head
            .contains("\r\nX-Egress-Denied: not_allowed\r\n"),
        "{response:?}"
    );
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(
        (&body["error"], &body["host"]),
        (&"egress_denied".into(), &"other.test".into())
    );
    assert_eq!(
        (&body["port"], &body["retry_useful"]),
        (&origin.port().into(), &false.into())
    );
    assert_eq!(client.rest(), b"");
    let denied = format!("other.test:{}", origin.port());
    assert_eq!(
        proxy.finish().denials(),
        [(denied.as_str(), DenyReason::NotAllowed, 1)]
    );
    assert_eq!(origin.connections(), 0);
}

#[test]
fn every_refusal_of_a_connect_has_its_reason() {
    let origin = Origin::echo();
    let allow = [
        "origin.test",
        "denied.test",
        "!denied.test",
        "private.test:*",
    ];
    let names: &[(&str, &[IpAddr])] = &[("private.test", &[LOOPBACK, IpAddr::from([10, 0, 0, 1])])];
    let proxy = Proxy::with(
        &allow,
        &Setup {
            names,
            ..Setup::default()
        },
    );
    for (target, reason) in [
        ("origin.test:22".to_owned(), DenyReason::PortNotAllowed),
        ("denied.test:443".to_owned(), DenyReason::DeniedByRule),
        (
            format!("127.0.0.1:{}", origin.port()),
            DenyReason::AddressLiteral,
        ),
        (
            format!("[::ffff:127.0.0.1]:{}", origin.port()),
            DenyReason::AddressLiteral,
        ),
        (
            format!("private.test:{}", origin.port()),
            DenyReason::PrivateAddress,
        ),
        ("0x7f.1:443".to_owned(), DenyReason::Malformed),
        ("origin.test".to_owned(), DenyReason::Malformed),
        ("origin.test:0".to_owned(), DenyReason::Malformed),
        ("origin.test:+443".to_owned(), DenyReason::Malformed),
        ("origin.test:99999".to_owned(), DenyReason::Malformed),
        ("user@origin.test:443".to_owned(), DenyReason::Malformed),
    ] {
        let response = proxy
            .client()
            .request(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        let start = format!("HTTP/1.1 403 egress denied: {reason}\r\n");
        assert!(response.head.starts_with(&start), "{target}: {response:?}");
    }
    let sums = proxy.finish();
    assert_eq!(sums.denied.values().sum::<u64>(), 11, "{sums:?}");
    assert_eq!(sums.allowed, [].into());
    assert_eq!(origin.connections(), 0);
}

#[test]
fn an_allowed_attempt_that_fails_is_a_failure_and_no_denial() {
    let gone = crate::harness::listener().local_addr().unwrap().port();
    let proxy = Proxy::start(&[&format!("origin.test:{gone}@127.0.0.0/8"), "nowhere.test:7"]);
    for (target, status, error) in [
        (format!("origin.test:{gone}"), "502", "connection_refused"),
        ("nowhere.test:7".to_owned(), "502", "dns_error"),
    ] {
        let response = proxy
            .client()
            .request(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        assert!(
            response
                .head
                .starts_with(&format!("HTTP/1.1 {status} egress failed: {error}\r\n")),
            "{response:?}"
        );
        assert!(
            response.head.contains(&format!("; error={error}\r\n")),
            "{response:?}"
        );
        assert!(!response.body.contains("egress_denied"), "{response:?}");
    }
    let sums = proxy.finish();
    assert_eq!(sums.denials(), []);
    assert_eq!(
        sums.allowed.values().collect::<Vec<_>>(),
        [&[1, 1, 0, 0], &[1, 1, 0, 0]]
    );
}

#[test]
fn only_addresses_that_the_guard_lets_through_are_dialled() {
    let origin = Origin::echo();
    let guarded = IpAddr::from([10, 255, 255, 1]);
    let refusing = IpAddr::from([127, 0, 0, 77]);
    let names: &[(&str, &[IpAddr])] = &[("origin.test", &[guarded, refusing, LOOPBACK])];
    let proxy = Proxy::with(
        &[&rule(&origin, "tcp")],
        &Setup {
            names,
            ..Setup::default()
        },
    );
    let began = std::time::Instant::now();
    let mut client = proxy.client().connect(&authority(&origin));
    client.send("x");
    assert_eq!(client.exactly(1), b"x");
    assert!(
        began.elapsed().as_secs() < 9,
        "an address that was not dialled was waited for"
    );
}

#[test]
fn a_tls_tunnel_for_its_own_name_is_left_alone() {
    let identity = Identity::of("origin.test");
    let origin = identity.origin();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    let client = proxy.client().connect(&authority(&origin));
    assert_eq!(identity.greeting("origin.test", client.0), "welcome");
    assert_eq!(proxy.finish().denials(), []);
}

#[test]
fn a_tls_tunnel_for_another_name_ends_before_the_origin_hears_of_it() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    for (hello, alert) in [
        (tls::hello("other.test"), ACCESS_DENIED),
        (tls::nameless_hello(), UNRECOGNIZED_NAME),
    ] {
        let mut client = proxy.client().connect(&authority(&origin));
        client.send(hello);
        assert_eq!(client.rest(), alert);
    }
    let (own, other) = (authority(&origin), format!("other.test:{}", origin.port()));
    assert_eq!(
        proxy.finish().denials(),
        [
            (own.as_str(), DenyReason::NoName, 1),
            (other.as_str(), DenyReason::NameMismatch, 1)
        ]
    );
    assert_eq!(origin.received(), "");
}

#[test]
fn a_hello_in_many_segments_is_read_whole() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    let mut client = proxy.client().connect(&authority(&origin));
    let hello = tls::hello("origin.test");
    for part in hello.chunks(50) {
        client.send(part);
    }
    assert_eq!(client.exactly(hello.len()), hello);
}

#[test]
fn what_a_tunnel_may_carry_is_held_to() {
    let origin = Origin::echo();
    let get = "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n".as_bytes();
    for (kind, first, answer, reason) in [
        (
            "tls",
            get,
            "HTTP/1.1 403 egress denied: not_tls",
            DenyReason::NotTls,
        ),
        ("tls", b"SSH-2.0-x\r\n", "", DenyReason::NotTls),
        ("http", b"SSH-2.0-x\r\n", "", DenyReason::NotHttp),
        (
            "http",
            &tls::hello("origin.test"),
            "\u{15}\u{3}\u{3}",
            DenyReason::NotHttp,
        ),
    ] {
        let proxy = Proxy::start(&[&rule(&origin, kind)]);
        let mut client = proxy.client().connect(&authority(&origin));
        client.send(first);
        let said = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(
            said.starts_with(answer) && said.is_empty() == answer.is_empty(),
            "{kind}: {said}"
        );
        assert_eq!(
            proxy.finish().denials(),
            [(authority(&origin).as_str(), reason, 1)],
            "{kind}"
        );
    }
    assert_eq!(origin.received(), "");
}

#[test]
fn requests_in_an_http_tunnel_are_each_held_to_its_host() {
    let origin = Origin::http();
    let proxy = Proxy::start(&[&rule(&origin, "http")]);
    let mut client = proxy.client().connect(&authority(&origin));
    for path in ["/one", "/two"] {
        let response = client.request(&format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n",
            authority(&origin)
        ));
        assert!(
            response
                .body
                .starts_with(&format!("GET {path} HTTP/1.1\r\n")),
            "{response:?}"
        );
    }
    let response = client.request("GET /three HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: name_mismatch\r\n"),
        "{response:?}"
    );
    let response =
        client.request("GET http://other.test/four HTTP/1.1\r\nHost: origin.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: name_mismatch\r\n"),
        "{response:?}"
    );
    let response = client.request("CONNECT other.test:443 HTTP/1.1\r\nHost: origin.test\r\n\r\n");
    assert!(response.head.starts_with("HTTP/1.1 400 "), "{response:?}");
    let sums = proxy.finish();
    assert_eq!(sums.allowed[&authority(&origin)][0], 1, "{sums:?}");
    assert!(!origin.received().contains("/three") && !origin.received().contains("/four"));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_address_rule_lets_the_address_through_without_a_name() {
    let identity = Identity::of("whoever.test");
    let origin = identity.origin();
    let target = format!("127.0.0.1:{}", origin.port());
    let proxy = Proxy::start(&[&format!("{target}/tls"), "!evil.test"]);
    assert_eq!(
        identity.greeting("whoever.test", proxy.client().connect(&target).0),
        "welcome"
    );
    let mut client = proxy.client().connect(&target);
    client.send(tls::hello("evil.test"));
    assert_eq!(client.rest(), ACCESS_DENIED);
    let sums = proxy.finish();
    assert_eq!(sums.denials().len(), 1, "{sums:?}");
    assert_eq!(sums.denials()[0].1, DenyReason::DeniedByRule);
}

#[test]
fn the_end_of_either_direction_is_passed_on_and_the_other_goes_on() {
    let origin = Origin::serve(|mut peer| {
        while peer.read().is_some() {}
        peer.stream.write_all(b"after your end").unwrap();
    });
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client().connect(&authority(&origin));
    client.send("question");
    client.end();
    assert_eq!(client.rest(), b"after your end");
    assert_eq!(origin.received(), "question");

    let ends_first = Origin::serve(|mut peer| {
        peer.stream.write_all(b"banner").unwrap();
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        while peer.read().is_some() {}
    });
    let proxy = Proxy::start(&[&rule(&ends_first, "tcp")]);
    let mut client = proxy.client().connect(&authority(&ends_first));
    assert_eq!(client.rest(), b"banner");
    client.send("after your end");
    client.end();
    let sums = proxy.finish();
    assert_eq!(sums.allowed[&authority(&ends_first)], [1, 0, 14, 6]);
}

#[test]
fn a_bulk_transfer_arrives_whole_through_a_slow_reader() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tcp")]);
    let mut client = proxy.client().connect(&authority(&origin));
    let sent: Vec<u8> = (0..8_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let mut sending = client.0.try_clone().unwrap();
    let copy = sent.clone();
    let sender = std::thread::spawn(move || {
        sending.write_all(&copy).unwrap();
        sending.shutdown(std::net::Shutdown::Write).unwrap();
    });
    assert!(client.rest() == sent, "what came back is not what was sent");
    sender.join().unwrap();
    assert_eq!(
        proxy.finish().allowed[&authority(&origin)],
        [1, 0, 8_000_000, 8_000_000]
    );
}

#[test]
fn a_connect_can_follow_a_request_on_one_connection() {
    let (http, echo) = (Origin::http(), Origin::echo());
    let allow = [rule(&http, "http"), rule(&echo, "tcp")];
    let proxy = Proxy::start(&[&allow[0], &allow[1]]);
    let mut client = proxy.client();
    let host = authority(&http);
    client.request(&format!(
        "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ));
    let mut client = client.connect(&authority(&echo));
    client.send("x");
    assert_eq!(client.exactly(1), b"x");
}

#[test]
fn an_upstream_proxy_is_dialled_through_and_given_the_name() {
    let upstream = Origin::serve(|mut peer| {
        let request = peer.request().expect("a request");
        let answer = if request.contains("refused") {
            "HTTP/1.1 403 no\r\n\r\n"
        } else {
            "HTTP/1.1 200 ok\r\n\r\nbanner"
        };
        peer.stream.write_all(answer.as_bytes()).unwrap();
        while peer.read().is_some() {}
    });
    let setup = Setup {
        upstream_proxy: Some(upstream.address.to_string()),
        ..Setup::default()
    };
    let proxy = Proxy::with(&["far.test:22", "refused.test:22"], &setup);
    assert_eq!(proxy.client().connect("far.test:22").exactly(6), b"banner");
    assert!(
        upstream
            .received()
            .starts_with("CONNECT far.test:22 HTTP/1.1\r\n"),
        "{}",
        upstream.received()
    );
    let response = proxy
        .client()
        .request("CONNECT refused.test:22 HTTP/1.1\r\n\r\n");
    assert!(
        response.head.starts_with("HTTP/1.1 502 egress failed: "),
        "{response:?}"
    );
    let response = proxy
        .client()
        .request("CONNECT other.test:22 HTTP/1.1\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: not_allowed"),
        "{response:?}"
    );
    assert_eq!(upstream.connections(), 2);
}
