//! Disks that are full, at the launch and in the middle of a run.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running, output_of, wait_for_exit},
    record,
    trials::LabTest,
};
use serde_json::Value;

pub(crate) const TESTS: [(&str, LabTest); 5] = [
    (
        "a-journal-that-cannot-be-written-on-costs-no-count",
        journal_full,
    ),
    (
        "a-collector-that-is-killed-with-its-journal-full-is-told-from-one-that-knows-all",
        journal_full_and_killed,
    ),
    ("a-host-without-room-for-a-run-refuses-it", nowhere_to_run),
    (
        "a-log-without-room-costs-the-line-and-not-the-run",
        log_full,
    ),
    ("a-guest-that-fills-its-disk-costs-no-report", guest_full),
];

/// A small disk, mounted where the engine sees it too, for as long as a test needs it.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path, size: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(at)?;
        let options = format!("size={size},mode=0755");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        output_of(&mut mount)?;
        Ok(Self(at.to_owned()))
    }

    /// Leaves not a byte of room.
    fn fill(&self) -> anyhow::Result<()> {
        let mut ballast = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.join("ballast"))?;
        for size in [1 << 16, 1 << 8, 1] {
            let bytes = vec![0; size];
            loop {
                match ballast.write(&bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("fill a disk"),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still has a file of it open keeps that, and nothing else.
        let _ = output_of(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

fn start(stage: &Stage<'_>, guest: &str) -> anyhow::Result<Running> {
    let mut command = stage.launch(&["run"]);
    Running::start(command.args([BASE, "--", "bash", "-c", guest]))
}

/// The channel, the refusals, how many at least, and the exit code, as a line says them.
fn says(line: &Value, wanted: &str) -> anyhow::Result<()> {
    let places = [
        "/egress_channel/state",
        "/egress_denied",
        "/egress_denied_at_least",
        "/exit_code",
    ];
    record::says(line, &places, wanted)
}

/// Refused once, and then more often than what is left of a page of the disk can hold.
const REFUSED: &str = r#"curl -sS https://denied.test/; ./meanwhile
    /usr/bin/python3 -c 'from guest import *
for n in range(200):
    say(CONNECT % (b"n%d.test" % n, b"x"))'
    ./meanwhile; exit 7"#;

fn journal_full(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let disk = Disk::mount(stage.runtime(), "256k")?;
    let running = start(&stage, REFUSED)?;
    stage.said()?;
    disk.fill()?;
    stage.go_on()?;
    stage.said()?;
    stage.go_on()?;
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 7, "{code}: {stderr}");
    says(
        &stage.files.session_line()?.context("no line")?,
        "complete 201 - 7",
    )
}

/// What was acknowledged and not stored is gone with the collector: the sums are repaired by those
/// that come later, and the record says that messages are missing.
fn journal_full_and_killed(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let disk = Disk::mount(stage.runtime(), "256k")?;
    let running = start(&stage, REFUSED)?;
    stage.said()?;
    let run = stage.run_id()?;
    stage.journaled(&run, "denied.test")?;
    disk.fill()?;
    stage.go_on()?;
    stage.said()?;
    // What the collector has not acknowledged is told to the next.
    stage.journal_is_full(&run)?;
    output_of(stage.collector().arg("list"))?;
    let collector = running.pid()?;
    rustix::process::kill_process(collector, rustix::process::Signal::KILL)?;
    // Until it is gone it holds the run, and nobody takes that up.
    wait_for_exit(collector)?;
    fs::remove_file(stage.runtime().join("ballast"))?;
    output_of(stage.collector().arg("list"))?;
    // A guest that ends waits for a collector no longer than a second.
    stage.stored(&run, "admitted.json", "\"resumed\":1")?;
    stage.go_on()?;
    running.finish()?;
    says(&stage.finish(&run)?, "gap 201 - 7")
}

fn nowhere_to_run(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let disk = Disk::mount(stage.runtime(), "64k")?;
    disk.fill()?;
    let Finished {
        code,
        stdout,
        stderr,
    } = start(&stage, "echo started")?.finish()?;
    ensure!(code == 125 && stdout.is_empty(), "{code}: {stdout}{stderr}");
    let place = stage.runtime().display().to_string();
    ensure!(
        stderr.lines().count() == 1 && stderr.contains(&place),
        "{place} is not named in one line: {stderr}"
    );
    ensure!(
        stage.files.session_line()?.is_none() && lab.container().is_err(),
        "something was launched"
    );
    Ok(())
}

fn log_full(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let disk = Disk::mount(&stage.files.audit(), "64k")?;
    disk.fill()?;
    let Finished { code, stderr, .. } =
        start(&stage, "curl -sS https://denied.test/; exit 7")?.finish()?;
    ensure!(code == 7, "{code}: {stderr}");
    ensure!(
        stderr.contains("this run is not in the session log"),
        "nothing is said of the log: {stderr}"
    );
    ensure!(
        stage.files.session_line().is_ok_and(|line| line.is_none()),
        "half a line"
    );
    Ok(())
}

fn guest_full(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run", "--engine-arg=--tmpfs=/full:size=64k,mode=1777"]);
    let guest = "cat /dev/zero >/full/ballast; cd /full; curl -sS https://denied.test/; exit 3";
    command.args([BASE, "--", "bash", "-c", guest]);
    let Finished { code, stderr, .. } = Running::start(&mut command)?.finish()?;
    ensure!(code == 3, "{code}: {stderr}");
    says(
        &stage.files.session_line()?.context("no line")?,
        "complete 1 - 3",
    )
}
