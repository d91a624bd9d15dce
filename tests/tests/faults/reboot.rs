//! A host that is started anew under a run: everybody who had to do with it is killed at once, what
//! was in memory is gone, and the machine has another boot id. What is on the disk is left.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Running, output_of, wait_for_exit},
    trials::LabTest,
};
use serde_json::Value;

pub(crate) const TESTS: [(&str, LabTest); 2] = [
    (
        "a-run-that-its-host-has-ended-has-one-line-of-lower-bounds",
        waited_for,
    ),
    (
        "a-detached-run-that-its-host-has-ended-has-the-line-of-its-end",
        detached,
    ),
];

const GUEST: &str = "curl -sS https://denied.test/; ./meanwhile; exit 5";

fn waited_for(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run"]);
    command.args([BASE, "--", "bash", "-c", GUEST]);
    let running = Running::start(&mut command)?;
    let run = has_come_so_far(&stage)?;
    end_of_everybody(&stage, running.pid()?)?;
    running.finish()?;
    next_boot(&stage, &run, 1)
}

fn detached(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run", "--detach"]);
    output_of(command.args([BASE, "--", "bash", "-c", GUEST]))?;
    let run = has_come_so_far(&stage)?;
    end_of_everybody(&stage, attender_of(&run)?)?;
    next_boot(&stage, &run, 2)
}

fn has_come_so_far(stage: &Stage<'_>) -> anyhow::Result<String> {
    stage.said()?;
    let run = stage.run_id()?;
    stage.journaled(&run, "denied.test")?;
    Ok(run)
}

/// The collector sees nothing of what ends the container, as it would not.
fn end_of_everybody(stage: &Stage<'_>, collector: Pid) -> anyhow::Result<()> {
    kill_process(collector, Signal::STOP)?;
    let container = stage.lab.container()?;
    output_of(&mut stage.lab.command(["rm", "--force", &container]))?;
    kill_process(collector, Signal::KILL)?;
    wait_for_exit(collector)?;
    fs::remove_dir_all(stage.runtime().join("host-collector")).context("empty the memory")
}

/// The process that attends to a run whose launcher is gone.
fn attender_of(run: &str) -> anyhow::Result<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        if command.contains("attend\0--inherited") && command.contains(run) {
            let number = entry.file_name().to_string_lossy().parse().ok();
            return number.and_then(Pid::from_raw).context("no number");
        }
    }
    anyhow::bail!("nobody attends to {run}")
}

/// Any verb does it, once, and not before the boot id is another.
fn next_boot(stage: &Stage<'_>, run: &str, lines: usize) -> anyhow::Result<()> {
    let log = stage.files.audit().join("sessions.jsonl");
    let count = || fs::read_to_string(&log).unwrap_or_default().lines().count();
    output_of(stage.collector().arg("list"))?;
    ensure!(count() + 1 == lines, "a line before the next boot");
    let boot = stage.runtime().join("boot");
    fs::write(&boot, "00000000-0000-4000-8000-000000000000\n")?;
    for _ in 0..2 {
        output_of(&mut booted(stage, &boot))?;
        ensure!(count() == lines, "{} lines, not {lines}", count());
    }
    let text = fs::read_to_string(&log)?;
    let line: Value = serde_json::from_str(text.lines().last().context("no line")?)?;
    sandbox_egress_tests::schema::check(&line)?;
    let said = |at| line.pointer(at).cloned().unwrap_or_default();
    ensure!(
        said("/run_id") == run
            && said("/finished") == true
            && said("/exit_code").is_null()
            && said("/egress_channel/state") == "interrupted"
            && said("/egress_denied").is_null()
            && said("/egress_denied_at_least") == 0,
        "{line}"
    );
    ensure!(
        said("/egress_channel/reason").to_string().contains("anew"),
        "{line}"
    );
    output_of(stage.collector().arg("verify")).map(drop)
}

/// `host-collector list` after another start of the machine.
fn booted(stage: &Stage<'_>, boot: &Path) -> Command {
    let list = stage.collector();
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$1\" list";
    command
        .args(["--mount", "sh", "-c", script])
        .arg(boot)
        .arg(list.get_program());
    for (name, value) in list.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}
