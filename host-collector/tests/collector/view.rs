//! `list` and `show`, as a person and as a program see them.

use std::{fs, process::Stdio};

use serde_json::Value;

use crate::engine::{Host, ended};

/// A host that has run containers with these exit codes.
fn after(codes: &[i32]) -> Host {
    let host = Host::new();
    for code in codes {
        host.container(&format!("exit {code}"), &ended(*code));
        assert_eq!(
            host.does(&["run", "--network", "none", "--agent", "me", "img"])
                .code,
            *code
        );
    }
    host
}

#[test]
fn the_newest_run_is_listed_first() {
    let host = after(&[1, 2, 3]);
    let done = host.does(&["list"]);
    let exits: Vec<&str> = done
        .stdout
        .lines()
        .skip(1)
        .filter_map(|row| row.split_whitespace().nth(3))
        .collect();
    assert_eq!(
        (done.code, exits),
        (0, vec!["3", "2", "1"]),
        "{}",
        done.stdout
    );
}

#[test]
fn only_as_many_as_asked_for_are_listed() {
    let host = after(&[1, 2, 3]);
    assert_eq!(host.does(&["list", "-n", "2"]).stdout.lines().count(), 3);
    assert_eq!(
        host.does(&["list", "-n", "2", "--json"])
            .stdout
            .lines()
            .count(),
        2
    );
}

#[test]
fn json_of_a_list_is_the_log_backwards() {
    let host = after(&[0, 0]);
    let listed = host.does(&["list", "--json"]).stdout;
    let log = fs::read_to_string(host.path("audit/sessions.jsonl")).unwrap();
    assert_eq!(
        listed.lines().rev().collect::<Vec<_>>(),
        log.lines().collect::<Vec<_>>()
    );
}

#[test]
fn a_run_is_shown_by_the_beginning_of_its_name() {
    let host = after(&[1, 2]);
    let log = host.log();
    let name = log[0]["run_id"].as_str().unwrap();
    let done = host.does(&["show", &name[..10]]);
    assert_eq!(done.code, 0);
    assert!(
        done.stdout.contains(name) && done.stdout.contains("with code 1"),
        "{}",
        done.stdout
    );
}

#[test]
fn the_last_run_needs_no_name() {
    assert!(
        after(&[1, 2])
            .does(&["show", "last"])
            .stdout
            .contains("with code 2")
    );
}

#[test]
fn json_of_a_run_has_its_line_and_what_is_not_covered() {
    let host = after(&[1]);
    let shown: Value =
        serde_json::from_str(&host.does(&["show", "last", "--json"]).stdout).unwrap();
    assert_eq!(shown["run"], host.log()[0]);
    let blanks = shown["not_covered"].as_array().unwrap();
    assert!(
        blanks.iter().any(|blank| blank["what"] == "network"),
        "{blanks:?}"
    );
}

#[test]
fn a_run_that_is_not_there_is_an_error_with_the_remedy() {
    let host = after(&[1]);
    let done = host.does(&["show", "zzz"]);
    assert_eq!((done.code, done.stdout.as_str()), (2, ""));
    assert!(done.stderr.contains("no run `zzz`"), "{done:?}");
}

#[test]
fn an_empty_log_is_no_error_to_list_and_has_no_last_run() {
    let host = Host::new();
    assert_eq!(host.does(&["list"]).stdout, "no such runs\n");
    assert_eq!(host.does(&["show", "last"]).code, 2);
}

#[test]
fn a_line_that_is_no_line_is_skipped_and_said() {
    let host = after(&[1]);
    let log = host.path("audit/sessions.jsonl");
    let content = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("rubbish\n{content}")).unwrap();
    let done = host.does(&["list"]);
    assert_eq!((done.code, done.stdout.lines().count()), (0, 2));
    assert!(done.stderr.contains("1 line of"), "{done:?}");
}

#[test]
fn where_there_is_no_log_to_look_for_it_is_said() {
    let host = Host::new();
    for verb in [&["list"][..], &["show", "last"]] {
        let mut command = host.collector(verb);
        command.env_remove("SANDBOX_AUDIT_DIR").env_remove("HOME");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--audit-dir"));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let host = after(&[1]);
    let line = fs::read_to_string(host.path("audit/sessions.jsonl")).unwrap();
    // More than a pipe holds.
    fs::write(host.path("audit/sessions.jsonl"), line.repeat(1000)).unwrap();
    let mut child = host
        .collector(&["tail", "-n", "1000", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
