//! Runs of docker and podman whose containers have gVisor for a kernel: no nftables, no sockets of the
//! host's, and nobody who counts packets.
//!
//! One after the other: below ptrace, all that takes a moment elsewhere takes a second, and process 1
//! is not to wait in vain because others do as well.

#[path = "e2e/on_terminal.rs"]
#[expect(dead_code, reason = "jobs are `e2e`'s")]
mod on_terminal;

use std::process::ExitCode;

use anyhow::{Context, ensure};
use libtest_mimic::run;
use sandbox_egress_tests::{
    case::{Case, Network, Place},
    contained::{BASE, Lab},
    trials::{LabTest, arguments_for, engines_with_gvisor, in_lab},
};

const TESTS: [(&str, LabTest); 1] = [("a-terminal-keeps-its-size-and-its-interrupt", terminal)];

fn main() -> anyhow::Result<ExitCode> {
    let mut trials = Vec::new();
    for (engine, labs) in engines_with_gvisor() {
        for (name, case) in Case::read_all(Place::Gvisor)? {
            trials.push(in_lab(engine, &name, &labs, move |lab| lab.check(&case)));
        }
        for (name, test) in TESTS {
            trials.push(in_lab(engine, name, &labs, test));
        }
    }
    Ok(run(&arguments_for(1), trials).exit_code())
}

fn terminal(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let allow = format!("allowed.test@{}", lab.internet().subnet().v4_net());
    let mut command = lab.collector(&files, Network::Allowlist, &[allow]);
    command.args(["-it", BASE, "--"]).args(on_terminal::GUEST);
    on_terminal::is_kept(&command)?;
    let line = files.session_line()?.context("no session line")?;
    let transport = line.pointer("/egress_channel/transport");
    ensure!(transport.is_some_and(|name| name == "exec"), "{line}");
    Ok(())
}
