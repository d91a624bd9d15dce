//! Runs that another process attends to than the one that launched them: after the collector was
//! killed, detached, and launched by another program.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running, output_of},
    record,
    terminal::OnTerminal,
};
use serde_json::Value;

use crate::LabTest;

pub(crate) const TESTS: [(&str, LabTest); 4] = [
    (
        "a-run-whose-collector-was-killed-loses-no-report",
        killed_and_recovered,
    ),
    (
        "a-run-that-ended-without-a-collector-has-lower-bounds",
        killed_and_ended,
    ),
    ("a-detached-run-outlives-its-terminal", detached),
    ("a-run-is-launched-by-another-program", prepared),
];

/// Starts a run of which nobody hears anything, and waits until its guest has said something.
pub(crate) fn unheard(stage: &Stage<'_>, guest: &str) -> anyhow::Result<Child> {
    let mut command = stage.launch(&["run"]);
    command.args([BASE, "--", "bash", "-c", guest]);
    let collector = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    stage.said()?;
    Ok(collector)
}

/// Starts a run and kills its collector when the guest has been refused something, and has said so.
fn kill_collector(stage: &Stage<'_>, guest: &str) -> anyhow::Result<String> {
    let mut collector = unheard(stage, guest)?;
    let run = stage.run_id()?;
    stage.journaled(&run, "denied.test")?;
    collector.kill()?;
    collector.wait()?;
    Ok(run)
}

/// What a session line says, one word each.
fn says(line: &Value, wanted: &str) -> anyhow::Result<()> {
    let places = [
        "/egress_channel/state",
        "/egress_channel/resumed",
        "/end_reason",
        "/exit_code",
        "/egress_denied",
        "/egress_denied_at_least",
    ];
    record::says(line, &places, wanted)
}

fn killed_and_recovered(lab: &Lab) -> anyhow::Result<()> {
    recovered(&Stage::set(lab)?).map(drop)
}

/// The line of a run whose collector was killed.
pub(crate) fn recovered(stage: &Stage<'_>) -> anyhow::Result<Value> {
    let lab = stage.lab;
    let run = kill_collector(
        stage,
        "curl -sS https://denied.test/
        echo 1 >said; read line <go
        curl -sS https://denied.test/; curl -sS https://other.test/
        echo 2 >said; read line <go
        [ ! -x /run/sandbox-egress ] || exit 9
        curl -sS https://denied.test/
        exit 3",
    )?;
    // Refused while nobody collects.
    stage.go_on()?;
    stage.said()?;
    output_of(stage.collector().arg("list"))?;
    // A guest that ends waits for a collector no longer than a second.
    stage.stored(&run, "admitted.json", "\"resumed\":1")?;
    stage.go_on()?;
    let line = stage.finish(&run)?;
    says(&line, "complete 1 exited 3 4 -")?;
    ensure!(lab.container().is_err(), "the container is still there");
    ensure!(
        stage.run_id().is_err(),
        "the run's directory is still there"
    );
    Ok(line)
}

fn killed_and_ended(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let run = kill_collector(
        &stage,
        "curl -sS https://denied.test/; echo >said; read line <go",
    )?;
    output_of(&mut lab.command(["kill", &lab.container()?]))?;
    let line = stage.finish(&run)?;
    says(&line, "interrupted - - 137 - 1")?;
    ensure!(
        line.get("ended").is_some(),
        "the engine knew when it ended: {line}"
    );
    ensure!(lab.container().is_err(), "the container is still there");
    Ok(())
}

fn detached(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run", "--detach"]);
    command.args([BASE, "--", "bash", "-c"]);
    command.arg("read line <go; curl -sS https://denied.test/; exit 4");
    let (code, shown) = OnTerminal::start(&command, 24, 80)?.finish()?;
    ensure!(code == 0, "{code}: {shown}");
    let run = shown.trim();
    let first = stage
        .files
        .session_line()?
        .context("no line at the launch")?;
    let facts = ["/run_id", "/exit_code", "/finished", "/detached"].map(|at| first.pointer(at));
    let (name, yes) = (Value::from(run), Value::Bool(true));
    ensure!(
        facts == [Some(&name), Some(&Value::Null), None, Some(&yes)],
        "{first}"
    );
    stage.go_on()?;
    let last = stage.finish(run)?;
    says(&last, "complete - exited 4 1 -")?;
    ensure!(last.get("time") == first.get("time"), "{last}");
    let log = fs::read_to_string(stage.files.audit().join("sessions.jsonl"))?;
    ensure!(log.lines().count() == 2, "{log}");
    Ok(())
}

/// The worked example of the documentation, which is yet to be told what to launch.
pub(crate) fn example(stage: &Stage<'_>) -> anyhow::Result<Command> {
    let collector = stage.collector();
    let programs = Path::new(collector.get_program()).parent();
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        programs.context("no programs")?.display()
    );
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/launch.py");
    let run = stage.launch(&[]);
    let mut launcher = Command::new("/usr/bin/python3");
    launcher.arg(example).args(run.get_args());
    if let Some(place) = run.get_current_dir() {
        launcher.current_dir(place);
    }
    for (name, value) in run.get_envs() {
        launcher.env(name, value.context("a variable that is unset")?);
    }
    launcher.env("PATH", path);
    Ok(launcher)
}

fn prepared(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut launcher = example(&stage)?;
    launcher.args(["--agent", "robot", BASE, "--"]);
    launcher.args(["bash", "-c", "curl -sS https://denied.test/; exit 5"]);
    let Finished { code, stderr, .. } = Running::start(&mut launcher)?.finish()?;
    ensure!(code == 5, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    says(&line, "complete - exited 5 1 -")?;
    ensure!(line.get("agent") == Some(&"robot".into()), "{line}");
    ensure!(lab.container().is_err(), "the container is still there");
    Ok(())
}
