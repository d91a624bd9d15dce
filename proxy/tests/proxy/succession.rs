//! Another list while the proxy serves: what is decided from then on, and what goes on as it was.

use policy::{DenyReason, Policy};
use report::link::{FromProxy, Succession, ToProxy};

use crate::{
    harness::{Proxy, Sums},
    origin::Origin,
};

/// Has the proxy decide by another list; what it reports before it says so is added to `sums`.
fn succeed(proxy: &mut Proxy, generation: u64, allow: &[&str], sums: &mut Sums) {
    let policy = Policy::from_entries(allow).unwrap();
    proxy.pid1.send(&ToProxy::Policy(Box::new(Succession {
        generation,
        allow: policy.entries(),
        policy_digest: policy.digest().to_string(),
    })));
    loop {
        let message = proxy.pid1.receive();
        let FromProxy::Policy {
            generation: answered,
            refused,
        } = message
        else {
            sums.add(&message);
            continue;
        };
        return assert_eq!((answered, refused), (generation, None));
    }
}

fn get(authority: &str) -> String {
    format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")
}

#[test]
fn requests_on_a_connection_that_is_kept_alive_are_decided_by_the_list_of_now() {
    let origin = Origin::http();
    let authority = format!("origin.test:{}", origin.port());
    let rule = format!("{authority}/http@127.0.0.0/8");
    let mut proxy = Proxy::start(&["other.test"]);
    let (mut client, mut before) = (proxy.client(), Sums::default());
    let mut status = |generation, allow: &[&str]| {
        if generation > 1 {
            succeed(&mut proxy, generation, allow, &mut before);
        }
        let response = client.request(&get(&authority));
        response.head.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status(1, &[]), "403");
    assert_eq!(status(2, &[&rule]), "200");
    assert_eq!(status(3, &["!origin.test", "other.test"]), "403");
    assert_eq!(
        before.denials(),
        [(authority.as_str(), DenyReason::NotAllowed, 1)]
    );
    let after = proxy.finish();
    assert_eq!(
        after.denials(),
        [(authority.as_str(), DenyReason::DeniedByRule, 1)]
    );
}

#[test]
fn requests_inside_a_tunnel_are_decided_by_the_list_of_now() {
    let origin = Origin::http();
    let authority = format!("origin.test:{}", origin.port());
    let rule = format!("{authority}/http@127.0.0.0/8");
    let mut proxy = Proxy::start(&[&rule]);
    let mut client = proxy.client().connect(&authority);
    let request = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    assert!(client.request(&request).head.starts_with("HTTP/1.1 200 "));
    succeed(&mut proxy, 2, &["!origin.test"], &mut Sums::default());
    let response = client.request(&request);
    assert!(
        response
            .head
            .starts_with("HTTP/1.1 403 egress denied: denied_by_rule\r\n"),
        "{response:?}"
    );
}

#[test]
fn a_tunnel_that_is_open_goes_on_and_another_is_not_opened() {
    let origin = Origin::echo();
    let authority = format!("origin.test:{}", origin.port());
    let mut proxy = Proxy::start(&[&format!("{authority}/tcp@127.0.0.0/8")]);
    let mut open = proxy.client().connect(&authority);
    succeed(&mut proxy, 2, &["other.test"], &mut Sums::default());
    open.send("still here");
    assert_eq!(open.exactly(10), b"still here");
    let refused = proxy
        .client()
        .request(&format!("CONNECT {authority} HTTP/1.1\r\n\r\n"));
    assert!(refused.head.starts_with("HTTP/1.1 403 "), "{refused:?}");
}

#[test]
fn a_list_that_cannot_be_read_is_refused_and_the_one_before_it_decides() {
    let origin = Origin::http();
    let authority = format!("origin.test:{}", origin.port());
    let mut proxy = Proxy::start(&[&format!("{authority}/http@127.0.0.0/8")]);
    proxy.pid1.send(&ToProxy::Policy(Box::new(Succession {
        generation: 2,
        allow: vec!["other.test".into()],
        policy_digest: "00".into(),
    })));
    let answer = proxy.pid1.receive();
    assert!(
        matches!(&answer, FromProxy::Policy { generation: 2, refused: Some(why) } if why.as_str().contains("digest")),
        "{answer:?}"
    );
    let response = proxy.client().request(&get(&authority));
    assert!(response.head.starts_with("HTTP/1.1 200 "), "{response:?}");
}

#[test]
fn the_window_shows_the_list_of_now_and_which_it_is() {
    let mut proxy = Proxy::start(&["origin.test"]);
    let window = "GET http://egress.sandbox/policy HTTP/1.1\r\nHost: egress.sandbox\r\n\r\n";
    let mut client = proxy.client();
    let before = client.request(window).body;
    assert!(
        before.contains("generation: 1") && before.contains("\norigin.test\n"),
        "{before}"
    );
    succeed(&mut proxy, 2, &["other.test"], &mut Sums::default());
    let after = client.request(window).body;
    assert!(
        after.contains("generation: 2") && after.contains("\nother.test\n"),
        "{after}"
    );
    assert!(!after.contains("origin.test"), "{after}");
}

#[test]
fn a_list_of_megabytes_takes_the_place_of_another() {
    let mut proxy = Proxy::start(&["origin.test"]);
    let names: Vec<_> = (0..50_000)
        .map(|n| format!("{}{n}.example", "x".repeat(40)))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    succeed(&mut proxy, 2, &names, &mut Sums::default());
    succeed(&mut proxy, 3, &["origin.test"], &mut Sums::default());
}
