//! What a record vouches for, where no case can bring it about: a container that cannot report, and
//! more names than any line holds. `complete`, `gap`, `interrupted` and `not_applicable` are cases.

use std::process::Command;

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running},
    trials::LabTest,
};
use serde_json::Value;

use crate::image::Image;

pub(crate) const TESTS: [(&str, LabTest); 3] = [
    (
        "a-run-that-must-report-and-cannot-is-refused",
        deaf_and_required,
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
    let (stage, image) = (Stage::set(lab)?, Image::deaf(lab)?);
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
