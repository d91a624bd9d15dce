//! Runs that are attended by a process of their own: detached, prepared for another program, or left
//! by a collector that was killed.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

use report::Body;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::{
    container::{AGAIN, NONCE, bye, connect_again, denied, enforcing, exit, hello, line, lines},
    engine::{Done, Host, ended},
};

const RUN: [&str; 4] = ["run", "--allow", "a.example", "img"];
const DETACHED: [&str; 5] = ["run", "--detach", "--allow", "a.example", "img"];

/// A container of which two refusals are heard before it is let go on, and one after that.
fn in_two_parts(code: i32) -> Vec<u8> {
    let first = [hello(NONCE), enforcing(), denied("evil.example", 2)];
    let second = [
        line(4, denied("late.example", 1)),
        line(5, exit(code)),
        line(6, bye(6, 3)),
    ];
    [lines(&first), AGAIN.into(), second.concat()].concat()
}

fn line_of(done: &Done) -> Value {
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

/// A run of which the collector was killed when it had heard the first part.
fn killed(host: &Host) -> String {
    host.says(&in_two_parts(7), 7);
    fs::write(host.path("state"), ended(7)).unwrap();
    let mut collector = host
        .collector(&RUN)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    host.heard();
    collector.kill().unwrap();
    collector.wait().unwrap();
    let runs = host.runs();
    assert_eq!((runs.len(), host.log().len()), (1, 0), "{runs:?}");
    runs.into_iter().next().unwrap()
}

#[test]
fn a_detached_run_has_a_line_at_its_launch_and_one_at_its_end() {
    let host = Host::new();
    host.says(&in_two_parts(7), 7);
    fs::write(host.path("state"), ended(7)).unwrap();
    let launched = host.does(&DETACHED);
    assert_eq!(
        (launched.code, launched.stderr.as_str()),
        (0, ""),
        "{launched:?}"
    );
    let run = launched.stdout.trim_end();
    host.heard();
    let [first] = &host.log()[..] else {
        panic!("{:?}", host.log())
    };
    assert_eq!(first["run_id"], run);
    assert_eq!(first["exit_code"], Value::Null);
    assert_eq!(
        (first.get("finished"), &first["detached"]),
        (None, &true.into())
    );
    let listed = host.does(&["list"]).stdout;
    assert!(
        listed.contains(&run[..12]) && listed.contains("unfinished"),
        "{listed}"
    );
    assert_eq!(host.does(&["list", "--json"]).stdout.lines().count(), 1);
    let shown = host.does(&["show", "last"]).stdout;
    assert!(shown.contains("not yet"), "{shown}");
    host.release();
    let last = line_of(&host.does(&["finish", run]));
    assert_eq!(host.log().len(), 2);
    assert_eq!(line_of(&host.does(&["list", "--json"])), last);
    assert_eq!(
        (&last["finished"], &last["exit_code"]),
        (&true.into(), &7.into())
    );
    assert_eq!(last["egress_channel"]["state"], "complete", "{last}");
    assert_eq!(
        (&last["egress_denied"], &last["detached"]),
        (&3.into(), &true.into())
    );
    assert_eq!(last["time"], first["time"]);
    assert!(host.runs().is_empty());
    assert!(
        host.calls().contains("rm --force the-container"),
        "{}",
        host.calls()
    );
}

#[test]
fn who_attends_outlives_the_terminal_of_who_launched() {
    let host = Host::new();
    host.says(&in_two_parts(0), 0);
    // A process group such as a terminal hangs up on.
    let mut collector = host.collector(&DETACHED);
    // Whoever launches may leave something open by mistake.
    let leaked = fs::File::create(host.path("leaked")).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let child = collector
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let group = Pid::from_child(&child);
    let launched = Done::of(child.wait_with_output().unwrap());
    assert_eq!(launched.code, 0, "{launched:?}");
    host.heard();
    // The engine's client and its container are not ours to keep: they are played in that group.
    let attends = attenders(&host);
    let [pid] = attends[..] else {
        panic!("{attends:?}")
    };
    let session = rustix::process::getsid(Some(pid)).unwrap();
    assert_eq!(session, pid);
    assert_ne!(rustix::process::getpgid(Some(pid)).unwrap(), group);
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let links: Vec<_> = open
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect();
    assert!(!links.contains(&host.path("leaked")), "{links:?}");
    let cwd = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).unwrap();
    assert_eq!(cwd, std::path::Path::new("/"));
    host.release();
    let run = launched.stdout.trim_end();
    assert_eq!(line_of(&host.does(&["finish", run]))["egress_denied"], 3);
    let _ = kill_process_group(group, Signal::HUP);
}

/// The processes that attend to this host's runs.
pub(crate) fn attenders(host: &Host) -> Vec<Pid> {
    let runs = host.runs();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let argv = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let is_ours = argv.contains("--inherited") && runs.iter().any(|run| argv.contains(run));
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|_| is_ours).and_then(Pid::from_raw) {
            found.push(pid);
        }
    }
    found
}

#[test]
fn a_detached_launch_that_the_entrypoint_refuses_is_told_with_its_own_words() {
    let host = Host::new();
    host.container("exit 78", &ended(78));
    let done = host.does(&DETACHED);
    assert_eq!((done.code, done.stdout.as_str()), (78, ""), "{done:?}");
    assert_eq!(done.stderr, "host-collector: sandbox-entrypoint: why\n");
    assert_eq!(host.log().len(), 0);
}

#[test]
fn a_detached_launch_that_the_engine_refuses_is_told_and_leaves_nothing() {
    let host = Host::new();
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let refuses = docker.replacen(
        "    run)\n",
        "    run) echo 'docker: no room' >&2; exit 125 ;;\n    ran)\n",
        1,
    );
    crate::engine::executable(&host.path("bin/docker"), &refuses);
    let done = host.does(&DETACHED);
    assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{done:?}");
    assert!(done.stderr.starts_with("docker: no room\n"), "{done:?}");
    assert!(
        done.stderr.contains("docker did not start the container"),
        "{done:?}"
    );
    assert_eq!(host.log().len(), 0);
}

#[test]
fn a_detached_run_without_an_allowlist_is_launched_when_its_container_runs() {
    let host = Host::new();
    host.container("cat hold", &ended(5));
    let launched = host.does(&["run", "-d", "--network", "none", "img"]);
    assert_eq!(launched.code, 0, "{launched:?}");
    assert_eq!(host.log().len(), 1);
    host.release();
    let line = line_of(&host.does(&["finish", launched.stdout.trim_end()]));
    assert_eq!(
        (&line["exit_code"], &line["end_reason"]),
        (&5.into(), &"exited".into())
    );
    assert_eq!(line["egress_channel"]["state"], "not_applicable");
}

#[test]
fn a_run_whose_collector_was_killed_is_complete_when_another_verb_comes_by() {
    let host = Host::new();
    let run = killed(&host);
    let elsewhere = host.does(&["list", "--audit-dir", "/nowhere"]).stdout;
    assert!(!elsewhere.contains(&run[..12]), "{elsewhere}");
    let shown = host.does(&["show", &run[..6]]).stdout;
    assert!(
        shown.contains("not yet") && shown.contains("a.example"),
        "{shown}"
    );
    // Each verb would start one, and one of them does.
    for _ in 0..3 {
        assert_eq!(host.does(&["list"]).code, 0);
    }
    assert_eq!(attenders(&host).len(), 1);
    host.release();
    let line = line_of(&host.does(&["finish", &run]));
    assert_eq!(line["egress_channel"]["state"], "complete", "{line}");
    assert_eq!(line["egress_channel"]["resumed"], 1, "{line}");
    assert_eq!(
        (&line["egress_denied"], &line["exit_code"]),
        (&3.into(), &7.into())
    );
    assert_eq!((host.log().len(), host.runs().len()), (1, 0));
}

#[test]
fn a_run_that_ended_while_nobody_collected_leaves_lower_bounds() {
    let host = Host::new();
    let run = killed(&host);
    rustix::process::kill_process(container_of(&host), Signal::KILL).unwrap();
    let line = line_of(&host.does(&["finish", &run]));
    assert_eq!(line["egress_channel"]["state"], "interrupted", "{line}");
    assert_eq!(
        (&line["egress_denied_at_least"], line.get("egress_denied")),
        (&2.into(), None)
    );
    assert_eq!(
        (&line["exit_code"], line.get("end_reason")),
        (&7.into(), None)
    );
    assert_eq!((host.log().len(), host.runs().len()), (1, 0));
}

/// The process that plays the container.
fn container_of(host: &Host) -> Pid {
    let script = format!("FAKE_CONTAINER_SCRIPT={}", host.path("script").display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let argv = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let plays = environment
            .split(|&b| b == 0)
            .any(|var| var == script.as_bytes());
        if plays && argv.contains("plays_a_container") {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            return Pid::from_raw(pid.unwrap()).unwrap();
        }
    }
    unreachable!("no container")
}

#[test]
fn a_container_that_is_gone_leaves_what_was_reported() {
    let host = Host::new();
    let run = killed(&host);
    rustix::process::kill_process(container_of(&host), Signal::KILL).unwrap();
    fs::remove_file(host.path("made")).unwrap();
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let gone = docker.replacen("    container)", "    container) exit 1 ;;\n    gone)", 1);
    crate::engine::executable(&host.path("bin/docker"), &gone);
    let line = line_of(&host.does(&["finish", &run]));
    assert_eq!(line["egress_channel"]["state"], "interrupted", "{line}");
    assert_eq!(
        (&line["exit_code"], line.get("ended")),
        (&Value::Null, None),
        "{line}"
    );
    assert_eq!((host.log().len(), host.runs().len()), (1, 0));
}

#[test]
fn two_that_recover_at_once_leave_one_line() {
    let host = Host::new();
    let run = killed(&host);
    rustix::process::kill_process(container_of(&host), Signal::KILL).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| host.does(&["list"]));
        }
    });
    line_of(&host.does(&["finish", &run]));
    assert_eq!((host.log().len(), host.runs().len()), (1, 0));
}

#[test]
fn a_run_that_was_seen_to_begin_has_an_end_though_its_container_is_gone() {
    let host = Host::new();
    host.container("cat hold", &ended(5));
    let launched = host.does(&["run", "-d", "--network", "none", "img"]);
    let [pid] = attenders(&host)[..] else {
        panic!("{launched:?}")
    };
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    host.released(launched.stdout.trim_end());
    host.release();
    rustix::fs::flock(
        fs::File::create(host.path("running")).unwrap(),
        FlockOperation::LockShared,
    )
    .unwrap();
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let gone = docker.replacen("    container)", "    container) exit 1 ;;\n    gone)", 1);
    crate::engine::executable(
        &host.path("bin/docker"),
        &gone.replacen("    ps)", "    ps) ;;\n    px)", 1),
    );
    let line = line_of(&host.does(&["finish", launched.stdout.trim_end()]));
    assert_eq!(
        (&line["finished"], &line["exit_code"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(host.log().len(), 2);
}

/// What `prepare` printed, as the launcher's command.
fn launcher(host: &Host, prepared: &Value) -> Command {
    let mut command = host.collector(&[]);
    let mut docker = Command::new(host.path("bin/docker"));
    for (name, value) in command.get_envs() {
        docker.env(name, value.unwrap());
    }
    command = docker;
    command.args(
        prepared["arguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap()),
    );
    for (name, value) in prepared["environment"].as_object().unwrap() {
        command.env(name, value.as_str().unwrap());
    }
    command.stdin(Stdio::null());
    command
}

const PREPARE: [&str; 7] = [
    "prepare",
    "--agent",
    "robot",
    "--allow",
    "a.example",
    "img",
    "--",
];

fn prepared(host: &Host, more: &[&str]) -> Value {
    let arguments = [&PREPARE[..1], more, &PREPARE[1..], &["make", "test"]].concat();
    let done = host.does(&arguments);
    line_of(&done)
}

#[test]
fn a_run_that_another_program_launches_is_recorded_as_if_it_were_ours() {
    let host = Host::new();
    let whole = [
        hello(NONCE),
        enforcing(),
        denied("evil.example", 2),
        exit(3),
        bye(5, 2),
    ];
    host.reports(&whole, 3);
    let prepared = prepared(&host, &[]);
    assert_eq!(
        (&prepared["engine"], &prepared["arguments"][0]),
        (&"docker".into(), &"run".into())
    );
    assert_eq!(
        prepared["options"]["entrypoint"][0],
        "/usr/local/bin/sandbox-entrypoint"
    );
    assert_eq!(prepared["command"], serde_json::json!(["make", "test"]));
    let launched = launcher(&host, &prepared).status().unwrap();
    assert_eq!(launched.code(), Some(3));
    let run = prepared["run_id"].as_str().unwrap();
    let line = line_of(&host.does(&["finish", run, "--exit-code", "3"]));
    assert_eq!(line["egress_channel"]["state"], "complete", "{line}");
    assert_eq!(
        (&line["agent"], &line["exit_code"]),
        (&"robot".into(), &3.into())
    );
    assert_eq!((host.log().len(), host.runs().len()), (1, 0));
    // The container is its launcher's, to look into and to remove.
    assert!(
        !host.calls().contains("rm --force the-container"),
        "{}",
        host.calls()
    );
    // Who asks again, or late, gets the same.
    assert_eq!(line_of(&host.does(&["finish", &run[..8]])), line);
}

#[test]
fn a_launcher_that_removes_its_container_says_how_it_ended() {
    let host = Host::new();
    let docker = fs::read_to_string(host.path("bin/docker")).unwrap();
    let gone = docker.replacen("    container)", "    container) exit 1 ;;\n    gone)", 1);
    crate::engine::executable(&host.path("bin/docker"), &gone);
    host.container("rm made; exit 4", &ended(4));
    let done = host.does(&["prepare", "--network", "none", "img"]);
    let prepared = line_of(&done);
    launcher(&host, &prepared).status().unwrap();
    let run = prepared["run_id"].as_str().unwrap();
    let told = [
        "finish",
        run,
        "--exit-code",
        "4",
        "--end-reason",
        "timed-out",
    ];
    let line = line_of(&host.does(&told));
    assert_eq!(
        (&line["exit_code"], &line["end_reason"]),
        (&4.into(), &"timed_out".into())
    );
}

#[test]
fn a_prepared_run_that_nobody_starts_is_no_run() {
    let host = Host::new();
    let prepared = prepared(&host, &["--within", "1"]);
    let run = prepared["run_id"].as_str().unwrap();
    // Nobody says anything: it is given up by itself.
    host.released(run);
    assert!(host.runs().is_empty());
    let done = host.does(&["finish", run]);
    assert!(
        done.code != 0 && done.stderr.contains("no line"),
        "{done:?}"
    );
    assert_eq!(host.log().len(), 0);
}

#[test]
fn a_prepared_run_that_its_launcher_gives_up_is_no_run() {
    let host = Host::new();
    let run = prepared(&host, &[])["run_id"].as_str().unwrap().to_owned();
    let done = host.does(&["finish", &run, "--exit-code", "125"]);
    assert!(done.code != 0 && done.stderr.contains(&run), "{done:?}");
    assert_eq!((host.log().len(), host.runs().len()), (0, 0));
}

#[test]
fn a_run_that_is_attended_by_nobody_waits_for_who_will() {
    let host = Host::new();
    let whole = [hello(NONCE), enforcing(), exit(0), bye(4, 0)];
    host.reports(&whole, 0);
    let prepared = prepared(&host, &["--no-attend"]);
    assert!(attenders(&host).is_empty());
    let run = prepared["run_id"].as_str().unwrap();
    assert_eq!(host.does(&["list"]).code, 0);
    assert!(attenders(&host).is_empty());
    let attender = host
        .collector(&["attend", &run[..6]])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The socket is there when it attends.
    let socket = host
        .path("run/host-collector/runs")
        .join(run)
        .join("channel/report.sock");
    drop(connect_again(&socket));
    let second = host.does(&["attend", run]);
    assert!(
        second.code == 125 && second.stderr.contains("attended by another process"),
        "{second:?}"
    );
    assert!(launcher(&host, &prepared).status().unwrap().success());
    let done = Done::of(attender.wait_with_output().unwrap());
    assert!(
        done.code == 0 && done.stderr.contains("exited 0; refused nothing"),
        "{done:?}"
    );
    assert_eq!(host.log()[0]["egress_channel"]["state"], "complete");
}

#[test]
fn what_names_no_run_is_said_with_a_remedy() {
    let host = Host::new();
    for verb in ["attend", "finish"] {
        for run in ["abc", "", "../..", "zz"] {
            let done = host.does(&[verb, run]);
            assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
            assert!(done.stderr.contains("no run"), "{done:?}");
        }
    }
    let inherited = host.does(&["attend", "--inherited", "abc"]);
    assert_ne!(inherited.code, 0);
}

#[test]
fn no_secret_of_a_run_is_left_behind() {
    let host = Host::new();
    let whole: [Body; 4] = [hello(NONCE), enforcing(), exit(0), bye(4, 0)];
    host.reports(&whole, 0);
    let prepared = prepared(&host, &[]);
    let nonce = prepared["environment"]["SANDBOX_REPORT_NONCE"]
        .as_str()
        .unwrap();
    assert!(!prepared["arguments"].to_string().contains(nonce));
    launcher(&host, &prepared).status().unwrap();
    let line = line_of(&host.does(&["finish", prepared["run_id"].as_str().unwrap()]));
    let kept = fs::read_to_string(format!(
        "{}/journal.jsonl",
        line["evidence"].as_str().unwrap()
    ));
    assert!(!format!("{line}{}{}", kept.unwrap(), host.calls()).contains(nonce));
}
