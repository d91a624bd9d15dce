//! Connections that nftables redirected: decided by what they say, not by where they went.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
};

use policy::DenyReason;

use crate::{
    harness::{LOOPBACK, Proxy, Setup},
    origin::Origin,
    tls::{self, Identity},
};

/// Where a guest believes that it goes; nothing is ever dialled there.
fn elsewhere(port: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], port))
}

fn rule(origin: &Origin, kind: &str) -> String {
    format!("origin.test:{}/{kind}@127.0.0.0/8", origin.port())
}

#[test]
fn a_tls_stream_goes_to_the_name_it_asks_for_and_not_to_the_address_it_dialled() {
    let identity = Identity::of("origin.test");
    let origin = identity.origin();
    let proxy = Proxy::start(&[&rule(&origin, "tls")]);
    let client = proxy.redirected(elsewhere(origin.port()));
    assert_eq!(identity.greeting("origin.test", client.0), "welcome");
    let sums = proxy.finish();
    assert_eq!(
        sums.allowed[&format!("origin.test:{}", origin.port())][..2],
        [1, 0],
        "{sums:?}"
    );
}

#[test]
fn a_tls_stream_that_is_refused_gets_an_alert_and_is_counted_by_its_name() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin, "tls"), "!evil.test"]);
    let (port, dialled) = (origin.port(), elsewhere(origin.port()));
    for (hello, alert) in [
        (tls::hello("other.test"), 49),
        (tls::hello("evil.test"), 49),
        (tls::nameless_hello(), 112),
    ] {
        let mut client = proxy.redirected(dialled);
        client.send(hello);
        assert_eq!(client.rest(), [21, 3, 3, 0, 2, 2, alert]);
    }
    let mut client = proxy.redirected(elsewhere(port + 1));
    client.send(tls::hello("origin.test"));
    client.rest();
    let sums = proxy.finish();
    let expected = [
        (format!("198.51.100.1:{port}"), DenyReason::NoName),
        (format!("evil.test:{port}"), DenyReason::DeniedByRule),
        (
            format!("origin.test:{}", port + 1),
            DenyReason::PortNotAllowed,
        ),
        (format!("other.test:{port}"), DenyReason::NotAllowed),
    ];
    assert_eq!(sums.denied, expected.map(|key| (key, 1)).into());
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_tls_stream_to_a_name_that_fails_is_a_failure_and_reset() {
    let gone = crate::harness::listener().local_addr().unwrap().port();
    let proxy = Proxy::start(&[&format!("origin.test:{gone}/tls@127.0.0.0/8")]);
    let mut client = proxy.redirected(elsewhere(gone));
    client.send(tls::hello("origin.test"));
    // An alert would be taken for a fault in TLS.
    let end = client.0.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let sums = proxy.finish();
    assert_eq!(
        (
            sums.denials(),
            &sums.allowed[&format!("origin.test:{gone}")]
        ),
        (vec![], &[1, 1, 0, 0])
    );
}

#[test]
fn requests_are_each_decided_by_their_host() {
    let origin = Origin::http();
    let proxy = Proxy::start(&[&rule(&origin, "http")]);
    let port = origin.port();
    let mut client = proxy.redirected(elsewhere(port));
    for (host, start) in [
        (format!("origin.test:{port}"), "HTTP/1.1 200 OK"),
        (
            format!("other.test:{port}"),
            "HTTP/1.1 403 egress denied: not_allowed",
        ),
        ("origin.test".to_owned(), "HTTP/1.1 200 OK"),
        (
            "origin.test:1".to_owned(),
            "HTTP/1.1 403 egress denied: name_mismatch",
        ),
        (
            "198.51.100.1".to_owned(),
            "HTTP/1.1 403 egress denied: address_literal",
        ),
        (
            "198.51.100.2".to_owned(),
            "HTTP/1.1 403 egress denied: name_mismatch",
        ),
    ] {
        let response = client.request(&format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(response.head.starts_with(start), "{host}: {response:?}");
    }
    let mut client = proxy.redirected(elsewhere(port));
    let response = client.request("GET / HTTP/1.0\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: no_name"),
        "{response:?}"
    );
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_stream_that_names_nothing_passes_only_where_an_address_rule_lets_any_pass() {
    let origin = Origin::echo();
    let ssh = "SSH-2.0-client and a comment\r\n";
    let target = origin.address.to_string();
    for (allow, dialled, denied) in [
        (format!("{target}/tcp"), origin.address, None),
        (
            format!("{target}/tls"),
            origin.address,
            Some(DenyReason::NotTls),
        ),
        (
            format!("{target}/http"),
            origin.address,
            Some(DenyReason::NotHttp),
        ),
        (
            rule(&origin, "tcp"),
            origin.address,
            Some(DenyReason::NoName),
        ),
        (
            format!("{target}/tcp"),
            elsewhere(origin.port()),
            Some(DenyReason::NoName),
        ),
    ] {
        let proxy = Proxy::start(&[&allow]);
        let mut client = proxy.redirected(dialled);
        client.send(ssh);
        if denied.is_none() {
            assert_eq!(client.exactly(ssh.len()), ssh.as_bytes(), "{allow}");
            client.end();
        }
        assert_eq!(client.rest(), b"", "{allow}");
        let sums = proxy.finish();
        let reasons: Vec<_> = sums.denials().iter().map(|denial| denial.1).collect();
        assert_eq!(reasons, Vec::from_iter(denied), "{allow}");
    }
    assert_eq!(origin.received(), ssh);
}

#[test]
fn a_server_may_speak_first_where_an_address_rule_lets_any_stream_pass() {
    let origin = Origin::serve(|mut peer| {
        peer.stream.write_all(b"220 ready\r\n").unwrap();
        while peer.read().is_some() {}
    });
    let proxy = Proxy::start(&[&format!("{}/tcp", origin.address)]);
    let mut client = proxy.redirected(origin.address);
    assert_eq!(client.exactly(11), b"220 ready\r\n");
}

#[test]
fn an_address_rule_stands_in_for_a_name_that_is_not_listed_and_never_for_one_that_is_denied() {
    let origin = Origin::http();
    let target = origin.address.to_string();
    let proxy = Proxy::start(&[&format!("{target}/http"), "!evil.test"]);
    let mut client = proxy.redirected(origin.address);
    let response = client.request("GET / HTTP/1.1\r\nHost: whoever.test\r\n\r\n");
    assert!(response.body.contains("whoever.test"), "{response:?}");
    let response = client.request("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: denied_by_rule"),
        "{response:?}"
    );
    let sums = proxy.finish();
    assert_eq!(sums.allowed[&target][0], 1, "{sums:?}");
    assert_eq!(sums.denials().len(), 1, "{sums:?}");
}

#[test]
fn a_connection_that_nobody_redirected_is_refused_and_leads_nowhere() {
    let proxy = Proxy::start(&["127.0.0.0/8:*/tcp"]);
    let mut client = proxy.direct();
    client.send("GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n");
    assert_eq!(client.rest(), b"");
    let sums = proxy.finish();
    let reasons: Vec<_> = sums
        .denials()
        .iter()
        .map(|denial| (denial.1, denial.2))
        .collect();
    assert_eq!(reasons, [(DenyReason::AddressLiteral, 1)]);
    assert_eq!(sums.allowed, [].into());
}

#[test]
fn a_client_that_leaves_without_a_word_was_an_attempt_all_the_same() {
    let proxy = Proxy::with(&["origin.test"], &Setup::default());
    let mut client = proxy.redirected(elsewhere(443));
    client.end();
    assert_eq!(client.rest(), b"");
    assert_eq!(
        proxy.finish().denials(),
        [("198.51.100.1:443", DenyReason::NoName, 1)]
    );
}

#[test]
fn an_encrypted_hello_is_judged_by_its_outer_name_and_counted_where_it_is_let_through() {
    let origin = Origin::echo();
    let (port, rule) = (origin.port(), "tls@127.0.0.0/8");
    let setup = Setup {
        names: &[("front.example", &[LOOPBACK]), ("other.test", &[LOOPBACK])],
        ..Setup::default()
    };
    let rules = ["front.example", "other.test"].map(|name| format!("{name}:{port}/{rule}"));
    let proxy = Proxy::with(&rules.each_ref().map(String::as_str), &setup);
    // By itself, in a tunnel, and in a tunnel for another name than the outer one.
    let mut redirected = proxy.redirected(elsewhere(port));
    let mut tunnel = proxy.client().connect(&format!("front.example:{port}"));
    for client in [&mut redirected, &mut tunnel] {
        client.send(tls::ECH_HELLO);
        assert_eq!(client.exactly(tls::ECH_HELLO.len()), tls::ECH_HELLO);
    }
    let mut other = proxy.client().connect(&format!("other.test:{port}"));
    other.send(tls::ECH_HELLO);
    assert_eq!(other.rest(), [21, 3, 3, 0, 2, 2, 49]);
    let mut plain = proxy.redirected(elsewhere(port));
    plain.send(tls::hello("other.test"));
    plain.exactly(1);
    let sums = proxy.finish();
    assert_eq!(sums.ech_offered, 2, "{sums:?}");
    assert_eq!(
        sums.denials(),
        [(
            format!("front.example:{port}").as_str(),
            DenyReason::NameMismatch,
            1
        )]
    );
}
