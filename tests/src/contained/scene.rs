//! Does to a run what a case says, when its guest has come so far.

use std::{fs, process::Command};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::stage::Stage;
use crate::{
    deed::{Deed, Whom},
    process::{output_of, wait_for_exit},
};

/// A run that is going on.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) stage: &'a Stage<'a>,
    pub(super) collector: Pid,
}

impl Scene<'_> {
    /// Waits for the guest to come so far, does all of it, and lets the guest go on.
    pub(super) fn play(&self, deeds: &[Deed]) -> anyhow::Result<()> {
        self.stage.said()?;
        for deed in deeds {
            self.act(deed).with_context(|| format!("{deed:?}"))?;
        }
        self.stage.go_on()
    }

    fn act(&self, deed: &Deed) -> anyhow::Result<()> {
        match deed {
            Deed::Signal(signal, whom) => send(self.find(*whom)?, *signal),
            Deed::Sacrifice(whom) => {
                let score = format!("/proc/{}/oom_score_adj", self.find(*whom)?.as_raw_pid());
                fs::write(&score, "1000").with_context(|| format!("write {score}"))
            }
            Deed::Await(text) => self.stage.journaled(&self.stage.run_id()?, text),
            Deed::GoOn => self.stage.go_on(),
            Deed::AwaitEnd => match self.entrypoint() {
                Ok(process) => wait_for_exit(process),
                // It was faster than we.
                Err(_) => Ok(()),
            },
            Deed::Resolver(state) => self.stage.lab.internet().set_resolver(*state),
            Deed::FlushRuleset => {
                let target = format!("--target={}", self.entrypoint()?.as_raw_pid());
                let mut inside = Command::new("nsenter");
                inside.args([&target, "--net", "nft", "flush", "ruleset"]);
                output_of(&mut inside).map(drop)
            }
            Deed::TakeAwayProxy => self.as_root(&["mv", PROXY, ELSEWHERE]),
            Deed::BringBackProxy => self.as_root(&["mv", ELSEWHERE, PROXY]),
            Deed::AsRoot(script) => self.as_root(&["bash", "-c", script]),
            Deed::Recover => {
                output_of(self.stage.collector().arg("list"))?;
                // A guest that ends waits for a collector no longer than a second.
                let run = self.stage.run_id()?;
                self.stage.stored(&run, "admitted.json", RESUMED)
            }
        }
    }

    /// By a process that the engine starts in the container, as its root.
    fn as_root(&self, command: &[&str]) -> anyhow::Result<()> {
        let lab = self.stage.lab;
        let container = lab.container()?;
        let exec = ["exec", "--user=0:0", &container];
        output_of(lab.engine().command(exec).args(command)).map(drop)
    }

    fn find(&self, whom: Whom) -> anyhow::Result<Pid> {
        match whom {
            Whom::Entrypoint => self.entrypoint(),
            Whom::Proxy => child_of(self.entrypoint()?, "sandbox-egress-"),
            Whom::Collector => Ok(self.collector),
            Whom::Client => child_of(self.collector, self.stage.lab.engine().as_str()),
            Whom::Monitor => {
                let stat = Stat::read(self.entrypoint()?).context("process 1 is gone")?;
                Pid::from_raw(stat.parent).context("process 1 has no parent")
            }
        }
    }

    /// Process 1, as this machine counts.
    fn entrypoint(&self) -> anyhow::Result<Pid> {
        let lab = self.stage.lab;
        let container = lab.container()?;
        let format = "--format={{.State.Pid}}";
        let id = output_of(&mut lab.engine().command(["inspect", format, &container]))?;
        let id = id.trim().parse().ok().and_then(Pid::from_raw);
        id.context("the engine knows no process of the container's")
    }
}

/// Where the image has the proxy, and where no process 1 looks for it.
const PROXY: &str = "/usr/local/bin/sandbox-egress-proxy";
const ELSEWHERE: &str = "/usr/local/bin/away";
/// What a collector has of a container that has come back to it.
const RESUMED: &str = "\"resumed\":1";

/// Signals, and where that ends a process waits for its end: what follows is then seen by nobody of
/// it.
fn send(to: Pid, signal: Signal) -> anyhow::Result<()> {
    let process = pidfd_open(to, PidfdFlags::empty()).context("find a process")?;
    pidfd_send_signal(&process, signal).context("signal a process")?;
    if signal == Signal::KILL {
        wait_for_exit(to)?;
    }
    Ok(())
}

/// What the kernel says of a process.
struct Stat {
    name: String,
    parent: i32,
}

impl Stat {
    fn read(process: Pid) -> Option<Self> {
        let path = format!("/proc/{}/stat", process.as_raw_pid());
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// The name is in parentheses, and may have some of its own.
    fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        Some(Self {
            name: name.to_owned(),
            parent: after.split_whitespace().nth(1)?.parse().ok()?,
        })
    }
}

/// The child of `parent` that has this name.
fn child_of(parent: Pid, name: &str) -> anyhow::Result<Pid> {
    for entry in fs::read_dir("/proc")? {
        let id = entry?.file_name().to_string_lossy().parse().ok();
        let Some(process) = id.and_then(Pid::from_raw) else {
            continue;
        };
        let stat = Stat::read(process);
        if stat.is_some_and(|stat| stat.parent == parent.as_raw_pid() && stat.name == name) {
            return Ok(process);
        }
    }
    Err(anyhow!("{parent:?} has no child {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = Stat::parse("7 (a ) S 1 (x) S 42 7 7 0").unwrap();
        assert_eq!((stat.name.as_str(), stat.parent), ("a ) S 1 (x", 42));
        assert!(Stat::parse("7 a S").is_none());
    }

    #[test]
    fn a_child_is_found_by_its_name_and_its_end_is_waited_for() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let own = rustix::process::getpid();
        let found = child_of(own, "sleep").unwrap();
        assert_eq!(found, Pid::from_child(&child));
        send(found, Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(child_of(own, "nobody").is_err());
    }
}
