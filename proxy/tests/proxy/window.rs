//! The guest's own window, by every way that a client may come.

use std::net::SocketAddr;

use policy::DenyReason;

use crate::{
    harness::{Proxy, Response},
    origin::Origin,
};

fn get(path: &str) -> String {
    format!("GET http://egress.sandbox{path} HTTP/1.1\r\nHost: egress.sandbox\r\n\r\n")
}

fn assert_is_index(response: &Response) {
    assert!(
        response.head.starts_with("HTTP/1.1 200 OK\r\n"),
        "{response:?}"
    );
    assert!(response.body.contains("/why/HOST:PORT"), "{response:?}");
}

fn assert_nothing_counted(proxy: Proxy) {
    let sums = proxy.finish();
    assert!(
        sums.denied.is_empty() && sums.allowed.is_empty(),
        "{sums:?}"
    );
}

#[test]
fn a_client_that_knows_the_proxy_reads_it_and_nothing_is_counted() {
    let proxy = Proxy::start(&["origin.test"]);
    let mut client = proxy.client();
    assert_is_index(&client.request(&get("/")));
    let response = client.request(&get("/policy"));
    assert!(response.body.contains("\norigin.test\n"), "{response:?}");
    let response = client.request(&get("/nothing"));
    assert!(response.head.starts_with("HTTP/1.1 404 "), "{response:?}");
    let post = get("/").replacen("GET", "POST", 1);
    let response = client.request(&post);
    assert!(response.head.starts_with("HTTP/1.1 405 "), "{response:?}");
    assert!(
        response.head.contains("\r\nAllow: GET, HEAD\r\n"),
        "{response:?}"
    );
    assert_nothing_counted(proxy);
}

#[test]
fn a_client_that_was_redirected_reads_it_wherever_it_dialled() {
    let proxy = Proxy::start(&["origin.test"]);
    for dialled in ["192.0.2.80:80", "[100::80]:80", "198.51.100.7:80"] {
        let mut client = proxy.redirected(dialled.parse::<SocketAddr>().unwrap());
        let request = "GET / HTTP/1.1\r\nHost: egress.sandbox\r\n\r\n";
        assert_is_index(&client.request(request));
        assert_is_index(&client.request(request));
    }
    assert_nothing_counted(proxy);
}

#[test]
fn a_client_that_always_tunnels_reads_it_in_its_tunnel_and_nothing_else() {
    let proxy = Proxy::start(&["origin.test"]);
    let mut client = proxy.client().connect("egress.sandbox:80");
    assert_is_index(&client.request("GET / HTTP/1.1\r\nHost: egress.sandbox\r\n\r\n"));
    let response = client.request("GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n");
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: name_mismatch\r\n"),
        "{response:?}"
    );
    let sums = proxy.finish();
    assert_eq!(
        sums.denials(),
        [("origin.test:80", DenyReason::NameMismatch, 1)]
    );
    assert!(sums.allowed.is_empty(), "{sums:?}");
}

#[test]
fn no_entry_leads_from_its_name_to_an_origin() {
    let origin = Origin::http();
    let port = origin.port();
    let rules = [
        format!("egress.sandbox:{port}/http@127.0.0.0/8"),
        "egress.sandbox@127.0.0.0/8".to_owned(),
    ];
    let proxy = Proxy::start(&rules.each_ref().map(String::as_str));
    assert_is_index(&proxy.client().request(&get("/")));
    let authority = format!("egress.sandbox:{port}");
    for request in [
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        format!("CONNECT {authority} HTTP/1.1\r\n\r\n"),
        "CONNECT egress.sandbox:443 HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let response = proxy.client().request(&request);
        assert!(
            response
                .head
                .starts_with("HTTP/1.1 403 egress denied: not_allowed\r\n"),
            "{request:?}: {response:?}"
        );
        assert!(
            response.body.contains("http://egress.sandbox/ on port 80"),
            "{response:?}"
        );
    }
    assert_eq!(proxy.finish().denied.values().sum::<u64>(), 3);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn what_was_refused_is_shown_with_what_would_change_it() {
    let proxy = Proxy::start(&["origin.test"]);
    for _ in 0..2 {
        proxy
            .client()
            .request("CONNECT sub.origin.test:443 HTTP/1.1\r\n\r\n");
    }
    let shown = proxy.client().request(&get("/denials?format=json"));
    let json: serde_json::Value = serde_json::from_str(&shown.body).unwrap();
    assert_eq!(json["attempts"], 2);
    let denial = &json["denials"][0];
    assert_eq!(
        (&denial["host"], &denial["count"]),
        (&"sub.origin.test".into(), &2.into())
    );
    assert!(
        denial["hint"].as_str().unwrap().contains("sub.origin.test"),
        "{shown:?}"
    );
    let why = proxy.client().request(&get("/why/sub.origin.test:443"));
    assert!(
        why.body.contains("deny sub.origin.test:443: not_allowed"),
        "{why:?}"
    );
    // To ask is not to try.
    assert_eq!(proxy.finish().denied.values().sum::<u64>(), 2);
}

#[test]
fn a_request_with_a_body_is_answered_and_ends_the_connection() {
    let proxy = Proxy::start(&["origin.test"]);
    let mut client = proxy.client();
    let smuggled = get("/policy");
    let request = get("/").replacen(
        "\r\n\r\n",
        &format!("\r\nContent-Length: {}\r\n\r\n{smuggled}", smuggled.len()),
        1,
    );
    assert_is_index(&client.request(&request));
    assert_eq!(client.rest(), b"");
}
