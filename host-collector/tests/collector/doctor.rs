//! `doctor`, on hosts that have what it takes and on hosts that lack something.

use std::fs;

use report::Body;
use serde_json::Value;

use crate::{
    container::{NONCE, bye, enforcing, exit, hello},
    engine::{Host, ended, executable},
};

/// Name, status and detail of every check.
fn checks(host: &Host, arguments: &[&str], code: i32) -> Vec<(String, String, String)> {
    let done = host.does(&[&["doctor", "--json", "--image", "img"], arguments].concat());
    assert_eq!(done.code, code, "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer.get("able"), Some(&Value::from(code == 0)));
    let text = |check: &Value, field: &str| {
        let text = check.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let checks = answer.get("checks").and_then(Value::as_array);
    checks
        .unwrap()
        .iter()
        .map(|check| {
            let (status, remedy) = (text(check, "status"), text(check, "remedy"));
            assert_eq!(remedy.is_empty(), status == "ok", "{check}");
            (text(check, "name"), status, text(check, "detail"))
        })
        .collect()
}

fn last(host: &Host, arguments: &[&str]) -> (String, String, String) {
    checks(host, arguments, 1).pop().unwrap()
}

/// A container that does what a trial asks of it, and says so.
fn trial() -> Vec<Body> {
    vec![hello(NONCE), enforcing(), exit(0), bye(4, 0)]
}

#[test]
fn a_host_that_delivers_is_told_so_thing_by_thing() {
    let host = Host::new();
    host.reports(&trial(), 0);
    let found = checks(&host, &[], 0);
    let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "log directory",
            "run directory",
            "clock",
            "engine",
            "image",
            "container",
            "enforcement",
            "channel",
            "ipv6"
        ]
    );
    // The trial is no run of anybody's.
    assert_eq!(host.log().len(), 0);
    let text = host.does(&["doctor", "--image", "img"]);
    assert_eq!(text.code, 0, "{text:?}");
    assert!(
        text.stdout
            .contains("ok    channel        every report of the trial arrived, over a socket\n"),
        "{text:?}"
    );
}

#[test]
fn what_a_host_lacks_is_the_last_thing_that_is_told_with_its_remedy() {
    let host = Host::new();
    host.on("image", "exit 1");
    let (name, status, detail) = last(&host, &[]);
    assert_eq!((name.as_str(), status.as_str()), ("image", "fail"));
    assert!(detail.contains("docker has no image `img`"), "{detail}");
    assert!(
        !host.calls().contains("pull"),
        "an image is looked for, not fetched"
    );

    let host = Host::new();
    host.container("echo 'docker: unknown runtime' >&2; exit 125", &ended(125));
    let (name, _, detail) = last(&host, &["--runtime", "runsc"]);
    assert_eq!(name, "container");
    assert!(detail.contains("unknown runtime"), "{detail}");
    assert!(host.calls().contains("--runtime runsc"), "{}", host.calls());

    let host = Host::new();
    let dead = "#!/bin/sh\necho 'Cannot connect to it' >&2\nexit 1\n";
    executable(&host.path("bin/docker"), dead);
    let (name, _, detail) = last(&host, &["--engine", "docker"]);
    assert_eq!(name, "engine");
    assert!(
        detail.contains("docker does not answer: Cannot connect to it"),
        "{detail}"
    );
}

#[test]
fn a_container_that_starts_and_cannot_be_enforced_fails_with_its_own_words() {
    let host = Host::new();
    // The plain start works; with a channel to speak over it does not get so far.
    host.container(
        "[ -z \"$socket\" ] || { echo 'sandbox-entrypoint: no NET_ADMIN' >&2; exit 125; }",
        &ended(125),
    );
    let (name, status, detail) = last(&host, &[]);
    assert_eq!((name.as_str(), status.as_str()), ("enforcement", "fail"));
    assert_eq!(detail, "sandbox-entrypoint: no NET_ADMIN");
}

#[test]
fn where_nftables_is_missing_it_is_tried_what_iptables_takes() {
    let host = Host::new();
    host.reports(&trial(), 0);
    let role = fs::read_to_string(host.path("role")).unwrap();
    let refusal =
        "grep -q -e --cap-add=NET_RAW calls || { echo 'not without NET_RAW' >&2; exit 125; }";
    host.on("role", &format!("[ -z \"$socket\" ] || {refusal}\n{role}"));
    let found = checks(&host, &[], 0);
    let enforcement: Vec<_> = found
        .iter()
        .filter(|check| check.0 == "enforcement")
        .collect();
    assert_eq!(
        (enforcement[0].1.as_str(), enforcement[1].1.as_str()),
        ("ok", "warn")
    );
    assert!(enforcement[1].2.contains("NET_RAW"), "{found:?}");
}

#[test]
fn an_account_that_breaks_off_is_no_channel_to_rely_on() {
    let host = Host::new();
    host.reports(&trial()[..3], 0);
    let found = checks(&host, &[], 1);
    let channel = found.iter().find(|(name, ..)| name == "channel").unwrap();
    assert_eq!(channel.1, "fail", "{found:?}");
}

#[test]
fn a_log_that_cannot_be_written_is_found_before_a_run_is() {
    let host = Host::new();
    host.reports(&trial(), 0);
    fs::write(host.path("audit"), "a file").unwrap();
    let found = checks(&host, &[], 1);
    assert_eq!(
        (found[0].0.as_str(), found[0].1.as_str()),
        ("log directory", "fail")
    );
    assert!(found[0].2.contains("/audit"), "{found:?}");
}
