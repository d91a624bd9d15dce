//! Channels that the engine's `exec` brings: chosen where no socket can be, and worth as much.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::Path,
};

use host_collector::environment::Environment;
use report::{Attach, Body, HostMessage};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Value;

use crate::{
    container::{bye, denied, enforcing, exit, hello, line, resume},
    engine::{Host, ended},
};

const RUN: [&str; 5] = ["run", "--allow", "a.example", "--transport", "exec"];

/// A host whose containers wait for a client to bring their channel. Of the parts that PID 1 has to
/// say each client is told one, and hangs up.
fn host(parts: &[&[Body]]) -> Host {
    let host = Host::new();
    let mut seq = 0;
    for (number, part) in parts.iter().enumerate() {
        let mut said = Vec::new();
        for body in *part {
            seq += 1;
            said.extend(line(seq, body.clone()));
        }
        fs::write(host.path(&format!("part-{number}")), said).unwrap();
    }
    mkfifoat(CWD, host.path("ended"), Mode::RUSR | Mode::WUSR).unwrap();
    host.container(
        "export -p >pid1; touch up-in; cat ended >/dev/null; exit 0",
        &ended(0),
    );
    let script = format!(
        "[ -e up-in ] || {{ echo 'it does not run yet' >&2; exit 1; }}
        . ./pid1; FAKE_PID_1='{}' '{}' --exact way::plays_pid_1_where_it_is_told_to >/dev/null
        ls part-* >/dev/null 2>&1 || echo >ended",
        host.path("").display(),
        std::env::current_exe().unwrap().display(),
    );
    host.on("exec", &script);
    host
}

#[test]
fn plays_pid_1_where_it_is_told_to() {
    let environment = Environment::of_process();
    let text = |name| environment.get(name).and_then(|value| value.to_str());
    let Some(dir) = text("FAKE_PID_1").map(Path::new) else {
        return;
    };
    let nonce = text("SANDBOX_REPORT_NONCE").unwrap();
    let names = ["SANDBOX_EGRESS_ALLOW", "SANDBOX_EGRESS_ALLOW_2"];
    let allow: String = names.into_iter().filter_map(text).collect();
    let digest = policy::Policy::parse(&allow);
    let digest = digest.unwrap().digest().to_string();
    let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut said = BufReader::new(stream.try_clone().unwrap()).lines();
    let attach = said.next().unwrap().unwrap();
    let attach = Attach::read(attach.as_bytes()).unwrap();
    let token = fs::read_to_string(dir.join("token")).ok();
    assert_eq!(attach.secret, token.as_deref().unwrap_or(nonce));
    if let Some(token) = token {
        stream.write_all(resume(&token).as_bytes()).unwrap();
    }
    let part = (0..9)
        .map(|n| dir.join(format!("part-{n}")))
        .find(|part| part.exists());
    let script = fs::read_to_string(part.as_ref().unwrap()).unwrap();
    let script = script.replace("NONCE", nonce).replace("DIGEST", &digest);
    stream.write_all(script.as_bytes()).unwrap();
    let last: Value = serde_json::from_str(script.lines().last().unwrap()).unwrap();
    let last = last["seq"].as_u64().unwrap();
    for line in said.map_while(Result::ok) {
        let said: HostMessage = serde_json::from_str(&line).unwrap();
        if let HostMessage::Welcome(welcome) = &said {
            fs::write(dir.join("token"), &welcome.resume_token).unwrap();
        }
        if said == (HostMessage::Ack { seq: last }) {
            break;
        }
    }
    fs::remove_file(part.unwrap()).unwrap();
}

fn greeting() -> Body {
    let Body::Hello(mut hello) = hello("NONCE") else {
        unreachable!()
    };
    hello.policy_digest = Some(report::Printable::new("DIGEST"));
    Body::Hello(hello)
}

fn whole() -> Vec<Body> {
    vec![
        greeting(),
        enforcing(),
        denied("evil.example", 2),
        exit(0),
        bye(5, 2),
    ]
}

/// What the line says of the channel and of what was refused.
fn verdict(host: &Host) -> String {
    let log = host.log();
    assert_eq!(log.len(), 1, "{log:?}");
    let line = log.first().unwrap();
    let channel = line.get("egress_channel").unwrap();
    let word = |name| channel.get(name).unwrap_or(&Value::Null);
    let words = ["state", "transport", "resumed"].map(word);
    let [state, transport, resumed] = words.map(|word| word.to_string().replace('"', ""));
    let counts = ["egress_denied", "egress_denied_at_least"];
    let counts = counts.map(|name| line.get(name).unwrap_or(&Value::Null).to_string());
    format!("{state} {transport} {resumed} {}", counts.join(" "))
}

#[test]
fn a_channel_that_the_engine_brings_is_as_good_as_a_socket() {
    let host = host(&[&whole()]);
    let done = host.does(&[&RUN[..], &["img"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "complete exec null 2 null");
    let calls = host.calls();
    let exec = "exec --interactive --user 0:0 --workdir / the-container /usr/local/bin/sandbox-entrypoint stream";
    assert!(calls.lines().any(|call| call == exec), "{calls}");
    assert!(
        !calls.contains("/channel"),
        "something was mounted: {calls}"
    );
    let nonce = fs::read_to_string(host.path("token")).unwrap();
    assert!(!calls.contains(&nonce), "the secret is in an argument");
}

#[test]
fn a_channel_that_breaks_is_brought_again_and_nothing_is_lost() {
    let parts = whole();
    let host = host(&[&parts[..2], &parts[2..3], &parts[3..]]);
    let done = host.does(&[&RUN[..], &["img"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "complete exec 2 2 null");
}

#[test]
fn a_container_that_ended_without_its_bye_is_interrupted() {
    let parts = whole();
    let host = host(&[&parts[..3]]);
    let done = host.does(&[&RUN[..], &["img"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "interrupted exec null null 2");
}

#[test]
fn where_the_engine_is_elsewhere_nothing_of_this_host_is_mounted() {
    let host = host(&[&whole()]);
    let mut collector = host.collector(&["run", "--allow", "a.example", "img"]);
    collector.env("DOCKER_HOST", "tcp://elsewhere.example:2375");
    assert!(collector.status().unwrap().success());
    assert_eq!(verdict(&host), "complete exec null 2 null");
    assert!(!host.calls().contains("/channel"), "{}", host.calls());
}

#[test]
fn where_nobody_comes_to_the_door_the_engine_is_asked() {
    let host = host(&[&whole()]);
    let done = host.does(&["run", "--allow", "a.example", "img"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "complete exec null 2 null");
    assert!(host.calls().contains("/channel"), "{}", host.calls());
}

#[test]
fn where_the_engine_mounts_nothing_of_this_host_it_is_launched_again_without() {
    for detach in [&[][..], &["--detach"]] {
        let host = host(&[&whole()]);
        fs::write(host.path("unmountable"), "").unwrap();
        let run = ["run", "--allow", "a.example"];
        let done = host.does(&[&run, detach, &["img"]].concat());
        assert_eq!(done.code, 0, "{done:?}");
        let why = "mounts nothing of this host's (docker: no such path): launching again";
        assert!(done.stderr.contains(why), "{done:?}");
        if !detach.is_empty() {
            let ended = host.does(&["finish", done.stdout.trim()]);
            assert_eq!(ended.code, 0, "{ended:?}");
            assert_eq!(host.log().len(), 2, "{:?}", host.log());
            continue;
        }
        assert_eq!(verdict(&host), "complete exec null 2 null");
    }
}

#[test]
fn another_launcher_is_not_told_to_mount_what_the_engine_refuses() {
    for (option, refuses, mounts) in [
        ("auto", true, false),
        ("auto", false, true),
        ("socket", true, true),
    ] {
        let host = host(&[&whole()]);
        if refuses {
            fs::write(host.path("unmountable"), "").unwrap();
        }
        let prepare = ["prepare", "--no-attend", "--transport", option];
        let done = host.does(&[&prepare[..], &["--allow", "a.example", "img"]].concat());
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.stdout.contains("/channel"), mounts, "{done:?}");
        let says = done.stderr.contains("mounts nothing of this host's");
        assert_eq!(says, !mounts, "{done:?}");
        let runs = fs::read_dir(host.path("run/host-collector/runs")).unwrap();
        assert_eq!(runs.count(), 1, "the first was to be forgotten");
    }
}

#[test]
fn a_container_that_is_refused_for_another_reason_or_with_a_socket_alone_is_launched_once() {
    for (option, create) in [("auto", "exit 1"), ("socket", "echo created")] {
        let host = host(&[&whole()]);
        fs::write(host.path("unmountable"), "").unwrap();
        host.on("create", create);
        let done = host.does(&["run", "--transport", option, "--allow", "a.example", "img"]);
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.stderr.contains("use --transport exec"), "{done:?}");
        let calls = host.calls();
        let launches = calls.lines().filter(|call| call.starts_with("run "));
        assert_eq!(launches.count(), 1, "{calls}");
        assert_eq!(host.log().len(), 0);
    }
}

#[test]
fn what_the_engine_says_instead_is_the_reason() {
    let host = host(&[]);
    host.on(
        "exec",
        "echo 'exec is forbidden here' >&2; echo >ended; exit 1",
    );
    let best_effort = [&RUN[..], &["--report", "best-effort", "img"]].concat();
    let done = host.does(&best_effort);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "never_connected null null null null");
    let reason = host.log()[0]["egress_channel"]["reason"].to_string();
    assert!(reason.contains("exec is forbidden here"), "{reason}");
}

#[test]
fn a_list_that_is_too_long_for_a_variable_goes_on_in_others() {
    let host = host(&[&whole()]);
    let names: Vec<String> = (0..10_000).map(|n| format!("name-{n}.example")).collect();
    fs::write(host.path("list.txt"), names.join("\n")).unwrap();
    let list = format!("@{}", host.path("list.txt").display());
    let done = host.does(&["run", "--transport", "exec", "--allow", &list, "img"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(verdict(&host), "complete exec null 2 null");
}
