//! `run` with an engine that is played: exit codes, what is said, and what is recorded.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
    thread,
};

use report::{Body, EndReason, Exit};

use crate::{
    container::{NONCE, bye, denied, enforcing, exit, hello},
    engine::{Done, Host, NEVER_STARTED, ended, executable},
};

const RUN: [&str; 4] = ["run", "--allow", "a.example", "img"];

fn whole(code: i32) -> Vec<Body> {
    vec![
        hello(NONCE),
        enforcing(),
        denied("evil.example", 2),
        exit(code),
        bye(5, 2),
    ]
}

#[test]
fn a_run_exits_with_the_guest_s_code_and_leaves_one_line_of_facts() {
    let host = Host::new();
    host.reports(&whole(7), 7);
    let done = host.does(&[&RUN[..], &["--", "make", "test"]].concat());
    assert_eq!(done.code, 7, "{done:?}");
    let [line] = &host.log()[..] else {
        panic!("{:?}", host.log())
    };
    assert_eq!(line["egress_channel"]["state"], "complete", "{line}");
    assert_eq!(
        (&line["egress_denied"], &line["exit_code"]),
        (&2.into(), &7.into())
    );
    assert_eq!(line["command"], serde_json::json!(["make", "test"]));
    assert_eq!(
        (&line["network_name"], &line["egress_enforcement"]),
        (&"bridge".into(), &"name".into())
    );
    assert_eq!(line["egress_denied_hosts"][0]["host"], "evil.example");
}

#[test]
fn a_run_ends_with_one_line_that_says_what_to_add() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let said = host.does(&RUN).stderr;
    assert_eq!(said.lines().count(), 1, "{said}");
    let part = "exited 0; refused 2 attempts (evil.example:443 not_allowed ×2); to allow: --allow evil.example";
    assert!(said.contains(part), "{said}");
}

#[test]
fn what_was_reported_is_kept_beside_the_log() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    host.does(&RUN);
    let evidence = host.log()[0]["evidence"].as_str().unwrap().to_owned();
    let journal = fs::read_to_string(format!("{evidence}/journal.jsonl")).unwrap();
    assert_eq!(journal.lines().count(), 5, "{journal}");
}

#[test]
fn the_container_and_the_run_s_directory_are_gone_afterwards() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    host.does(&RUN);
    assert!(
        host.calls().ends_with("rm --force the-container\n"),
        "{}",
        host.calls()
    );
    assert_eq!(
        fs::read_dir(host.path("run/host-collector/runs"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn no_secret_is_in_an_argument_or_in_the_record() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let role = fs::read_to_string(host.path("role")).unwrap();
    host.on(
        "role",
        &format!("echo \"$SANDBOX_REPORT_NONCE\" >nonce\n{role}"),
    );
    let arguments = ["run", "--allow", "a.example", "--env", "TOKEN", "img"];
    let done = Done::of(
        host.collector(&arguments)
            .env("TOKEN", "s3cret")
            .output()
            .unwrap(),
    );
    assert_eq!(done.code, 0, "{done:?}");
    let nonce = fs::read_to_string(host.path("nonce")).unwrap();
    let kept = format!("{}{}{}", host.calls(), host.log()[0], done.stderr);
    assert_eq!(nonce.trim().len(), 64);
    assert!(
        !kept.contains(nonce.trim()) && !kept.contains("s3cret"),
        "{kept}"
    );
    assert_eq!(host.log()[0]["env_names"], serde_json::json!(["TOKEN"]));
}

#[test]
fn a_container_that_loses_its_channel_leaves_lower_bounds() {
    let host = Host::new();
    host.reports(&[hello(NONCE), enforcing(), denied("evil.example", 2)], 137);
    let done = host.does(&RUN);
    assert_eq!(done.code, 137, "{done:?}");
    let line = &host.log()[0];
    assert_eq!(line["egress_channel"]["state"], "interrupted", "{line}");
    assert_eq!(
        (&line["egress_denied_at_least"], line.get("egress_denied")),
        (&2.into(), None)
    );
    assert!(
        done.stderr.contains("refused at least 2 attempts"),
        "{done:?}"
    );
}

#[test]
fn a_signal_that_ended_the_guest_is_recorded_as_pid_1_saw_it() {
    let host = Host::new();
    let exit = Body::Exit(Exit {
        code: None,
        signal: Some(9),
        end_reason: EndReason::Signaled,
        cpu_ms: 0,
        peak_rss_kb: None,
        outlived_root: 1,
        detail: None,
    });
    host.reports(&[hello(NONCE), enforcing(), exit, bye(4, 0)], 137);
    assert_eq!(host.does(&RUN).code, 137);
    let line = &host.log()[0];
    assert_eq!(
        (&line["signal"], &line["end_reason"]),
        (&9.into(), &"signaled".into())
    );
    assert_eq!(
        line["processes"],
        serde_json::json!({"observed": null, "outlived_root": 1, "exact": false})
    );
}

#[test]
fn an_image_without_the_entrypoint_is_refused_before_anything_is_started() {
    let host = Host::new();
    host.image(r#"{"Cmd":["sh"]}"#);
    host.on("cp", "exit 1");
    let done = host.does(&RUN);
    assert_eq!(
        (done.code, done.stderr.lines().count()),
        (125, 1),
        "{done:?}"
    );
    assert!(
        done.stderr
            .contains("`img` has no /usr/local/bin/sandbox-entrypoint"),
        "{done:?}"
    );
    assert!(
        host.calls().contains("rm --force created"),
        "{}",
        host.calls()
    );
    assert!(!host.calls().contains("\nrun "), "{}", host.calls());
    assert_eq!(host.log().len(), 0);
}

#[test]
fn an_image_of_another_kind_that_has_the_entrypoint_keeps_its_own_command() {
    let host = Host::new();
    host.image(r#"{"Entrypoint":["/init"],"Cmd":["serve"]}"#);
    host.reports(&whole(0), 0);
    assert_eq!(host.does(&RUN).code, 0);
    assert_eq!(
        host.log()[0]["command"],
        serde_json::json!(["/init", "serve"])
    );
    assert!(
        host.calls().contains("-- img /init serve"),
        "{}",
        host.calls()
    );
}

#[test]
fn a_container_that_the_engine_could_not_start_is_no_run() {
    let host = Host::new();
    host.container(
        "echo 'docker: no such runtime' >&2; exit 126",
        NEVER_STARTED,
    );
    let done = host.does(&RUN);
    assert_eq!((done.code, host.log().len()), (125, 0), "{done:?}");
    assert!(
        done.stderr
            .starts_with("docker: no such runtime\nhost-collector: docker did not start"),
        "{done:?}"
    );
}

#[test]
fn the_entrypoint_s_own_refusal_is_passed_on_without_a_word() {
    for code in [78, 125] {
        let host = Host::new();
        host.container(
            &format!("echo 'sandbox-entrypoint: why' >&2; exit {code}"),
            &ended(code),
        );
        let done = host.does(&RUN);
        assert_eq!(
            (done.code, done.stderr.as_str()),
            (code, "sandbox-entrypoint: why\n")
        );
        assert_eq!(host.log().len(), 0);
    }
}

#[test]
fn an_entrypoint_that_ends_without_enforcing_anything_is_no_run() {
    let host = Host::new();
    let done = host.does(&RUN);
    assert_eq!((done.code, host.log().len()), (125, 0), "{done:?}");
    assert!(
        done.stderr.contains("before anything was enforced"),
        "{done:?}"
    );
}

#[test]
fn a_container_that_reads_the_list_otherwise_is_turned_away() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let Body::Hello(mut other) = hello(NONCE) else {
        unreachable!()
    };
    other.policy_digest = Some(report::Printable::new("0ther"));
    let script = crate::container::lines(&[Body::Hello(other)]);
    fs::write(host.path("script"), script).unwrap();
    let role = fs::read_to_string(host.path("role")).unwrap();
    host.on("role", &format!("({role}) 2>/dev/null\nexit 125"));
    let done = host.does(&RUN);
    assert_eq!((done.code, host.log().len()), (125, 0), "{done:?}");
    assert!(
        done.stderr
            .contains("reads the allowlist otherwise (digest 0ther"),
        "{done:?}"
    );
}

#[test]
fn where_reports_are_not_required_a_silent_run_is_recorded_as_one() {
    let host = Host::new();
    host.container("exit 3", &ended(3));
    let done = host.does(&[
        "run",
        "--report",
        "best-effort",
        "--allow",
        "a.example",
        "img",
    ]);
    assert_eq!(done.code, 3);
    let line = &host.log()[0];
    assert_eq!(line["egress_channel"]["state"], "never_connected");
    assert_eq!(
        (
            line.get("egress_denied"),
            line.get("egress_denied_at_least")
        ),
        (None, None)
    );
    assert!(done.stderr.contains("nobody reported"), "{done:?}");
}

#[test]
fn a_log_that_cannot_be_written_is_said_once_and_costs_nothing_else() {
    let host = Host::new();
    host.reports(&whole(7), 7);
    fs::write(host.path("audit"), "a file").unwrap();
    let done = host.does(&RUN);
    assert_eq!(done.code, 7);
    let said = done
        .stderr
        .lines()
        .filter(|line| line.contains("not in the session log"))
        .count();
    assert_eq!(said, 1, "{done:?}");
}

#[test]
fn without_a_home_the_run_is_run_all_the_same() {
    let host = Host::new();
    host.reports(&whole(7), 7);
    let mut command = host.collector(&RUN);
    command.env_remove("SANDBOX_AUDIT_DIR").env_remove("HOME");
    let done = Done::of(command.output().unwrap());
    assert_eq!(done.code, 7);
    assert!(
        done.stderr.contains("set SANDBOX_AUDIT_DIR or HOME"),
        "{done:?}"
    );
}

#[test]
fn an_audit_directory_on_the_command_line_wins() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let elsewhere = host.path("elsewhere");
    host.does(&[
        "run",
        "--audit-dir",
        elsewhere.to_str().unwrap(),
        "--allow",
        "a.example",
        "img",
    ]);
    assert!(elsewhere.join("sessions.jsonl").exists());
    assert!(!host.path("audit").exists());
}

#[test]
fn without_an_allowlist_nothing_is_watched_and_the_line_says_so() {
    let host = Host::new();
    host.image(r#"{"Cmd":["sh"]}"#);
    host.container("exit 5", &ended(5));
    let done = host.does(&["run", "--network", "none", "img", "--", "x"]);
    assert_eq!(done.code, 5);
    let line = &host.log()[0];
    assert_eq!(line["egress_channel"]["state"], "not_applicable");
    assert_eq!(
        (line.get("egress_allow"), line.get("evidence")),
        (None, None)
    );
    assert!(
        host.calls().contains("--network none -- img x"),
        "{}",
        host.calls()
    );
    assert!(!host.calls().contains("SANDBOX_"), "{}", host.calls());
}

#[test]
fn a_command_that_cannot_be_started_without_an_allowlist_has_the_engine_s_code() {
    for code in [126, 127] {
        let host = Host::new();
        host.image(r#"{"Cmd":["sh"]}"#);
        host.container(
            &format!("echo 'docker: why' >&2; exit {code}"),
            NEVER_STARTED,
        );
        let done = host.does(&["run", "--network", "none", "img"]);
        assert_eq!(
            (done.code, done.stderr.as_str(), host.log().len()),
            (code, "docker: why\n", 0)
        );
    }
}

#[test]
fn a_command_that_cannot_be_started_is_a_run_that_its_entrypoint_explains() {
    let host = Host::new();
    let exit = Body::Exit(Exit {
        code: Some(127),
        signal: None,
        end_reason: EndReason::StartFailed,
        cpu_ms: 0,
        peak_rss_kb: None,
        outlived_root: 0,
        detail: None,
    });
    host.reports(&[hello(NONCE), enforcing(), exit, bye(4, 0)], 127);
    let done = host.does(&RUN);
    assert_eq!((done.code, done.stderr.as_str()), (127, ""));
    assert_eq!(host.log()[0]["end_reason"], "start_failed");
}

#[test]
fn an_image_that_is_nowhere_is_named_with_the_remedy() {
    let host = Host::new();
    host.on("image", "exit 1");
    let done = host.does(&RUN);
    assert_eq!((done.code, host.log().len()), (125, 0));
    assert!(
        done.stderr.contains("no image `img`: docker has none"),
        "{done:?}"
    );
}

#[test]
fn an_image_that_is_not_here_is_pulled_without_touching_the_output() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    host.on(
        "image",
        "test -e pulled || exit 1; echo '{\"Entrypoint\":[\"/sandbox-init\"],\"Cmd\":[\"sh\"]}'",
    );
    host.on("pull", "echo progress; touch pulled");
    let done = host.does(&RUN);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert!(done.stderr.contains("progress"), "{done:?}");
}

#[test]
fn an_image_without_a_command_needs_one() {
    let host = Host::new();
    host.image("{}");
    let done = host.does(&RUN);
    assert_eq!(done.code, 78);
    assert!(done.stderr.contains("give one after `--`"), "{done:?}");
}

#[test]
fn without_an_engine_it_is_said_what_was_looked_for() {
    let host = Host::new();
    fs::remove_file(host.path("bin/docker")).unwrap();
    let mut command = host.collector(&RUN);
    command.env("PATH", host.path("bin"));
    let done = Done::of(command.output().unwrap());
    assert_eq!(
        (done.code, done.stderr.lines().count()),
        (125, 1),
        "{done:?}"
    );
    assert!(
        done.stderr.contains("no docker on PATH") && done.stderr.contains("no podman on PATH"),
        "{done:?}"
    );
}

#[test]
fn mistakes_in_the_request_are_one_line_each_and_code_78() {
    let host = Host::new();
    for (arguments, part) in [
        (&["run", "img"][..], "--allow example.com"),
        (&["run", "--allow", "*", "img"], "`*`"),
        (&["run", "--allow", "http://a.example/", "img"], "a.example"),
        (&["run", "--allow", "@githib", "img"], "preset"),
        (&["run", "--allow", "@tool:gem", "img"], "@tool:gem"),
        (
            &["run", "--allow", "a.example", "--user", "root", "img"],
            "--user root",
        ),
        (
            &["run", "--allow", "a.example", "--env", "A=b", "img"],
            "name only",
        ),
        (
            &["run", "--allow", "a.example", "-t", "img"],
            "leave --tty out",
        ),
    ] {
        let done = host.does(arguments);
        assert_eq!(
            (done.code, done.stderr.lines().count()),
            (78, 1),
            "{done:?}"
        );
        assert!(done.stderr.contains(part), "{done:?}");
    }
    assert_eq!(host.log().len(), 0);
}

#[test]
fn wrong_usage_is_code_2_and_help_is_none() {
    let host = Host::new();
    for (arguments, code) in [
        (&["run"][..], 2),
        (&["walk"], 2),
        (&[], 2),
        (&["run", "--network", "some", "img"], 2),
        (&["--help"], 0),
        (&["run", "--help"], 0),
        (&["--version"], 0),
    ] {
        assert_eq!(host.does(arguments).code, code, "{arguments:?}");
    }
}

#[test]
fn a_runtime_directory_that_is_not_ours_is_named_with_the_remedy() {
    let host = Host::new();
    fs::write(host.path("run/host-collector"), "a file").unwrap();
    let done = host.does(&RUN);
    assert_eq!(
        (done.code, done.stderr.lines().count()),
        (125, 1),
        "{done:?}"
    );
    assert!(
        done.stderr.contains("run/host-collector") && done.stderr.contains("XDG_RUNTIME_DIR"),
        "{done:?}"
    );
}

#[test]
fn standard_input_and_output_are_the_guest_s() {
    let host = Host::new();
    host.container("tr a-z A-Z; echo err >&2; exit 0", &ended(0));
    let mut child = host
        .collector(&["run", "-i", "--network", "none", "img"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stdout.as_str()), (0, "HELLO"));
    assert!(done.stderr.starts_with("err\n"), "{done:?}");
}

#[test]
fn a_signal_to_the_collector_reaches_the_container_and_the_run_is_recorded() {
    let host = Host::new();
    host.on("kill", "kill -s TERM $(cat guest)");
    host.container(
        "sleep 1000 & echo $! >guest; echo ready; wait $!; exit 143",
        &ended(143),
    );
    let mut child = host
        .collector(&["run", "--network", "none", "img"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(
        host.calls().contains("kill --signal TERM the-container"),
        "{}",
        host.calls()
    );
    assert_eq!(
        (&host.log()[0]["exit_code"], &host.log()[0]["end_reason"]),
        (&143.into(), &"stopped".into())
    );
}

#[test]
fn a_container_that_outlives_its_client_is_waited_for() {
    let host = Host::new();
    let running = r#"{"state":{"Running":true,"ExitCode":0,"StartedAt":"2026-11-29T16:44:43Z"},"networks":null}"#;
    host.container("exit 0", running);
    // The engine's `wait` returns when the container has ended: from then on the state is another.
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let waits = format!("    wait) echo '{}' >state ;;\n    version)", ended(4));
    executable(
        &host.path("bin/docker"),
        &docker.replacen("    version)", &waits, 1),
    );
    let done = host.does(&["run", "--network", "none", "img"]);
    assert_eq!(
        (done.code, &host.log()[0]["exit_code"]),
        (4, &4.into()),
        "{done:?}"
    );
}

#[test]
fn many_runs_at_once_leave_a_line_each_in_one_chain() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(host.does(&RUN).code, 0));
        }
    });
    let log = host.log();
    assert_eq!(log.len(), 8);
    assert!(log.iter().all(|line| line["egress_denied"] == 2));
    assert_eq!(
        log.iter().filter(|line| line.get("prev").is_none()).count(),
        1
    );
}

#[test]
fn presets_are_recorded_as_the_entries_that_they_stand_for() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let done = host.does(&["run", "--allow", "@mistral,a.example", "img"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        host.log()[0]["egress_allow"],
        serde_json::json!(["a.example", "api.mistral.ai", "codestral.mistral.ai"])
    );
}

#[test]
fn a_list_that_no_variable_can_hold_reaches_the_container_as_a_file() {
    let host = Host::new();
    host.reports(&whole(0), 0);
    let role = fs::read_to_string(host.path("role")).unwrap();
    host.on(
        "role",
        &format!(
            "echo \"$SANDBOX_EGRESS_ALLOW\" >said; cp \"${{socket%/*}}/allow.txt\" laid\n{role}"
        ),
    );
    let names: Vec<String> = (0..100_000).map(|n| format!("n{n}.example\n")).collect();
    fs::write(host.path("list"), names.concat()).unwrap();
    let file = format!("@{}", host.path("list").display());
    let done = host.does(&["run", "--allow", &file, "img"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        fs::read_to_string(host.path("said")).unwrap(),
        "@/run/sandbox-egress/host/allow.txt\n"
    );
    let laid = fs::read_to_string(host.path("laid")).unwrap();
    assert_eq!(laid.lines().count(), 100_000);
    assert_eq!(host.log()[0]["egress_allow_truncated"], true);
}
