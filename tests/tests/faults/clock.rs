//! A wall clock that steps under a run, a year ahead and two back.
//!
//! The machine's own is left alone: the collector alone is told another time, see `src/clock.py`.
//! That nothing inside the container reads the wall clock at all is tested in `claims.rs`; an engine
//! whose clock steps cannot be tried here, and is asked for times only where nobody saw the run.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, PATIENCE, Running, output_of},
    trials::LabTest,
};
use serde_json::Value;

pub(crate) const TESTS: [(&str, LabTest); 1] = [(
    "a-wall-clock-that-steps-changes-no-count-and-no-duration",
    steps,
)];

const YEAR: i64 = 365 * 24 * 3600;
const GUEST: &str = "curl -sS https://denied.test/; ./meanwhile
    curl -sS https://denied.test/; ./meanwhile
    curl -sS https://denied.test/; exit 4";

fn steps(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let step = stage.runtime().join("step");
    fs::write(&step, "0")?;
    let running = Running::start(&mut with_clock(&stage, &step))?;
    for seconds in [YEAR, -YEAR] {
        stage.said()?;
        fs::write(&step, seconds.to_string())?;
        stage.go_on()?;
    }
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 4, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    let said = |at| line.pointer(at).cloned().unwrap_or_default();
    ensure!(
        said("/egress_channel/state") == "complete" && said("/egress_denied") == 3,
        "{line}"
    );
    let patience = u64::try_from(PATIENCE.as_millis())?;
    let within = |value: Value| value.as_u64().is_some_and(|ms| ms < patience);
    ensure!(
        within(said("/duration_ms")) && within(said("/egress_denied_hosts/0/last_ms")),
        "{line}"
    );
    let (time, ended) = (year(&said("/time")), year(&said("/ended")));
    ensure!(time == ended, "it lasted from {time} to {ended}: {line}");
    output_of(stage.collector().arg("verify")).map(drop)
}

/// `host-collector run` by a clock that steps as the file says.
fn with_clock(stage: &Stage<'_>, step: &Path) -> Command {
    let mut run = stage.launch(&["run"]);
    run.args([BASE, "--", "bash", "-c", GUEST]);
    let mut command = Command::new("/usr/bin/python3");
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.py"))
        .arg(step)
        .arg(run.get_program())
        .args(run.get_args());
    if let Some(place) = run.get_current_dir() {
        command.current_dir(place);
    }
    for (name, value) in run.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

fn year(time: &Value) -> String {
    time.as_str().unwrap_or_default().chars().take(4).collect()
}
