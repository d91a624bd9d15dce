//! The verbs that read the log, as a person and as a program use them.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use host_collector::{
    log::{Limits, Log},
    session::Session,
};
use serde_json::{Value, json};

use crate::engine::Host;

/// A host whose log has these runs.
fn with_runs(lines: &[Value]) -> Host {
    let host = Host::new();
    append(&host, lines);
    host
}

fn append(host: &Host, lines: &[Value]) {
    let log = Log::open(&host.path("audit"), Limits::default()).unwrap();
    for line in lines {
        let session: Session = serde_json::from_value(line.clone()).unwrap();
        log.append(&session).unwrap();
    }
}

fn run(name: &str, agent: &str, denied: &[(&str, u16, &str, u64)]) -> Value {
    let hosts = denied.iter().map(|(host, port, reason, count)| {
        json!({"host": host, "port": port, "proto": "tcp", "reason": reason, "count": count, "first_ms": 1, "last_ms": 2})
    });
    let total: u64 = denied.iter().map(|(.., count)| count).sum();
    let mut reasons = BTreeMap::<&str, u64>::new();
    for (_, _, reason, count) in denied {
        *reasons.entry(reason).or_default() += count;
    }
    json!({
        "v": 2, "time": "2026-11-29T12:00:00.000Z", "ended": "2026-11-29T12:00:01.000Z", "duration_ms": 1000,
        "run_id": name, "host": "h", "image": "img:1", "command": ["x"], "engine": "docker", "network": "allowlist",
        "agent": agent, "egress_allow": ["*.y.example"], "finished": true, "exit_code": 0,
        "egress_channel": {"state": "complete", "gaps": []}, "egress_denied": total,
        "egress_denied_by_reason": reasons, "egress_denied_hosts": hosts.collect::<Vec<_>>(),
        "egress_denied_hosts_distinct": denied.len(),
    })
}

const ONE: &str = "0123456789abcdef01234567";
const TWO: &str = "1123456789abcdef01234567";

fn two_runs() -> Host {
    with_runs(&[
        run(
            ONE,
            "me",
            &[
                ("y.example", 443, "not_allowed", 2),
                ("b.example", 22, "not_allowed", 1),
            ],
        ),
        run(TWO, "you", &[("y.example", 443, "not_allowed", 4)]),
    ])
}

fn json_of(host: &Host, arguments: &[&str], code: i32) -> Value {
    let done = host.does(arguments);
    assert_eq!(done.code, code, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn refusals_are_counted_over_runs_by_whatever_is_asked() {
    let host = two_runs();
    for (by, first, count) in [
        ("host", "y.example", 6),
        ("reason", "not_allowed", 7),
        ("agent", "you", 4),
        ("image", "img:1", 7),
    ] {
        let counts = json_of(&host, &["denials", "--by", by, "--json"], 0);
        let row = &counts["rows"][0];
        assert_eq!(
            (&row["key"], &row["count"]),
            (&json!(first), &json!(count)),
            "{counts}"
        );
        assert_eq!((&counts["by"], &counts["denied"]), (&json!(by), &json!(7)));
    }
    let mine = json_of(
        &host,
        &["denials", "--agent", "me", "--host", "Y.example", "--json"],
        0,
    );
    assert_eq!(mine["rows"][0]["count"], 2, "{mine}");
    let recent = json_of(&host, &["denials", "--since", "2026-11-30", "--json"], 0);
    assert_eq!(
        (&recent["runs"], &recent["since"]),
        (&json!(0), &json!("2026-11-30T00:00:00Z"))
    );
    let table = host.does(&["denials", "-n", "1"]).stdout;
    assert!(
        table.contains("7 refused attempts in 2 runs\n1 of 2 rows are shown"),
        "{table}"
    );
}

#[test]
fn a_time_that_is_none_is_wrong_usage_in_one_line() {
    let done = two_runs().does(&["denials", "--since", "soon"]);
    assert_eq!((done.code, done.stdout.as_str()), (2, ""));
    assert!(
        done.stderr.contains("`soon` is no time; write `7d`"),
        "{done:?}"
    );
}

#[test]
fn a_suggestion_can_be_pasted_and_lets_the_attempts_pass() {
    let host = two_runs();
    let done = host.does(&["suggest", &ONE[..6]]);
    let flags = done.stdout.lines().next().unwrap();
    assert_eq!(flags, "--allow y.example,b.example:22", "{done:?}");
    assert!(
        done.stdout
            .contains("`*.y.example` does not cover `y.example`"),
        "{done:?}"
    );
    let list = format!("*.y.example,{}", flags.strip_prefix("--allow ").unwrap());
    for target in ["y.example:443", "b.example:22"] {
        let decided = json_of(&host, &["explain", target, "--allow", &list, "--json"], 0);
        assert_eq!(decided["verdict"], "allow", "{target}");
    }
    let over_all = json_of(&host, &["suggest", "--since", "2026-01-01", "--json"], 0);
    assert_eq!(
        (&over_all["runs"], &over_all["add"][0]["attempts"]),
        (&json!(2), &json!(6))
    );
    assert_eq!(host.does(&["suggest", "zzz"]).code, 2);
}

#[test]
fn lists_are_filtered_and_a_detached_run_is_one_row() {
    let host = two_runs();
    let mut launch = run("2123456789abcdef01234567", "me", &[]);
    let object = launch.as_object_mut().unwrap();
    object.retain(|name, _| !name.starts_with("egress_denied") && name != "finished");
    object.insert("detached".into(), json!(true));
    object.insert("exit_code".into(), json!(null));
    let mut end = run("2123456789abcdef01234567", "me", &[]);
    end["detached"] = json!(true);
    append(&host, &[launch, end]);
    let rows = |arguments: &[&str]| {
        let all = [&["list", "--json"], arguments].concat();
        host.does(&all).stdout.lines().count()
    };
    assert_eq!(rows(&[]), 3);
    assert_eq!(rows(&["--agent", "me"]), 2);
    assert_eq!(rows(&["--agent", "me", "--refused"]), 1);
    assert_eq!(rows(&["--image", "img", "-n", "2"]), 2);
    assert_eq!(rows(&["--image", "im"]), 0);
    assert_eq!(rows(&["--since", "2026-11-30"]), 0);
}

#[test]
fn a_log_that_was_edited_is_found_out() {
    let host = two_runs();
    let sound = json_of(&host, &["verify", "--json"], 0);
    assert_eq!(
        (&sound["sound"], &sound["lines"]),
        (&json!(true), &json!(2))
    );
    let log = host.path("audit/sessions.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(
        &log,
        text.replacen("\"agent\":\"me\"", "\"agent\":\"us\"", 1),
    )
    .unwrap();
    let done = host.does(&["verify"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.stdout.contains("\nsessions.jsonl line 2: chain: "),
        "{done:?}"
    );
    assert!(done.stdout.ends_with("\n1 finding\n"), "{done:?}");
    let found = json_of(&host, &["verify", "--json"], 1);
    assert_eq!(found["findings"][0]["file"], "sessions.jsonl");
    assert_eq!(
        (&found["findings"][0]["line"], &found["findings"][0]["kind"]),
        (&json!(2), &json!("chain"))
    );
}

#[test]
fn a_checkpoint_holds_a_log_to_what_it_was() {
    let host = two_runs();
    let (key, public) = (host.path("key"), host.path("key.pub"));
    let (key, public) = (key.to_str().unwrap(), public.to_str().unwrap());
    assert_eq!(host.does(&["keygen", key]).code, 0);
    assert_eq!(
        host.does(&["keygen", key]).code,
        2,
        "a key is not written over"
    );
    let unsigned = host.does(&["verify", "--key", public]);
    assert_eq!(unsigned.code, 1, "{unsigned:?}");
    assert!(
        unsigned
            .stdout
            .ends_with("no checkpoint of this key vouches for it\n"),
        "{unsigned:?}"
    );
    let signed = json_of(&host, &["verify", "--sign", key, "--json"], 0);
    assert_eq!(signed["signed"], true);
    append(&host, &[run("3123456789abcdef01234567", "me", &[])]);
    let checked = json_of(&host, &["verify", "--key", public, "--json"], 0);
    assert_eq!(
        (&checked["checkpoints"]["lines_since"], &checked["signed"]),
        (&json!(1), &json!(false))
    );
    // Somebody writes the whole log anew, and its mark with it.
    let audit = host.path("audit");
    for file in ["sessions.jsonl", "sessions.lock"] {
        fs::remove_file(audit.join(file)).unwrap();
    }
    append(&host, &[run(ONE, "me", &[])]);
    assert_eq!(host.does(&["verify"]).code, 0);
    let rewritten = host.does(&["verify", "--key", public]);
    assert_eq!(rewritten.code, 1);
    assert!(
        rewritten.stdout.contains("is not in the log"),
        "{rewritten:?}"
    );
    assert_eq!(host.does(&["verify", "--sign", key]).code, 1);
    assert_eq!(
        host.does(&["verify", "--key", key]).code,
        2,
        "a secret key is no public one"
    );
}

#[test]
fn tail_begins_with_the_newest_oldest_first() {
    let host = two_runs();
    let shown = host.does(&["tail", "-n", "2"]).stdout;
    let runs: Vec<_> = shown
        .lines()
        .map(|line| line.contains(&ONE[..12]))
        .collect();
    assert_eq!(runs, [true, false], "{shown}");
    let mine = host.does(&["tail", "--agent", "you", "--json"]).stdout;
    assert_eq!(mine.lines().count(), 1, "{mine}");
}

#[test]
fn tail_goes_on_with_what_comes_and_ends_with_its_reader() {
    let host = two_runs();
    let mut child = host
        .collector(&["tail", "-n", "1", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().contains(&TWO[..12]));
    append(&host, &[run("4123456789abcdef01234567", "me", &[])]);
    assert!(next().contains("run 4123456789ab exited 0; refused nothing"));
    let log = host.path("audit/sessions.jsonl");
    fs::rename(&log, host.path("audit/sessions.jsonl.1")).unwrap();
    append(&host, &[run("5123456789abcdef01234567", "me", &[])]);
    assert!(next().contains("run 5123456789ab"));
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_command_line_documents_itself() {
    let host = Host::new();
    let completions = host.does(&["completions", "bash"]);
    assert!(completions.stdout.contains("denials") && completions.code == 0);
    assert_eq!(host.does(&["completions", "x"]).code, 2);
    assert!(host.does(&["man"]).stdout.contains(".TH host-collector 1"));
    let pages = host.path("man1");
    assert_eq!(host.does(&["man", pages.to_str().unwrap()]).code, 0);
    assert!(pages.join("host-collector-suggest.1").is_file());
}

#[test]
fn every_verb_says_where_to_look_if_there_is_no_home() {
    let host = Host::new();
    for verb in ["list", "tail", "denials", "suggest", "verify"] {
        let mut command = host.collector(&[verb]);
        command.env_remove("SANDBOX_AUDIT_DIR").env_remove("HOME");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{verb}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("--audit-dir"),
            "{verb}"
        );
    }
}

#[test]
fn no_verb_lets_a_guest_s_words_act_on_a_terminal() {
    let mut nasty = run(
        ONE,
        "a\u{1b}[2J",
        &[("h\u{1b}[31m\nx", 443, "not_allowed", 2)],
    );
    nasty["image"] = json!("i\u{9b}31m");
    nasty["egress_allow"] = json!(["\u{1b}[2J"]);
    nasty["egress_channel"]["reason"] = json!("\u{1b}]0;x\u{7}");
    let host = with_runs(&[nasty]);
    for arguments in [
        &["list"][..],
        &["show", "last"],
        &["tail"],
        &["denials"],
        &["denials", "--by", "agent"],
        &["denials", "--by", "image"],
        &["suggest", "last"],
        &["verify"],
    ] {
        let done = host.does(arguments);
        let text = format!("{}{}", done.stdout, done.stderr);
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{arguments:?}: {text:?}"
        );
    }
}
