//! `docs/session-log.schema.json` and `docs/answers.schema.json`: what they take and what they do
//! not. Every line that another test here reads from a log, and all JSON that a verb prints there,
//! goes through them as well.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde::Deserialize;
use serde_json::{Value, json};

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let text = include_str!("../../../docs/session-log.schema.json");
    let schema = serde_json::from_str(text).unwrap();
    jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap()
});

/// What is wrong with a line.
pub(crate) fn faults_of(line: &Value) -> Vec<String> {
    let errors = SCHEMA.iter_errors(line);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// What the verbs print, by verb.
static ANSWERS: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../docs/answers.schema.json");
    let schema: Value = serde_json::from_str(text).unwrap();
    schema.get("$defs").unwrap().clone()
});

/// What is wrong with what a verb has printed: nothing, for one that prints no object of its own.
pub(crate) fn faults_of_answer(verb: &str, printed: &str) -> Vec<String> {
    if ANSWERS.get(verb).is_none() {
        return Vec::new();
    }
    let schema = json!({"$ref": format!("#/$defs/{verb}"), "$defs": *ANSWERS});
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let answer: Value = serde_json::from_str(printed).unwrap();
    let errors = validator.iter_errors(&answer);
    errors
        .map(|error| format!("{verb}{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn a_field_that_is_not_described_or_is_missing_is_a_fault_of_the_answer() {
    let whole = json!({"verdict": "deny", "reason": "malformed", "rule": null, "hint": null});
    assert_eq!(faults_of_answer("explain", &whole.to_string()), [""; 0]);
    for (field, value) in [
        ("verdict", json!("maybe")),
        ("reason", json!("Not a word")),
        ("rule", json!(1)),
        ("new", json!(1)),
    ] {
        let mut answer = whole.clone();
        answer[field] = value;
        assert_ne!(
            faults_of_answer("explain", &answer.to_string()),
            [""; 0],
            "{field}"
        );
    }
    let without = json!({"verdict": "allow"}).to_string();
    assert_eq!(faults_of_answer("explain", &without).len(), 3);
}

/// A line with every field of the design's list that this program writes.
fn full() -> Value {
    serde_json::from_str(
        r#"{
        "v": 2, "time": "2026-11-29T12:00:00.000Z", "ended": "2026-11-29T12:00:01.000Z", "duration_ms": 1000,
        "host": "h", "run_id": "0123456789abcdef01234567", "image": "i", "workspace": "/w", "workdir": "/w",
        "agent": "a", "branch": "b", "routed_from": "r", "route_reason": "r", "route_id": "r", "route_attempt": 1,
        "handoff_from": "f", "handoff_session": "s", "command": ["x"], "engine": "docker", "runtime": "runc",
        "network": "allowlist", "network_name": "bridge", "egress_enforcement_requested": "name",
        "egress_allow": ["a.example"], "egress_policy": {"digest": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "generation": 2,
            "launch_digest": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", "changes_truncated": true, "unasked": 1,
            "changes": [{"generation": 2, "digest": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "state": "in_force",
                "time": "2026-11-29T12:00:00.500Z", "at_ms": 500, "added": ["b.example"], "removed": [], "entries_truncated": true, "detail": "d"}]},
        "env_names": ["X"], "detached": false, "finished": true, "exit_code": 137, "signal": 9, "end_reason": "signaled",
        "egress_enforcement": "name", "egress_degradations": ["no v6"],
        "egress_channel": {"state": "gap", "transport": "socket", "reason": "r",
            "gaps": [{"kind": "outage", "from_ms": 1, "to_ms": null, "detail": ""}]},
        "egress_denied": 1, "egress_denied_by_reason": {"quic": 1},
        "egress_denied_hosts": [{"address": "192.0.2.1", "port": 443, "proto": "udp", "reason": "quic", "count": 1, "first_ms": 0, "last_ms": 0, "at_least": true}],
        "egress_denied_hosts_distinct": 1, "egress_denied_hosts_distinct_estimated": true, "egress_allowed": 1, "egress_ech_offered": 0,
        "egress_hosts": [{"host": "a.example", "port": 443, "connections": 1, "failures": 0, "bytes_up": 1, "bytes_down": 2}],
        "processes": {"observed": null, "outlived_root": 0, "exact": false}, "evidence": "/e",
        "dropped_runs": 3, "prev": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}"#,
    )
    .unwrap()
}

#[test]
fn a_full_line_is_taken_and_is_what_the_program_reads_and_writes() {
    let line = full();
    assert_eq!(faults_of(&line), [""; 0]);
    let session: host_collector::session::Session = serde_json::from_value(line.clone()).unwrap();
    assert_eq!(serde_json::to_value(session).unwrap(), line);
}

#[test]
fn each_thing_that_is_not_as_it_should_be_is_refused() {
    for (field, value) in [
        ("v", json!(3)),
        ("time", json!("yesterday")),
        ("run_id", json!("../../etc")),
        ("exit_code", json!("0")),
        ("egress_denied", json!(-1)),
        ("egress_denied_at_least", json!(1)),
        (
            "egress_channel",
            json!({"state": "interrupted", "gaps": []}),
        ),
        ("egress_channel", json!({"state": "fine", "gaps": []})),
        ("egress_denied_by_reason", json!({"Not a word": 1})),
        ("egress_denied_hosts", json!([{"host": "a"}])),
        ("env", json!({"SECRET": "value"})),
        ("prev", json!("zz")),
        ("detached", json!(null)),
    ] {
        let mut line = full();
        line[field] = value.clone();
        assert_ne!(faults_of(&line), [""; 0], "{field}: {value}");
    }
    for required in [
        "time",
        "image",
        "command",
        "detached",
        "exit_code",
        "run_id",
        "egress_channel",
    ] {
        let mut line = full();
        line.as_object_mut().unwrap().remove(required);
        assert_ne!(faults_of(&line), [""; 0], "without {required}");
    }
}

/// A reader of the log's first writer: its field names and types, and nothing that is new.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "that it can be read is the test")]
struct FirstReader {
    time: String,
    image: String,
    workspace: Option<String>,
    workdir: Option<String>,
    agent: Option<String>,
    branch: Option<String>,
    routed_from: Option<String>,
    route_reason: Option<String>,
    route_id: Option<String>,
    route_attempt: Option<u32>,
    handoff_from: Option<String>,
    handoff_session: Option<String>,
    command: Vec<String>,
    engine: Option<String>,
    runtime: Option<String>,
    network: String,
    network_name: Option<String>,
    egress_enforcement_requested: Option<String>,
    egress_allow: Option<Vec<String>>,
    env_names: Option<Vec<String>>,
    run_id: Option<String>,
    exit_code: Option<i32>,
    duration_ms: Option<u64>,
    detached: bool,
    finished: Option<bool>,
    egress_denied_reported: Option<u64>,
    egress_denied_hosts_reported: Option<Vec<String>>,
}

#[test]
fn a_reader_of_the_first_writer_s_log_reads_ours() {
    let reader: FirstReader = serde_json::from_value(full()).unwrap();
    assert_eq!(
        (reader.exit_code, reader.duration_ms),
        (Some(137), Some(1000))
    );
    assert_eq!(
        reader.egress_denied_reported, None,
        "a fact is never passed off as hearsay"
    );
}

#[test]
fn what_the_first_writer_wrote_is_read_and_kept_apart_from_facts() {
    let old = json!({
        "time": "2024-05-01T10:00:00Z", "image": "i", "workspace": "/w", "workdir": "/w", "agent": "a", "branch": "b",
        "routed_from": "r", "route_reason": "why", "route_id": "id", "route_attempt": 2, "handoff_from": "f",
        "handoff_session": "s", "command": ["a", "b"], "engine": "podman", "runtime": "runsc", "network": "allowlist",
        "network_name": "n", "egress_enforcement_requested": "name", "egress_allow": ["a.example"], "env_names": ["X"],
        "run_id": "old-style", "exit_code": 3, "duration_ms": 17, "detached": true, "finished": true,
        "egress_denied_reported": 4, "egress_denied_hosts_reported": ["b.example"],
    });
    let session: host_collector::session::Session = serde_json::from_value(old.clone()).unwrap();
    assert_eq!(
        (
            session.network.egress_denied,
            session.network.egress_denied_reported
        ),
        (None, Some(4))
    );
    assert_eq!(
        serde_json::to_value(session).unwrap(),
        old,
        "nothing of it is lost"
    );
}
