//! The engine's client is killed while it has somebody's terminal, which it has made raw.

use std::{fs, process::Command};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::wait_for_exit,
    terminal::OnTerminal,
    trials::LabTest,
};

pub(crate) const TESTS: [(&str, LabTest); 1] = [(
    "a-client-that-is-killed-leaves-the-terminal-as-it-was",
    killed,
)];

/// Sits at the terminal, and tells what it is like afterwards.
const SEAT: &str = "
import subprocess, sys, termios
before = termios.tcgetattr(0)
code = subprocess.call(sys.argv[1:])
print('kept', termios.tcgetattr(0) == before)
sys.exit(code)";

fn killed(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut run = stage.launch(&["run"]);
    run.args(["-it", BASE, "--", "bash", "-c", "./meanwhile; exit 4"]);
    let mut seat = Command::new("/usr/bin/python3");
    seat.args(["-c", SEAT])
        .arg(run.get_program())
        .args(run.get_args());
    if let Some(place) = run.get_current_dir() {
        seat.current_dir(place);
    }
    for (name, value) in run.get_envs() {
        if let Some(value) = value {
            seat.env(name, value);
        }
    }
    let seat = OnTerminal::start(&seat, 33, 97)?;
    stage.said()?;
    let client = client_of(lab, &stage.run_id()?)?;
    kill_process(client, Signal::KILL)?;
    wait_for_exit(client)?;
    stage.go_on()?;
    let (code, shown) = seat.finish()?;
    ensure!(code == 4 && shown.contains("kept True"), "{code}: {shown}");
    let line = stage.files.session_line()?.context("no line")?;
    ensure!(line.get("exit_code") == Some(&4.into()), "{line}");
    Ok(())
}

/// The client that has started the container of a run.
fn client_of(lab: &Lab, run: &str) -> anyhow::Result<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let read = |file| fs::read(entry.path().join(file)).unwrap_or_default();
        let (name, command) = (read("comm"), read("cmdline"));
        let command = String::from_utf8_lossy(&command);
        if name.trim_ascii() == lab.engine().as_str().as_bytes()
            && command.contains("\0run\0")
            && command.contains(run)
        {
            let number = entry.file_name().to_string_lossy().parse().ok();
            return number.and_then(Pid::from_raw).context("no number");
        }
    }
    anyhow::bail!("run {run} has no client")
}
