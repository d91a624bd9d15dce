//! What the collector hears of a guest, when, and what the processes have used by then.

use std::{
    fs::{self, File},
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use report::{Body, Received};
use rustix::time::{ClockId, clock_gettime};

use super::guest::{LOOK, now};
use crate::compare::usage::{Memory, Usage};

/// Something that was stored.
#[derive(Debug, Clone)]
pub struct Heard {
    /// On the monotonic clock.
    pub at: Duration,
    /// What it was.
    pub what: What,
}

/// What is kept of a report.
#[derive(Debug, Clone)]
pub enum What {
    /// The container has spoken first.
    Hello,
    /// The rules are in force.
    Enforcing,
    /// This name was refused.
    Denied(String),
    /// The host looked at the processes.
    Looked(Box<Look>),
}

/// The processes at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// PID 1 of the container.
    pub init: Process,
    /// Its proxy.
    pub proxy: Process,
    /// Processor time of the thread that attends to the run.
    pub collector: Duration,
}

/// What one process uses.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Processor time so far.
    pub cpu: Duration,
    /// Memory now.
    pub memory: Memory,
}

/// Hears for the collector, and lets the guest go on.
#[derive(Debug)]
pub struct Observer {
    outermost: u32,
    go: File,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Observer {
    /// One for the container whose outermost process is this, and a view of what it hears.
    #[must_use]
    pub fn new(outermost: u32, go: File) -> (Self, Arc<Mutex<Vec<Heard>>>) {
        let heard = Arc::default();
        let view = Arc::clone(&heard);
        let observer = Self {
            outermost,
            go,
            heard,
        };
        (observer, view)
    }

    /// Keeps what was stored just now.
    pub fn hear(&mut self, message: &Received) {
        let at = now();
        let what = match &message.body {
            Body::Hello(_) => What::Hello,
            Body::Enforcing(_) => What::Enforcing,
            Body::Denied(denied) => {
                let Some(host) = &denied.target.host else {
                    return;
                };
                self.denied(host.as_str())
            }
            Body::Allowed(_)
            | Body::Gap(_)
            | Body::Totals(_)
            | Body::Policy(_)
            | Body::Exit(_)
            | Body::Bye(_)
            | Body::Unknown => return,
        };
        all(&self.heard).push(Heard { at, what });
    }

    /// A guest that asked for a name of its own waits for this; one of a flood does not.
    fn denied(&mut self, host: &str) -> What {
        let what = if host.starts_with(LOOK) {
            // What cannot be looked at has ended, and whoever wants the figure finds it missing.
            match look(self.outermost) {
                Ok(look) => What::Looked(Box::new(look)),
                Err(_) => What::Denied(host.to_owned()),
            }
        } else {
            What::Denied(host.to_owned())
        };
        if !host.ends_with(".flood.example") {
            // The guest may have ended.
            let _ = self.go.write_all(b"go\n");
        }
        what
    }
}

/// What was heard so far.
pub fn all(heard: &Mutex<Vec<Heard>>) -> MutexGuard<'_, Vec<Heard>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look(outermost: u32) -> anyhow::Result<Look> {
    let init = child_of(outermost, |_| true)?;
    let proxy = child_of(init, |name| name.starts_with("sandbox-egress"))?;
    let collector = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?;
    Ok(Look {
        init: Process::of(init)?,
        proxy: Process::of(proxy)?,
        collector,
    })
}

fn child_of(parent: u32, is_wanted: impl Fn(&str) -> bool) -> anyhow::Result<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let pids = children.split_whitespace();
    let mut pids = pids.filter_map(|pid| pid.parse::<u32>().ok());
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.find(|pid| is_wanted(&name(*pid)))
        .with_context(|| format!("a child of process {parent}"))
}

impl Process {
    /// In nanoseconds, where `stat` counts ticks: of the first thread, which is the only one.
    fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let first = text.split_whitespace().next();
        let nanoseconds = first.context("a time")?.parse()?;
        Ok(Self {
            cpu: Duration::from_nanos(nanoseconds),
            memory: Usage::alone(pid)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use report::{Denied, Message, Printable, Reason, Target, Transport};

    use super::*;

    fn denied(host: &str) -> Received {
        Message {
            body: Body::Denied(Denied {
                target: Target {
                    host: Some(Printable::new(host)),
                    address: None,
                    port: Some(443),
                },
                proto: Transport::Tcp,
                reason: Reason::Known(policy::DenyReason::NotAllowed),
                count: 1,
                first: 1,
                last: 1,
                uid: None,
            }),
            seq: 1,
            t: 1,
        }
    }

    #[test]
    fn only_a_guest_that_waits_is_told_to_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("go");
        let (mut observer, heard) = Observer::new(u32::MAX, File::create(&path).unwrap());
        for (host, told) in [
            ("q1.flood.example", ""),
            ("d1.example", "go\n"),
            ("look-end.example", "go\ngo\n"),
        ] {
            observer.hear(&denied(host));
            assert_eq!(fs::read_to_string(&path).unwrap(), told, "{host}");
        }
        assert_eq!(all(&heard).len(), 3);
    }

    #[test]
    fn a_process_has_used_time_and_memory() {
        let process = Process::of(std::process::id()).unwrap();
        assert!(process.cpu < Duration::from_secs(3600) && process.memory.resident > 0);
        assert!(child_of(std::process::id(), |_| false).is_err());
    }
}
