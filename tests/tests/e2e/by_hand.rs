//! Containers that somebody starts by hand, without the collector: the entrypoint must do for them
//! what it does in a run.

use std::process::Command;

use anyhow::ensure;
use sandbox_egress_tests::{
    contained::{BASE, Lab},
    process::{Finished, Running, output_of},
    terminal::OnTerminal,
};

use crate::{LabTest, on_terminal};

pub(crate) const TESTS: [(&str, LabTest); 10] = [
    ("a-terminal-keeps-its-size-and-its-interrupt", terminal),
    (
        "a-terminal-below-an-init-keeps-its-size-and-its-interrupt",
        terminal_below_init,
    ),
    ("jobs-are-controlled-from-a-terminal", jobs),
    (
        "jobs-are-controlled-without-an-allowlist",
        jobs_unrestricted,
    ),
    ("a-stop-reaches-the-guest", stop),
    ("without-net-admin-the-guest-does-not-start", no_net_admin),
    ("a-command-that-is-not-there-is-127", not_found),
    ("a-command-that-cannot-be-executed-is-126", not_executable),
    ("an-allowlist-is-enforced-without-a-collector", enforced),
    ("without-an-allowlist-there-is-no-restriction", unrestricted),
];

/// `run` of the lab's engine with what the README says a container needs.
pub(crate) fn engine_run(lab: &Lab, options: &[&str], guest: &[&str]) -> Command {
    engine_run_of(lab, BASE, options, guest)
}

/// The same with another image.
pub(crate) fn engine_run_of(lab: &Lab, image: &str, options: &[&str], guest: &[&str]) -> Command {
    let mut command = lab.command(["run", "--rm", "--cap-drop=ALL"]);
    command
        .args(
            ["NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL"]
                .map(|name| format!("--cap-add={name}")),
        )
        .args([
            "--security-opt=no-new-privileges",
            "--env=SANDBOX_RUN_AS=sandbox",
        ])
        .args(lab.engine_arguments())
        .args(options)
        .arg(image)
        .args(guest);
    command
}

pub(crate) fn allowing(lab: &Lab, entry: &str) -> String {
    format!(
        "--env=SANDBOX_EGRESS_ALLOW={entry}@{}",
        lab.internet().subnet().v4_net()
    )
}

pub(crate) fn finish(mut command: Command) -> anyhow::Result<Finished> {
    Running::start(&mut command)?.finish()
}

/// The entrypoint has said one thing; what an engine says of itself is its own affair.
pub(crate) fn is_one_line(stderr: &str) -> bool {
    let ours = stderr.lines().filter(|line| !line.starts_with("time="));
    ours.count() == 1
}

fn terminal(lab: &Lab) -> anyhow::Result<()> {
    let options = ["-it", &allowing(lab, "allowed.test")];
    on_terminal::is_kept(&engine_run(lab, &options, &on_terminal::GUEST))
}

fn terminal_below_init(lab: &Lab) -> anyhow::Result<()> {
    let options = ["-it", "--init", &allowing(lab, "allowed.test")];
    on_terminal::is_kept(&engine_run(lab, &options, &on_terminal::GUEST))
}

fn jobs(lab: &Lab) -> anyhow::Result<()> {
    let options = ["-it", &allowing(lab, "allowed.test")];
    on_terminal::has_jobs(&engine_run(lab, &options, &on_terminal::SHELL))
}

fn jobs_unrestricted(lab: &Lab) -> anyhow::Result<()> {
    on_terminal::has_jobs(&engine_run(lab, &["-it"], &on_terminal::SHELL))
}

fn stop(lab: &Lab) -> anyhow::Result<()> {
    let guest = "trap 'echo st''opped; exit 5' TERM; echo re''ady; while :; do read line; done";
    let command = engine_run(
        lab,
        &["-it", &allowing(lab, "allowed.test")],
        &["bash", "-c", guest],
    );
    let mut program = OnTerminal::start(&command, 24, 80)?;
    program.wait_for("ready")?;
    output_of(&mut lab.command(["stop", "--time=30", &lab.container()?]))?;
    let (code, shown) = program.finish()?;
    ensure!(code == 5 && shown.contains("stopped"), "{code}: {shown}");
    Ok(())
}

fn no_net_admin(lab: &Lab) -> anyhow::Result<()> {
    let mut command = lab.command(["run", "--rm", "--cap-drop=ALL"]);
    command
        .args([
            "--env=SANDBOX_RUN_AS=sandbox",
            &allowing(lab, "allowed.test"),
        ])
        .args(lab.engine_arguments())
        .args([BASE, "echo", "started"]);
    let Finished {
        code,
        stdout,
        stderr,
    } = finish(command)?;
    ensure!(code == 125 && stdout.is_empty(), "{code}: {stdout}");
    ensure!(
        stderr.contains("NET_ADMIN") && is_one_line(&stderr),
        "{stderr}"
    );
    Ok(())
}

fn not_found(lab: &Lab) -> anyhow::Result<()> {
    let command = engine_run(lab, &[&allowing(lab, "allowed.test")], &["no-such-program"]);
    let Finished { code, stderr, .. } = finish(command)?;
    ensure!(
        code == 127 && stderr.contains("no-such-program"),
        "{code}: {stderr}"
    );
    Ok(())
}

fn not_executable(lab: &Lab) -> anyhow::Result<()> {
    let command = engine_run(lab, &[&allowing(lab, "allowed.test")], &["/etc/passwd"]);
    let Finished { code, stderr, .. } = finish(command)?;
    ensure!(
        code == 126 && stderr.contains("/etc/passwd"),
        "{code}: {stderr}"
    );
    Ok(())
}

fn enforced(lab: &Lab) -> anyhow::Result<()> {
    let guest = "curl -sS http://allowed.test/ && curl -sSf http://denied.test/";
    let command = engine_run(lab, &[&allowing(lab, "allowed.test")], &["sh", "-c", guest]);
    let Finished {
        code,
        stdout,
        stderr,
    } = finish(command)?;
    ensure!(
        code == 22 && stdout.contains("served allowed.test:80"),
        "{code}: {stdout}{stderr}"
    );
    let account = lab.internet().account()?;
    ensure!(
        account.reached.iter().eq(["allowed.test:80/tcp"]),
        "{account:#?}"
    );
    Ok(())
}

fn unrestricted(lab: &Lab) -> anyhow::Result<()> {
    let command = engine_run(lab, &[], &["curl", "-sS", "http://denied.test/"]);
    let Finished {
        code,
        stdout,
        stderr,
    } = finish(command)?;
    ensure!(
        code == 0 && stdout.contains("served denied.test:80"),
        "{code}: {stdout}{stderr}"
    );
    Ok(())
}
