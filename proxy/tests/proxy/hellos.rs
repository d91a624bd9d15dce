//! What real clients say first, through the listeners: see `tests/hellos`.

use std::{fs, net::SocketAddr, path::Path};

use policy::DenyReason;

use crate::{
    harness::{LOOPBACK, Proxy, Setup},
    origin::Origin,
};

/// The name that a hello asks for, and the hello.
fn captured() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hellos");
    let list = fs::read_to_string(directory.join("hellos.jsonl")).unwrap();
    let read = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let [file, name] = ["file", "name"].map(|key| line[key].as_str().unwrap());
        (name.to_owned(), fs::read(directory.join(file)).unwrap())
    };
    list.lines().map(read).collect()
}

/// A proxy that lets through to `allowed.example`, which is the origin.
fn proxy(origin: &Origin) -> Proxy {
    let rule = format!("allowed.example:{}/tls@127.0.0.0/8", origin.port());
    let names: &[(&str, &[_])] = &[("allowed.example", &[LOOPBACK])];
    Proxy::with(
        &[&rule],
        &Setup {
            names,
            ..Setup::default()
        },
    )
}

const EARLY: &[u8] = b"\x14\x03\x03\0\x01\x01\x17\x03\x03\0\x03abc";

#[test]
fn what_a_client_says_first_reaches_the_host_that_it_names_byte_for_byte() {
    let origin = Origin::echo();
    let proxy = proxy(&origin);
    let authority = format!("allowed.example:{}", origin.port());
    let mut refused = 0;
    for (name, hello) in captured() {
        let sent = [&hello, EARLY].concat();
        for cut in [1, 5, hello.len() / 2, hello.len(), sent.len()] {
            let dialled = SocketAddr::from(([198, 51, 100, 1], origin.port()));
            let redirected = proxy.redirected(dialled);
            let tunnel = proxy.client().connect(&authority);
            for mut client in [redirected, tunnel] {
                client.send(&sent[..cut]);
                client.send(&sent[cut..]);
                if name == "allowed.example" {
                    assert!(client.exactly(sent.len()) == sent, "cut at {cut}");
                } else {
                    assert_eq!(client.rest(), [21, 3, 3, 0, 2, 2, 49], "{name}");
                    refused += 1;
                }
            }
        }
    }
    let sums = proxy.finish();
    // The encrypted hello names the host in front of the one that it is for, which is not allowed.
    let front = format!("front.example:{}", origin.port());
    let expected = [
        (front.as_str(), DenyReason::NameMismatch, refused / 2),
        (front.as_str(), DenyReason::NotAllowed, refused / 2),
    ];
    let mut denials = sums.denials();
    denials.sort_by_key(|(_, reason, _)| reason.as_str());
    assert_eq!(denials, expected);
    assert_eq!(refused, 10);
}

#[test]
fn a_hello_that_ends_before_it_is_whole_goes_nowhere() {
    let origin = Origin::echo();
    let proxy = proxy(&origin);
    let dialled = SocketAddr::from(([198, 51, 100, 1], origin.port()));
    let all = captured();
    for (_, hello) in &all {
        for cut in [1, 6, hello.len() - 1] {
            let mut client = proxy.redirected(dialled);
            client.send(&hello[..cut]);
            client.end();
            assert_eq!(client.rest(), [21, 3, 3, 0, 2, 2, 112], "cut at {cut}");
        }
    }
    let sums = proxy.finish();
    let target = dialled.to_string();
    let count = 3 * u64::try_from(all.len()).unwrap();
    assert_eq!(
        sums.denials(),
        [(target.as_str(), DenyReason::NoName, count)]
    );
    assert_eq!(origin.connections(), 0);
}
