//! Runs that another process attends to than the one that launched them: after the collector was
//! killed, detached, and launched by another program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use rustix::fs::{CWD, Mode, mkfifoat};
use sandbox_egress_tests::{
    case::Network,
    contained::{BASE, Files, Lab},
    process::{Finished, Running, output_of},
    programs::{open_to, public_directory},
    terminal::OnTerminal,
};
use serde_json::Value;
use tempfile::TempDir;

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

/// A host of its own for one run, whose guest waits to be told to go on.
pub(crate) struct Stage<'a> {
    lab: &'a Lab,
    pub(crate) files: Files,
    runtime: TempDir,
    more: &'static [&'static str],
}

impl<'a> Stage<'a> {
    pub(crate) fn set(lab: &'a Lab) -> anyhow::Result<Self> {
        let (files, runtime) = (lab.files()?, public_directory()?);
        for name in ["said", "go"] {
            let path = files.workspace().join(name);
            mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
            open_to(&path, 0o666)?;
        }
        Ok(Self {
            lab,
            files,
            runtime,
            more: &[],
        })
    }

    /// Whose runs have these options as well.
    pub(crate) fn with(self, more: &'static [&'static str]) -> Self {
        Self { more, ..self }
    }

    /// `host-collector VERB` up to the image.
    pub(crate) fn launch(&self, verb: &[&str]) -> Command {
        let allow = format!("allowed.test@{}", self.lab.internet().subnet().v4_net());
        let run = self
            .lab
            .collector(&self.files, Network::Allowlist, &[allow]);
        let mut command = self.collector();
        command.args(verb).args(run.get_args().skip(1));
        command.args(self.more);
        command
    }

    /// `host-collector` on this host.
    pub(crate) fn collector(&self) -> Command {
        let mut command = self.lab.collector_verb();
        command
            .env("SANDBOX_AUDIT_DIR", self.files.audit())
            .env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    fn fifo(&self, name: &str) -> PathBuf {
        self.files.workspace().join(name)
    }

    /// Waits until the guest says that it has come so far.
    pub(crate) fn said(&self) -> anyhow::Result<()> {
        let fifo = self.fifo("said");
        output_of(Command::new("timeout").args(["60", "cat"]).arg(fifo)).map(drop)
    }

    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        fs::write(self.fifo("go"), "go\n").context("let the guest go on")
    }

    /// Waits until the collector has stored a report.
    fn journaled(&self, run: &str, what: &str) -> anyhow::Result<()> {
        self.stored(run, "journal.jsonl", what)
    }

    /// Waits until the collector has stored something.
    pub(crate) fn stored(&self, run: &str, file: &str, what: &str) -> anyhow::Result<()> {
        let file = format!("host-collector/runs/{run}/{file}");
        let look = "until grep -q -F \"$1\" \"$0\"; do sleep 0.02; done";
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-c", look]);
        shell.arg(self.runtime.path().join(file));
        output_of(shell.arg(what)).map(drop)
    }

    pub(crate) fn run_id(&self) -> anyhow::Result<String> {
        let runs = self.runtime.path().join("host-collector/runs");
        let entry = fs::read_dir(runs)?.next().context("no run")??;
        Ok(entry.file_name().to_string_lossy().into_owned())
    }

    /// The line of a run, which is waited for.
    pub(crate) fn finish(&self, run: &str) -> anyhow::Result<Value> {
        let line = output_of(self.collector().args(["finish", run]))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Starts a run and kills its collector when the guest has been refused something, and has said
    /// so.
    fn kill_collector(&self, guest: &str) -> anyhow::Result<String> {
        let mut command = self.launch(&["run"]);
        command.args([BASE, "--", "bash", "-c", guest]);
        let mut collector = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.said()?;
        let run = self.run_id()?;
        self.journaled(&run, "denied.test")?;
        collector.kill()?;
        collector.wait()?;
        Ok(run)
    }
}

/// What a session line says, one word each.
fn says(line: &Value, wanted: &str) -> anyhow::Result<()> {
    let word = |pointer| match line.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "-".to_owned(),
    };
    let words = [
        "/egress_channel/state",
        "/egress_channel/resumed",
        "/end_reason",
        "/exit_code",
        "/egress_denied",
        "/egress_denied_at_least",
    ];
    let found = words.map(word).join(" ");
    ensure!(
        found == wanted,
        "the line says {found}, not {wanted}: {line}"
    );
    Ok(())
}

fn killed_and_recovered(lab: &Lab) -> anyhow::Result<()> {
    recovered(&Stage::set(lab)?).map(drop)
}

/// The line of a run whose collector was killed.
pub(crate) fn recovered(stage: &Stage<'_>) -> anyhow::Result<Value> {
    let lab = stage.lab;
    let run = stage.kill_collector(
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
    let run = stage.kill_collector("curl -sS https://denied.test/; echo >said; read line <go")?;
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

/// The worked example of the documentation.
fn prepared(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
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
    for (name, value) in run.get_envs() {
        launcher.env(name, value.context("a variable that is unset")?);
    }
    launcher
        .env("PATH", path)
        .args(["--agent", "robot", BASE, "--"]);
    launcher.args(["bash", "-c", "curl -sS https://denied.test/; exit 5"]);
    let Finished { code, stderr, .. } = Running::start(&mut launcher)?.finish()?;
    ensure!(code == 5, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    says(&line, "complete - exited 5 1 -")?;
    ensure!(line.get("agent") == Some(&"robot".into()), "{line}");
    ensure!(lab.container().is_err(), "the container is still there");
    Ok(())
}
