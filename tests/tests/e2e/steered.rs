//! Runs that are changed while they go on: another allowlist, and their end.

use std::process::Command;

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running, output_of},
};
use serde_json::Value;

use crate::{LabTest, attended::unheard};

pub(crate) const TESTS: [(&str, LabTest); 4] = [
    ("a-list-is-changed-while-the-run-lasts", changed),
    (
        "a-list-is-changed-where-addresses-decide",
        changed_by_address,
    ),
    ("a-guest-that-does-not-end-is-killed", killed),
    (
        "a-guest-is-told-once-to-end-however-often-that-is-asked-for",
        told_once,
    ),
];

/// Reaches one host over every way there is, before it is allowed, while it is, and after that.
const GUEST: &str = r"
import http.client, os, signal, socket, subprocess, sys

def step(name):
    with open('said', 'w') as said:
        said.write(name + '\n')
    with open('go') as go:
        go.readline()

def check(is_so, what):
    if not is_so:
        print(what, file=sys.stderr)
        sys.exit(9)

def tls():
    return subprocess.run(['curl', '-sS', '-m', '10', 'https://denied.test/']).returncode == 0

def dial(to):
    try:
        return socket.create_connection(to, 5)
    except OSError:
        return None

kept = http.client.HTTPConnection('127.0.0.1', 3128)
def status():
    kept.request('GET', 'http://denied.test/')
    answer = kept.getresponse()
    answer.read()
    return answer.status

check(not tls() and status() == 403, 'reached before it was allowed')
connection = kept.sock
step('refused')
check(tls() and status() == 200, 'not reached where it was allowed')
address = socket.getaddrinfo('git.test', 22, socket.AF_INET, socket.SOCK_STREAM)[0][4]
opened = dial(address)
check(opened, 'not opened where it was allowed')
step('reached')
check(not tls() and status() == 403, 'reached where it was denied')
check(kept.sock is connection, 'the connection was not kept alive')
check(dial(address) is None, 'still open where it was denied')
opened.sendall(b'an established connection goes on')
opened.shutdown(socket.SHUT_WR)
echoed = opened.makefile('rb').read()
check(echoed.endswith(b'an established connection goes on'), 'what was established did not go on')
seen = os.popen('curl -sS http://egress.sandbox/policy').read()
check('!denied.test' in seen and 'generation: 3' in seen, seen)
check(not os.access('/run/sandbox-egress', os.X_OK), 'the channel can be seen')
for name in ['control.sock', 'policy.jsonl', 'host/policy-2']:
    check(not os.path.exists('/run/sandbox-egress/' + name), name)
step('refused again')
signal.pause()
";

/// What a line or an answer says at this place.
fn at<'a>(value: &'a Value, place: &str) -> &'a Value {
    value.pointer(place).unwrap_or(&Value::Null)
}

fn changed(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run", "--detach"]);
    let run = output_of(command.args([BASE, "--", "python3", "-c", GUEST]))?;
    let run = run.trim();
    let change = |verb: &str, entries: &[&str]| -> anyhow::Result<Value> {
        let mut command = stage.collector();
        command.args([verb, "--json", run]).args(entries);
        Ok(serde_json::from_str(&output_of(&mut command)?)?)
    };
    let range = lab.internet().subnet().v4_net();
    let entries = [
        format!("denied.test@{range}"),
        format!("git.test:22@{range}"),
    ];
    let entries = entries.each_ref().map(String::as_str);
    stage.said()?;
    let allowed = change("allow", &entries)?;
    ensure!(at(&allowed, "/generation") == 2, "{allowed}");
    stage.go_on()?;
    stage.said()?;
    let denied = change("deny", &entries)?;
    let added = serde_json::json!(["!denied.test", "!git.test:22"]);
    ensure!(*at(&denied, "/added") == added, "{denied}");
    let again = change("deny", &entries)?;
    ensure!(
        at(&again, "/changed") == false && at(&again, "/generation") == 3,
        "{again}"
    );
    stage.go_on()?;
    stage.said()?;
    let mut stop = stage.collector();
    let line = output_of(stop.args(["stop", "--json", run]))?;
    let line: Value = serde_json::from_str(&line)?;
    let policy = line.get("egress_policy").context("no policy")?;
    ensure!(
        at(policy, "/generation") == 3 && at(policy, "/digest") == at(&denied, "/digest"),
        "{line}"
    );
    let changes = at(policy, "/changes").as_array().context("no changes")?;
    let states: Vec<_> = changes.iter().map(|change| at(change, "/state")).collect();
    ensure!(states == ["in_force", "in_force"], "{line}");
    let found = ["/egress_channel/state", "/end_reason", "/exit_code"]
        .map(|at| line.pointer(at).cloned().unwrap_or_default());
    ensure!(
        found == ["complete".into(), "stopped".into(), Value::from(143)],
        "{line}"
    );
    let reasons = at(&line, "/egress_denied_by_reason");
    ensure!(
        at(reasons, "/not_allowed") == 2
            && at(reasons, "/denied_by_rule") == 2
            && at(reasons, "/packet") == 1,
        "{line}"
    );
    let late = stage.collector().args(["allow", run, "a.test"]).output()?;
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    ensure!(
        late.status.code() == Some(2) && said.contains("has ended"),
        "{said}"
    );
    Ok(())
}

/// The same without a proxy: by the addresses that the names have.
const GUEST_BY_ADDRESS: &str = r"
import http.client, signal, socket, sys

def step(name):
    with open('said', 'w') as said:
        said.write(name + '\n')
    with open('go') as go:
        go.readline()

def check(is_so, what):
    if not is_so:
        print(what, file=sys.stderr)
        sys.exit(9)

def reach(*to):
    try:
        return socket.create_connection(to, 5)
    except OSError:
        return None

kept = http.client.HTTPConnection('denied.test')
def status():
    kept.request('GET', '/')
    answer = kept.getresponse()
    answer.read()
    return answer.status

first = reach('allowed.test', 443)
check(first and not reach('denied.test', 80), 'reached before it was allowed')
step('refused')
check(status() == 200 and reach('allowed.test', 8080), 'not reached where it was allowed')
check(not reach('denied.test', 443), 'reached on another port')
check(reach('allowed.test', 443), 'closed by a list that has it too')
connection = kept.sock
step('reached')
check(not reach('denied.test', 80) and not reach('allowed.test', 8080), 'reached where it was denied')
check(status() == 200 and kept.sock is connection, 'what was established did not go on')
check(reach('allowed.test', 443), 'closed by a list that has it too')
step('refused again')
signal.pause()
";

fn changed_by_address(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?.with(&["--enforce=address"]);
    let mut command = stage.launch(&["run", "--detach"]);
    let run = output_of(command.args([BASE, "--", "python3", "-c", GUEST_BY_ADDRESS]))?;
    let run = run.trim();
    let change = |verb: &str, entries: &[&str]| -> anyhow::Result<Value> {
        let mut command = stage.collector();
        command.args([verb, "--json", run]).args(entries);
        Ok(serde_json::from_str(&output_of(&mut command)?)?)
    };
    let range = lab.internet().subnet().v4_net();
    let entries = [
        format!("denied.test:80@{range}"),
        // Ports enough to have rules of their own.
        format!("allowed.test:8000-9000@{range}"),
        "nosuch.test".to_owned(),
        "*.api.allowed.test".to_owned(),
    ];
    stage.said()?;
    let allowed = change("allow", &entries.each_ref().map(String::as_str))?;
    let told = at(&allowed, "/warnings/0").as_str().unwrap_or_default();
    ensure!(
        told == "not resolved yet: nosuch.test; not enforced by address, and allowing nothing: \
                 *.api.allowed.test",
        "{allowed}"
    );
    stage.go_on()?;
    stage.said()?;
    let denied = change("deny", &["denied.test:80", "allowed.test:8000-9000"])?;
    ensure!(at(&denied, "/generation") == 3, "{denied}");
    // A list of which nothing can be held is none: the one before it stands.
    let wide = (0..256).map(|n| format!("n{n}.test:{}-{}", 10_000 + n * 20, 10_018 + n * 20));
    let wide: Vec<String> = wide.collect();
    let refused = stage
        .collector()
        .args(["allow", run])
        .args(&wide)
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("at most 256"),
        "{refused:?}"
    );
    stage.go_on()?;
    stage.said()?;
    let line = output_of(stage.collector().args(["stop", "--json", run]))?;
    let line: Value = serde_json::from_str(&line)?;
    ensure!(
        at(&line, "/egress_enforcement") == "address"
            && at(&line, "/egress_channel/state") == "complete"
            && at(&line, "/processes/outlived_root") == 0,
        "{line}"
    );
    let policy = at(&line, "/egress_policy");
    let changes = at(policy, "/changes").as_array().context("no changes")?;
    let states: Vec<_> = changes.iter().map(|change| at(change, "/state")).collect();
    ensure!(
        states == ["in_force", "in_force", "refused"]
            && at(policy, "/digest") == at(&denied, "/digest"),
        "{line}"
    );
    ensure!(at(policy, "/changes/0/detail") == told, "{line}");
    // Before the first list, on the other port, and after the second.
    let packets = at(&line, "/egress_denied_by_reason/packet");
    ensure!(packets.as_u64().is_some_and(|count| count >= 4), "{line}");
    let reached = lab.internet().account()?.reached;
    let expected = [
        "allowed.test:443/tcp",
        "allowed.test:8080/tcp",
        "denied.test:80/tcp",
    ];
    ensure!(reached.iter().eq(&expected), "{reached:?}");
    Ok(())
}

/// Its exit code is how often it was told, and 20.
const COUNTING: &str = "n=0; trap 'n=$((n + 1)); echo >said' TERM; echo >said
    until read line <go; do :; done; exit $((20 + n))";

fn told_once(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run"]);
    let running = Running::start(command.args([BASE, "--", "bash", "-c", COUNTING]))?;
    stage.said()?;
    let run = stage.run_id()?;
    let stop = |grace: &str| {
        let mut verb = stage.collector();
        Running::start(verb.args(["stop", "--json", "--grace", grace, &run]))
    };
    let first = stop("60")?;
    stage.said()?;
    let second = stop("59")?;
    stage.stored(&run, "stop", "59000")?;
    // Orders are heard in the order in which they were given.
    output_of(stage.collector().args(["allow", &run, "more.test"]))?;
    stage.go_on()?;
    for stopping in [first, second] {
        let Finished { code, stderr, .. } = stopping.finish()?;
        ensure!(code == 0, "{code}: {stderr}");
    }
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 21, "{code}: {stderr}");
    Ok(())
}

fn killed(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let guest = "trap '' TERM; echo >said; while true; do read -t 1000 line <go; done";
    let mut collector = unheard(&stage, guest)?;
    let run = stage.run_id()?;
    let stop: &mut Command = &mut stage.collector();
    let line = output_of(stop.args(["stop", "--json", "--grace", "1", &run]))?;
    let line: Value = serde_json::from_str(&line)?;
    ensure!(
        at(&line, "/end_reason") == "stopped" && at(&line, "/signal") == 9,
        "{line}"
    );
    ensure!(at(&line, "/egress_channel/state") == "complete", "{line}");
    let code = collector.wait()?.code();
    ensure!(code == Some(137), "{code:?}");
    Ok(())
}
