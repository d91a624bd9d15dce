//! `sandbox-egress-proxy connect`, as ssh runs it.

use std::{
    io::{Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
};

use policy::DenyReason;

use crate::{
    harness::{Proxy, Sums},
    origin::Origin,
};

/// The program, asked to connect through `proxy`.
fn connect(proxy: &Proxy, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sandbox-egress-proxy"))
        .arg("connect")
        .args(arguments)
        .env_clear()
        .env("https_proxy", format!("http://{}", proxy.explicit))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn rule(origin: &Origin) -> String {
    format!("origin.test:{}/tcp@127.0.0.0/8", origin.port())
}

fn told(output: &Output) -> (Option<i32>, String) {
    let words = String::from_utf8(output.stderr.clone()).unwrap();
    (output.status.code(), words)
}

fn allowed(sums: &Sums) -> Vec<[u64; 4]> {
    sums.allowed.values().copied().collect()
}

#[test]
fn it_joins_standard_streams_and_passes_the_end_of_each_on() {
    let origin = Origin::serve(|mut peer| {
        peer.stream.write_all(b"SSH-2.0-x\r\n").unwrap();
        while peer.read().is_some() {}
        peer.stream.write_all(b"after your end").unwrap();
    });
    let proxy = Proxy::start(&[&rule(&origin)]);
    let port = origin.port().to_string();
    let mut child = connect(&proxy, &["origin.test", &port]);
    // The far end speaks first, and is heard before anything was said to it.
    let mut banner = [0; 11];
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut banner).unwrap();
    assert_eq!(&banner, b"SSH-2.0-x\r\n");
    child.stdin.take().unwrap().write_all(b"question").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"after your end");
    assert_eq!(told(&output), (Some(0), String::new()));
    assert_eq!(origin.received(), "question");
    assert_eq!(allowed(&proxy.finish()), [[1, 0, 8, 25]]);
}

#[test]
fn what_is_still_said_after_the_far_end_has_ended_arrives() {
    let origin = Origin::serve(|mut peer| {
        peer.stream.write_all(b"banner").unwrap();
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        while peer.read().is_some() {}
    });
    let proxy = Proxy::start(&[&rule(&origin)]);
    let port = origin.port().to_string();
    let mut child = connect(&proxy, &["origin.test", &port]);
    let mut said = Vec::new();
    let output = child.stdout.as_mut().unwrap();
    output.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"banner");
    child.stdin.take().unwrap().write_all(b"more").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(allowed(&proxy.finish()), [[1, 0, 4, 6]]);
}

#[test]
fn much_is_carried_whole() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin)]);
    let port = origin.port().to_string();
    let mut child = connect(&proxy, &["origin.test", &port]);
    let sent: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let (mut input, copy) = (child.stdin.take().unwrap(), sent.clone());
    let sender = std::thread::spawn(move || input.write_all(&copy).unwrap());
    let output = child.wait_with_output().unwrap();
    sender.join().unwrap();
    assert!(output.stdout == sent, "{} bytes", output.stdout.len());
}

#[test]
fn a_denial_is_one_line_with_reason_and_remedy() {
    let origin = Origin::echo();
    let proxy = Proxy::start(&[&rule(&origin)]);
    let child = connect(&proxy, &["origin.test", "1"]);
    let (code, words) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{words}");
    let start = "sandbox-egress-proxy: origin.test:1: denied: port_not_allowed: ";
    assert!(words.starts_with(start), "{words}");
    assert!(words.contains("add `origin.test:1`"), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");
    let denied = [("origin.test:1", DenyReason::PortNotAllowed, 1)];
    assert_eq!(proxy.finish().denials(), denied);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_failure_is_told_from_a_denial() {
    let gone = crate::harness::listener().local_addr().unwrap().port();
    let proxy = Proxy::start(&[&format!("origin.test:{gone}@127.0.0.0/8")]);
    let child = connect(&proxy, &["origin.test", &gone.to_string()]);
    let (code, words) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(3), "{words}");
    assert!(
        words.ends_with("failed: connection_refused: connection refused\n"),
        "{words}"
    );
}

#[test]
fn a_mistake_is_told_without_asking_anybody() {
    let proxy = Proxy::start(&["origin.test"]);
    let child = connect(&proxy, &["ori\u{1b}gin.test", "22"]);
    let (code, words) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(2), "{words}");
    assert!(!words.contains('\u{1b}'), "{words:?}");
    assert_eq!(proxy.finish(), Sums::default());
}
