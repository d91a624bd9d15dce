//! Child processes with a bound on how long they are waited for.

use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// How long anything in these tests may take before it counts as hanging. Far above what it does
/// take: it bounds a broken run, it decides no working one.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a process left behind.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its exit code, or 128 and the number of the signal that ended it, as shells count.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A started process whose output is being collected.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

impl Running {
    /// Starts `command` with nothing on its standard input.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Ok(Self {
            child,
            stdout,
            stderr,
        })
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The same, as the kernel's calls take it.
    pub fn pid(&self) -> anyhow::Result<Pid> {
        id_of(&self.child)
    }

    /// Waits for its end; kills it, and says what it had written, once [`PATIENCE`] is over.
    pub fn finish(mut self) -> anyhow::Result<Finished> {
        let ended = wait_for_end(&self.child, PATIENCE)?;
        if !ended {
            self.child.kill().context("kill a hanging process")?;
        }
        let status = self.child.wait().context("wait for a process")?;
        let finished = Finished {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
            stdout: self.stdout.join().unwrap_or_default(),
            stderr: self.stderr.join().unwrap_or_default(),
        };
        if !ended {
            bail!("hung for {PATIENCE:?}: {finished:?}");
        }
        Ok(finished)
    }
}

/// Runs `command` to its end and returns what it printed; an error names it and what it said.
pub fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let finished = Running::start(command)?.finish()?;
    if finished.code != 0 {
        bail!(
            "{command:?} ended with {}: {}",
            finished.code,
            finished.stderr.trim()
        );
    }
    Ok(finished.stdout)
}

/// Waits for the end of a process that may be nobody's child here.
pub fn wait_for_exit(process: Pid) -> anyhow::Result<()> {
    let handle = match pidfd_open(process, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        other => other.context("find a process")?,
    };
    let bound = Timespec::try_from(PATIENCE)?;
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&bound))?;
    ensure!(ended > 0, "{process:?} goes on");
    Ok(())
}

/// Whether `child` ended within `bound`.
pub(crate) fn wait_for_end(child: &Child, bound: Duration) -> anyhow::Result<bool> {
    let pidfd = pidfd_open(id_of(child)?, PidfdFlags::empty()).context("open a pidfd")?;
    let timeout = Timespec::try_from(bound).context("a time to wait")?;
    let ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    Ok(ready.context("wait for a pidfd")? > 0)
}

/// The process id of `child`.
pub(crate) fn id_of(child: &Child) -> anyhow::Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a process id")
}

fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read before an error is still worth showing.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
