//! `explain`, and presets and tools in lists, on a host whose home and tools are made up.

use std::fs;

use serde_json::{Value, json};

use crate::engine::{Done, Host, executable};

/// Runs a verb in a home with presets.
fn at_home(host: &Host, arguments: &[&str]) -> Done {
    let directory = host.path("home/.config/sandbox/presets.d");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ours.txt"), "# ours\n@openai\na.example\n").unwrap();
    fs::write(directory.join("circle.txt"), "@ours\n@circle\n").unwrap();
    let mut collector = host.collector(arguments);
    Done::of(collector.env("HOME", host.path("home")).output().unwrap())
}

/// The verdict and the reason, as JSON has them.
fn verdict(host: &Host, destination: &str, allow: &str) -> Value {
    let done = at_home(host, &["explain", destination, "--allow", allow, "--json"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn an_explanation_is_what_a_run_would_decide() {
    let host = Host::new();
    for (destination, allow, expected) in [
        (
            "github.com",
            "@github",
            json!({"verdict": "allow", "reason": null, "rule": "github.com", "hint": null}),
        ),
        (
            "api.openai.com",
            "@ours",
            json!({"verdict": "allow", "reason": null, "rule": "api.openai.com", "hint": null}),
        ),
        (
            "b.example:22",
            "b.example",
            json!({"verdict": "deny", "reason": "port_not_allowed", "rule": "b.example",
                "hint": "`b.example` is allowed on 80 and 443; add `b.example:22`"}),
        ),
        (
            "192.0.2.1",
            "a.example",
            json!({"verdict": "deny", "reason": "address_literal", "rule": null,
                "hint": "connect by name, or add `192.0.2.1` to allow the address itself"}),
        ),
    ] {
        assert_eq!(verdict(&host, destination, allow), expected);
    }
}

#[test]
fn a_malformed_destination_is_a_verdict_and_not_a_mistake() {
    let host = Host::new();
    for destination in ["https://a.example/", "a.example:https", "0x7f.1", " ", ""] {
        let said = verdict(&host, destination, "a.example");
        assert_eq!(said["reason"], "malformed", "{destination:?}: {said}");
    }
}

#[test]
fn people_get_two_lines_at_most_and_warnings_apart() {
    let host = Host::new();
    let done = at_home(
        &host,
        &[
            "explain",
            "a.example:22",
            "--allow",
            "*.a.example,b.a.example",
        ],
    );
    assert_eq!(
        done.stdout,
        "refused: a.example:22 is not_allowed\n\
         `*.a.example` does not cover `a.example`; add `a.example:22`\n"
    );
    assert_eq!(
        done.stderr,
        "host-collector: warning: `b.a.example` adds nothing: `*.a.example` covers it\n"
    );
}

#[test]
fn a_list_that_is_no_list_is_wrong_usage() {
    let host = Host::new();
    for (allow, part) in [
        ("*", "covers too much"),
        ("@githib", "did you mean @github?"),
        ("@circle", "@circle -> @circle"),
        ("@./nowhere", "@./nowhere"),
        (",", "names nothing"),
    ] {
        let done = at_home(&host, &["explain", "a.example", "--allow", allow]);
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
        assert!(
            done.stderr.contains(part) && done.stderr.lines().count() == 1,
            "{done:?}"
        );
    }
    assert_eq!(at_home(&host, &["explain", "a.example"]).code, 2);
}

#[test]
fn a_file_in_the_working_directory_is_never_a_preset() {
    let host = Host::new();
    fs::write(host.path("github"), "evil.example").unwrap();
    fs::write(host.path("github.txt"), "evil.example").unwrap();
    let mut collector = host.collector(&["explain", "evil.example", "--allow", "@github"]);
    let done = Done::of(collector.current_dir(host.path("")).output().unwrap());
    assert!(done.stdout.starts_with("refused"), "{done:?}");
}

#[test]
fn tools_are_asked_and_written_out_as_plain_entries() {
    let host = Host::new();
    for (tool, script, expected) in [
        (
            "apt-get",
            "echo http://192.0.2.1:8080/debian",
            "192.0.2.1:8080/http",
        ),
        (
            "go",
            "echo https://192.0.2.2,direct; echo off",
            "192.0.2.2:443",
        ),
        (
            "npm",
            r#"echo '{"registry":"https://192.0.2.3/"}'"#,
            "192.0.2.3:443",
        ),
    ] {
        let program = host.path("bin").join(tool);
        executable(&program, &format!("#!/bin/sh\n{script}\n"));
        let name = tool.trim_end_matches("-get");
        let destination = expected.split('/').next().unwrap();
        let said = verdict(&host, destination, &format!("@tool:{name}"));
        assert_eq!(said["rule"], expected, "{said}");
    }
}
