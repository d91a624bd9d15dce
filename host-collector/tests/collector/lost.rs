//! Engines that lose sight of a container: they say for ever that it runs, or nothing.

use std::fs;

use report::Body;
use serde_json::{Value, json};

use crate::{
    container::{NONCE, bye, denied, enforcing, exit, hello},
    engine::{Done, Host},
};

const RUN: [&str; 4] = ["run", "--allow", "a.example", "img"];

fn whole(code: i32) -> [Body; 5] {
    [
        hello(NONCE),
        enforcing(),
        denied("evil.example", 2),
        exit(code),
        bye(5, 2),
    ]
}

/// A host whose engine never learns of the end of this container, and whose client neither.
fn blind(script: &[Body]) -> Host {
    let host = Host::new();
    host.reports(script, 0);
    let role = fs::read_to_string(host.path("role")).unwrap();
    let hangs = role.replace("exit 0", "exec cat hold >/dev/null 2>&1");
    host.on("role", &hangs);
    let running = r#"{"state":{"Running":true,"StartedAt":"2026-11-29T16:44:43Z","ConmonPid":2147483647},"networks":{"podman":null}}"#;
    for file in ["up", "state"] {
        fs::write(host.path(file), running).unwrap();
    }
    host.on("info", "echo false");
    host
}

fn facts(line: &Value) -> Value {
    let fact = |at| line.pointer(at).cloned().unwrap_or_default();
    [
        "/egress_channel/state",
        "/end_reason",
        "/exit_code",
        "/egress_denied",
        "/network_name",
    ]
    .map(fact)
    .into_iter()
    .collect()
}

#[test]
fn a_run_whose_monitor_was_killed_ends_with_its_container() {
    let host = blind(&whole(5));
    let done = host.does(&RUN);
    assert_eq!(done.code, 5, "{done:?}");
    assert_eq!(
        facts(&host.log()[0]),
        json!(["complete", "exited", 5, 2, "podman"])
    );
    assert!(host.calls().contains("rm --force"), "{}", host.calls());
}

#[test]
fn where_nobody_is_left_to_tell_the_code_none_is_invented() {
    let [hello, enforcing, denied, ..] = whole(5);
    let host = blind(&[hello, enforcing, denied]);
    let done = host.does(&RUN);
    assert_eq!(done.code, 125, "{done:?}");
    let log = host.log();
    assert_eq!(log[0]["exit_code"], Value::Null);
    assert_eq!(
        (
            &log[0]["egress_channel"]["state"],
            &log[0]["egress_denied_at_least"]
        ),
        (&"interrupted".into(), &2.into())
    );
}

#[test]
fn a_detached_run_whose_monitor_was_killed_ends_with_its_container() {
    let host = blind(&whole(6));
    let launched = host.does(&["run", "--detach", "--allow", "a.example", "img"]);
    let run = launched.stdout.trim();
    let done: Done = host.does(&["finish", run]);
    let line: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&line["egress_channel"]["state"], &line["exit_code"]),
        (&"complete".into(), &6.into()),
        "{done:?}"
    );
    assert!(line["ended"].is_string(), "{line}");
    host.release();
}

#[test]
fn a_container_that_cannot_be_removed_is_named_with_the_remedy() {
    let host = Host::new();
    host.reports(&whole(3), 3);
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let docker = docker.replace(
        "rm) rm -f made running ;;",
        "rm) echo 'no way' >&2; exit 1 ;;",
    );
    crate::engine::executable(&host.path("bin/docker"), &docker);
    let done = host.does(&RUN);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(
        done.stderr.contains("docker rm --force the-container") && done.stderr.contains("no way"),
        "{done:?}"
    );
}
