//! Requests with an absolute target: each is decided, rewritten and forwarded by itself.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
};

use policy::DenyReason;

use crate::{
    harness::{Client, Proxy},
    origin::Origin,
};

fn start(origin: &Origin) -> Proxy {
    Proxy::start(&[&format!("origin.test:{}/http@127.0.0.0/8", origin.port())])
}

fn host(origin: &Origin) -> String {
    format!("origin.test:{}", origin.port())
}

fn get(origin: &Origin, path: &str, fields: &str) -> String {
    let host = host(origin);
    format!("GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
}

fn post(origin: &Origin, fields_and_body: &str) -> String {
    let host = host(origin);
    format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{fields_and_body}")
}

#[test]
fn every_request_on_a_connection_is_decided_anew() {
    let (origin, denied) = (Origin::http(), Origin::http());
    let proxy = start(&origin);
    let mut client = proxy.client();
    for round in ["/1", "/2"] {
        let response = client.request(&get(&origin, round, ""));
        assert!(
            response
                .body
                .starts_with(&format!("GET {round} HTTP/1.1\r\n")),
            "{response:?}"
        );
        let host = format!("other.test:{}", denied.port());
        let response = client.request(&format!(
            "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
        ));
        assert!(
            response
                .head
                .starts_with("HTTP/1.1 403 egress denied: not_allowed\r\n"),
            "{response:?}"
        );
        assert!(!response.head.contains("Connection: close"), "{response:?}");
    }
    let sums = proxy.finish();
    let other = format!("other.test:{}", denied.port());
    assert_eq!(
        sums.denials(),
        [(other.as_str(), DenyReason::NotAllowed, 2)]
    );
    let [connections, failures, up, down] = sums.allowed[&host(&origin)];
    assert_eq!((connections, failures), (2, 0));
    assert_eq!(up, origin.received().len() as u64);
    assert!(down > up, "{sums:?}");
    assert_eq!((origin.connections(), denied.connections()), (1, 0));
}

#[test]
fn a_request_goes_out_as_to_an_origin_and_without_this_hops_fields() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let fields = "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nConnection: X-A\r\nX-A: 1\r\nX-B: 2\r\n";
    let response = proxy.client().request(&get(&origin, "/a?b=c", fields));
    let lower = response.body.to_ascii_lowercase();
    assert_eq!(
        lower,
        format!(
            "get /a?b=c http/1.1\r\nhost: {}\r\nx-b: 2\r\n\r\n",
            host(&origin)
        )
    );
}

#[test]
fn host_must_repeat_the_target() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let target = host(&origin);
    for (host, start) in [
        (
            "Host: other.test\r\n",
            "HTTP/1.1 403 egress denied: name_mismatch\r\n",
        ),
        (
            "Host: origin.test\r\n",
            "HTTP/1.1 403 egress denied: name_mismatch\r\n",
        ),
        (
            "Host: origin.test:x\r\n",
            "HTTP/1.1 403 egress denied: malformed\r\n",
        ),
        ("Host: \r\n", "HTTP/1.1 403 egress denied: malformed\r\n"),
        ("", "HTTP/1.1 400 egress denied: malformed\r\n"),
    ] {
        let response = proxy
            .client()
            .request(&format!("GET http://{target}/ HTTP/1.1\r\n{host}\r\n"));
        assert!(response.head.starts_with(start), "{host:?}: {response:?}");
    }
    let spelled_otherwise = format!(
        "GET http://ORIGIN.test.:{0}/ HTTP/1.1\r\nHost: Origin.TEST:{0}\r\n\r\n",
        origin.port()
    );
    assert!(
        proxy
            .client()
            .request(&spelled_otherwise)
            .head
            .starts_with("HTTP/1.1 200 ")
    );
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_ambiguous_request_is_answered_400_and_never_forwarded() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let requests = [
        post(
            &origin,
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        post(
            &origin,
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        ),
        post(
            &origin,
            "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        ),
        post(
            &origin,
            "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        ),
        post(
            &origin,
            "Transfer-Encoding: identity\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ),
        get(&origin, "/", "X: a\r\n b\r\n"),
        get(&origin, "/", "X : a\r\n"),
        get(&origin, "/", "X: a\0\r\n"),
        get(&origin, "/", "Host: other.test\r\n"),
        get(&origin, "/", &"X: y\r\n".repeat(100)),
        get(&origin, "/", &format!("X: {}\r\n", "y".repeat(64 * 1024))),
        get(&origin, "/", "").replace("\r\n", "\n"),
        get(&origin, "/", "").replace("HTTP/1.1", "HTTP/1.2"),
    ];
    for request in &requests {
        let mut client = proxy.client();
        let response = client.request(request);
        assert!(
            response
                .head
                .starts_with("HTTP/1.1 400 egress denied: malformed\r\n"),
            "{request:?}: {response:?}"
        );
        assert!(
            response.head.contains("\r\nConnection: close\r\n"),
            "{request:?}: {response:?}"
        );
        assert_eq!(client.rest(), b"", "{request:?}");
    }
    let sums = proxy.finish();
    assert_eq!(
        sums.denied.values().sum::<u64>(),
        requests.len() as u64,
        "{sums:?}"
    );
    assert_eq!(origin.connections(), 0);
}

#[test]
fn what_is_no_request_to_forward_is_told_what_to_do() {
    let origin = Origin::http();
    let proxy = start(&origin);
    for (request, words) in [
        (
            "GET https://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n",
            "use CONNECT",
        ),
        (
            "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n",
            "this is a proxy",
        ),
        (
            "GET http://origin.test/#x HTTP/1.1\r\nHost: origin.test\r\n\r\n",
            "this is a proxy",
        ),
    ] {
        let response = proxy.client().request(request);
        assert!(
            response.head.starts_with("HTTP/1.1 400 "),
            "{request:?}: {response:?}"
        );
        assert!(response.body.contains(words), "{request:?}: {response:?}");
    }
    let mut client = proxy.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let told = client.rest();
    assert!(told.starts_with(&[0, 0, 0, 4]), "{told:?}");
    assert!(String::from_utf8_lossy(&told).contains("HTTP/2 without TLS is not passed on"));
    let response = proxy
        .client()
        .request("GET http://user@origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: malformed"),
        "{response:?}"
    );
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_request_to_a_port_that_must_be_tls_is_not_forwarded() {
    let origin = Origin::http();
    let proxy = Proxy::start(&[&format!("origin.test:{}/tls@127.0.0.0/8", origin.port())]);
    let response = proxy.client().request(&get(&origin, "/", ""));
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: not_tls\r\n"),
        "{response:?}"
    );
    assert_eq!(origin.connections(), 0);
}

#[test]
fn bodies_are_carried_in_either_framing_and_connections_kept() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let mut client = proxy.client();
    let response = client.request(&post(&origin, "Content-Length: 11\r\n\r\nhello world"));
    assert!(
        response.body.ends_with("\r\n\r\nhello world"),
        "{response:?}"
    );
    let chunked =
        "Transfer-Encoding: chunked\r\n\r\n6;ext=1\r\nhello \r\n5\r\nworld\r\n0\r\nT: u\r\n\r\n";
    let response = client.request(&post(&origin, chunked));
    assert!(
        response
            .body
            .to_ascii_lowercase()
            .contains("\r\ntransfer-encoding: chunked\r\n"),
        "{response:?}"
    );
    assert!(
        response.body.ends_with("5\r\nworld\r\n0\r\n\r\n"),
        "{response:?}"
    );
    assert!(!response.body.contains("ext=1"), "{response:?}");
    let response = client.request(&get(&origin, "/after", ""));
    assert!(response.body.starts_with("GET /after "), "{response:?}");
    let get_with_body = format!(
        "{}5\r\nhello\r\n0\r\n\r\n",
        get(&origin, "/", "Transfer-Encoding: chunked\r\n")
    );
    let response = client.request(&get_with_body);
    assert!(
        response.body.ends_with("5\r\nhello\r\n0\r\n\r\n"),
        "{response:?}"
    );
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_large_body_streams_up_and_down() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let body = "0123456789abcdef".repeat(100_000);
    let request = post(
        &origin,
        &format!("Content-Length: {}\r\n\r\n{body}", body.len()),
    );
    let response = proxy.client().request(&request);
    assert!(response.body.ends_with(&body), "{}", response.head);
}

#[test]
fn chunks_that_are_none_end_the_request() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let mut client = proxy.client();
    let response = client.request(&post(
        &origin,
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n",
    ));
    assert!(response.head.starts_with("HTTP/1.1 400 "), "{response:?}");
    assert_eq!(client.rest(), b"");
    let sums = proxy.finish();
    assert_eq!(
        sums.denials(),
        [(host(&origin).as_str(), DenyReason::Malformed, 1)]
    );
}

#[test]
fn a_denied_request_with_a_body_ends_the_connection() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let mut client = proxy.client();
    let smuggled = get(&origin, "/smuggled", "");
    let request = format!(
        "POST http://other.test/ HTTP/1.1\r\nHost: other.test\r\nContent-Length: {}\r\n\r\n{smuggled}",
        smuggled.len()
    );
    let response = client.request(&request);
    assert!(
        response.head.contains("\r\nConnection: close\r\n"),
        "{response:?}"
    );
    assert_eq!(client.rest(), b"");
    assert_eq!(origin.connections(), 0);
}

#[test]
fn responses_keep_their_meaning_in_every_framing() {
    for (sent, client_sees) in [
        (
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            "HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 Fine\r\ncontent-length: 2\r\n\r\nok",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "HTTP/1.0 200 OK\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        (
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        ),
    ] {
        let origin = Origin::fixed(sent);
        let proxy = start(&origin);
        let mut client = proxy.client();
        client.send(get(&origin, "/", ""));
        client.end();
        assert_eq!(
            String::from_utf8(client.rest()).unwrap(),
            client_sees,
            "{sent:?}"
        );
    }
}

#[test]
fn an_old_client_gets_a_body_that_ends_with_the_connection() {
    let origin =
        Origin::fixed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", host(&origin)));
    assert_eq!(
        String::from_utf8(client.rest()).unwrap(),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"
    );
    assert!(
        origin.received().contains(&host(&origin)),
        "{}",
        origin.received()
    );
}

#[test]
fn a_head_request_gets_no_body_even_when_it_is_denied() {
    let origin = Origin::fixed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(get(&origin, "/", "").replacen("GET", "HEAD", 1));
    client.send("HEAD http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n");
    client.end();
    let seen = String::from_utf8(client.rest()).unwrap();
    let (first, second) = seen.split_once("\r\n\r\n").unwrap();
    assert_eq!(first, "HTTP/1.1 200 OK\r\ncontent-length: 5");
    assert!(
        second.starts_with("HTTP/1.1 403 ") && second.ends_with("\r\n\r\n"),
        "{seen:?}"
    );
}

#[test]
fn a_response_that_is_cut_short_never_looks_whole() {
    let origin =
        Origin::fixed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(get(&origin, "/", ""));
    let seen = String::from_utf8(client.rest()).unwrap();
    assert!(seen.ends_with("5\r\nhello\r\n"), "{seen:?}");
}

#[test]
fn an_old_client_is_told_of_a_cut_by_a_reset() {
    let origin =
        Origin::fixed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", host(&origin)));
    // Its response ends with the connection, so an orderly end would mean that this is all.
    let end = client.0.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn an_origin_that_gives_no_response_is_a_failure() {
    for (origin, error) in [
        (Origin::fixed(""), "http_response_incomplete"),
        (Origin::fixed("SSH-2.0-x\r\n\r\n"), "http_protocol_error"),
        (
            Origin::fixed(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            ),
            "http_protocol_error",
        ),
    ] {
        let proxy = start(&origin);
        let response = proxy
            .client()
            .request(&post(&origin, "Content-Length: 1\r\n\r\nx"));
        assert!(
            response
                .head
                .starts_with(&format!("HTTP/1.1 502 egress failed: {error}\r\n")),
            "{response:?}"
        );
        let sums = proxy.finish();
        assert_eq!(sums.allowed[&host(&origin)][..2], [1, 1], "{sums:?}");
        assert_eq!(sums.denials(), []);
    }
}

#[test]
fn a_kept_connection_that_the_origin_closed_is_dialled_anew() {
    let origin = Origin::fixed("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let proxy = start(&origin);
    let mut client = proxy.client();
    for round in 0..5 {
        let response = client.request(&get(&origin, "/", ""));
        assert_eq!(response.body, "ok", "round {round}");
    }
    assert_eq!(origin.connections(), 5);
    assert_eq!(proxy.finish().allowed[&host(&origin)][..2], [5, 0]);
}

#[test]
fn pipelined_requests_are_answered_in_turn() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let mut client = proxy.client();
    client.send(
        [
            get(&origin, "/1", ""),
            get(&origin, "/2", ""),
            get(&origin, "/3", ""),
        ]
        .concat(),
    );
    for path in ["/1", "/2", "/3"] {
        assert!(
            client.response().body.starts_with(&format!("GET {path} ")),
            "{path}"
        );
    }
}

#[test]
fn an_upgrade_becomes_a_raw_relay() {
    let origin = Origin::serve(|mut peer| {
        let request = peer.request().expect("a request").to_ascii_lowercase();
        assert!(
            request.contains("connection: upgrade\r\n")
                && request.contains("upgrade: websocket\r\n"),
            "{request}"
        );
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst";
        peer.stream.write_all(answer.as_bytes()).unwrap();
        while let Some(bytes) = peer.read() {
            peer.stream.write_all(&bytes).unwrap();
        }
        peer.stream.shutdown(Shutdown::Both).unwrap();
    });
    let proxy = start(&origin);
    let mut client: Client = proxy.client();
    let response = client.request(&get(
        &origin,
        "/",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    ));
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n"),
        "{response:?}"
    );
    assert_eq!(client.exactly(5), b"first");
    client.send("\u{1}\u{2}raw");
    assert_eq!(client.exactly(5), b"\x01\x02raw");
    client.end();
    assert_eq!(client.rest(), b"");
    let sums = proxy.finish();
    assert_eq!(
        sums.allowed[&host(&origin)][2],
        origin.received().len() as u64
    );
}

#[test]
fn an_upgrade_to_http_2_is_not_passed_on() {
    let origin = Origin::http();
    let proxy = start(&origin);
    let fields =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n";
    let response = proxy.client().request(&get(&origin, "/", fields));
    assert!(response.head.starts_with("HTTP/1.1 200 "), "{response:?}");
    assert!(
        !response.body.to_ascii_lowercase().contains("upgrade"),
        "{response:?}"
    );
    assert!(
        !response.body.to_ascii_lowercase().contains("http2"),
        "{response:?}"
    );
}

#[test]
fn server_sent_events_arrive_as_they_are_sent() {
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(0);
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::serve(move |mut peer| {
        peer.request().expect("a request");
        peer.stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            .unwrap();
        wait.lock().unwrap().recv().unwrap();
        peer.stream.write_all(b"data: 2\n\n").unwrap();
    });
    let proxy = start(&origin);
    let mut client = proxy.client();
    let response = client.request(&get(&origin, "/", ""));
    assert!(
        response
            .head
            .contains("content-type: text/event-stream\r\n"),
        "{response:?}"
    );
    assert_eq!(client.exactly(14), b"9\r\ndata: 1\n\n\r\n");
    go.send(()).unwrap();
    assert_eq!(client.exactly(19), b"9\r\ndata: 2\n\n\r\n0\r\n\r\n");
}
