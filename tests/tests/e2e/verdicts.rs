//! What a record vouches for, where no case can bring it about: a container that cannot report or
//! finds nobody, and more names than any line holds. `complete`, `gap`, `interrupted` and
//! `not_applicable` are cases.

use std::{fs, process::Command};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running, output_of},
    trials::LabTest,
};
use serde_json::Value;

use crate::{by_hand, image::Image};

pub(crate) const TESTS: [(&str, LabTest); 5] = [
    (
        "a-run-that-must-report-and-cannot-is-refused",
        deaf_and_required,
    ),
    (
        "a-run-that-need-not-report-and-cannot-has-never-connected",
        deaf_and_best_effort,
    ),
    (
        "a-run-of-another-launcher-s-without-its-socket-has-never-connected",
        unlinked,
    ),
    (
        "a-run-that-need-not-report-and-does-is-complete",
        best_effort,
    ),
    (
        "a-sample-of-a-hundred-thousand-names-is-half-the-heaviest-and-half-anybody",
        sampled,
    ),
];

const REFUSED: &str = "curl -sS https://denied.test/; curl -sS https://allowed.test/; exit 3";

fn run(stage: &Stage<'_>, options: &[&str], image: &str, guest: &str) -> anyhow::Result<Finished> {
    let mut command: Command = stage.launch(&["run"]);
    command
        .args(options)
        .args([image, "--", "bash", "-c", guest]);
    Running::start(&mut command)?.finish()
}

fn deaf_and_required(lab: &Lab) -> anyhow::Result<()> {
    let (stage, image) = (Stage::set(lab)?, Image::deaf(lab, "deaf-required")?);
    let Finished {
        code,
        stdout,
        stderr,
    } = run(&stage, &["--transport=socket"], &image.name, "echo started")?;
    ensure!(code == 125 && stdout.is_empty(), "{code}: {stdout}{stderr}");
    ensure!(
        stderr.lines().count() == 1 && stderr.contains("/nowhere/report.sock"),
        "{stderr}"
    );
    ensure!(
        stage.files.session_line()?.is_none(),
        "a line for what was never launched"
    );
    Ok(())
}

/// Refused and allowed as ever, and nothing of it is known: not even that nothing was refused.
fn never_connected(line: &Value) -> anyhow::Result<()> {
    let said = |at| line.pointer(at).cloned().unwrap_or_default();
    ensure!(
        said("/egress_channel/state") == "never_connected"
            && said("/egress_denied").is_null()
            && said("/egress_denied_at_least").is_null()
            && said("/egress_enforcement").is_null()
            && said("/exit_code") == 3,
        "{line}"
    );
    Ok(())
}

fn deaf_and_best_effort(lab: &Lab) -> anyhow::Result<()> {
    let (stage, image) = (Stage::set(lab)?, Image::deaf(lab, "deaf-best-effort")?);
    let options = ["--transport=socket", "--report=best-effort"];
    let Finished { code, stderr, .. } = run(&stage, &options, &image.name, REFUSED)?;
    ensure!(code == 3, "{code}: {stderr}");
    never_connected(&stage.files.session_line()?.context("no line")?)?;
    let account = lab.internet().account()?;
    ensure!(
        account.reached.iter().eq(["allowed.test:443/tcp"]),
        "{account:?}"
    );
    Ok(())
}

/// Prepared for another program, whose container finds nobody: the socket was taken away meanwhile.
fn unlinked(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut prepare = stage.launch(&["prepare"]);
    prepare.args(["--transport=socket", "--report=best-effort"]);
    prepare.args([BASE, "--", "bash", "-c", REFUSED]);
    let prepared: Value = serde_json::from_str(&output_of(&mut prepare)?)?;
    let run = stage.run_id()?;
    let runs = stage.runtime().join("host-collector/runs");
    fs::remove_file(runs.join(&run).join("channel/report.sock"))?;
    let Finished { code, stderr, .. } = by_hand::finish(launch(lab, &prepared)?)?;
    ensure!(code == 3, "{code}: {stderr}");
    never_connected(&stage.finish(&run)?)?;
    output_of(&mut lab.command(["rm", "--force", &lab.container()?]))?;
    let account = lab.internet().account()?;
    ensure!(
        account.reached.iter().eq(["allowed.test:443/tcp"]),
        "{account:?}"
    );
    Ok(())
}

/// What a launcher makes of what `prepare` tells it.
fn launch(lab: &Lab, prepared: &Value) -> anyhow::Result<Command> {
    let mut command = lab.command([]);
    for argument in prepared["arguments"].as_array().context("no arguments")? {
        command.arg(argument.as_str().context("no argument")?);
    }
    for (name, value) in prepared["environment"]
        .as_object()
        .context("no variables")?
    {
        command.env(name, value.as_str().context("no value")?);
    }
    Ok(command)
}

fn best_effort(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let Finished { code, stderr, .. } = run(&stage, &["--report=best-effort"], BASE, REFUSED)?;
    ensure!(code == 3, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    let said = |at| line.pointer(at).cloned().unwrap_or_default();
    ensure!(
        said("/egress_channel/state") == "complete" && said("/egress_denied") == 1,
        "{line}"
    );
    Ok(())
}

/// A hundred thousand invented names, then sixteen that are wanted, fifty times each, and one attempt
/// of a kind of its own. Those that were not told apart are one of the heaviest, without a name.
const FLOOD: &str = r#"
import threading
from guest import *
stream = connect()
send = stream.makefile("wb", 1 << 20)
ask = b"GET http://%s.test/ HTTP/1.1\r\nHost: %s.test\r\n\r\n"
def requests():
    for n in range(100000):
        name = b"n%d" % n
        send.write(ask % (name, name))
    for n in range(800):
        name = b"heavy%d" % (n % 16)
        send.write(ask % (name, name))
    send.flush()
thread = threading.Thread(target=requests)
thread.start()
answered, rest = 0, b""
while answered < 100800:
    rest += stream.recv(1 << 20)
    answered += rest.count(b"HTTP/1.1 403")
    rest = rest[-11:]
thread.join()
print(codes(say(CONNECT % (b"203.0.113.9", b"x"))))
"#;

fn sampled(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run"]);
    command.args([BASE, "--", "/usr/bin/python3", "-c", FLOOD]);
    let Finished {
        code,
        stdout,
        stderr,
    } = Running::start(&mut command)?.finish()?;
    ensure!(code == 0 && stdout == "403\n", "{code}: {stdout}{stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    let said = |at| line.pointer(at).cloned().unwrap_or_default();
    ensure!(
        said("/egress_channel/state") == "complete" && said("/egress_denied") == 100_801,
        "{line}"
    );
    ensure!(
        said("/egress_denied_by_reason")
            == serde_json::json!({"not_allowed": 100_800, "address_literal": 1}),
        "{line}"
    );
    let distinct = said("/egress_denied_hosts_distinct").as_u64();
    ensure!(
        said("/egress_denied_hosts_distinct_estimated") == true
            && distinct.is_some_and(|count| (80_000..120_000).contains(&count)),
        "{line}"
    );
    let shown = said("/egress_denied_hosts");
    let shown = shown.as_array().context("no hosts")?;
    let heavy = shown.iter().filter(|host| names(host, "heavy")).count();
    let invented = shown.iter().filter(|host| names(host, "n")).count();
    let is_told_in_full =
        |host: &&Value| names(host, "heavy") && host["count"].as_u64() >= Some(48);
    let in_full = shown.iter().filter(is_told_in_full).count();
    ensure!(
        heavy >= 15 && in_full == heavy && invented >= 15 && shown.len() == 32,
        "{heavy} of the heaviest, {in_full} of them with their number, and {invented} others: {line}"
    );
    Ok(())
}

fn names(host: &Value, beginning: &str) -> bool {
    let name = host.get("host").and_then(Value::as_str);
    name.is_some_and(|name| name.starts_with(beginning))
}
