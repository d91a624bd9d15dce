//! Docker daemons of the tests' own, set up as the machine's is not: a setting of a daemon's is one
//! for all of its containers.
//!
//! Each stands in a network namespace of its own, so that neither its bridges nor its rules meet
//! those of the machine's daemon, and ends when the last lab does.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read},
    path::PathBuf,
    process::{self, Child, ChildStderr, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

use super::{BASE, gvisor};
use crate::{
    namespace::Namespace,
    process::{PATIENCE, id_of, wait_for_end},
};

/// How a daemon is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variety {
    /// It maps the containers' users to others of the machine's.
    Remapped,
    /// It knows a runtime that is a kernel of its own.
    Gvisor,
}

impl Variety {
    const fn name(self) -> &'static str {
        match self {
            Self::Remapped => "remapped",
            Self::Gvisor => "gvisor",
        }
    }

    fn option(self) -> String {
        match self {
            Self::Remapped => "--userns-remap=default".to_owned(),
            Self::Gvisor => format!("--add-runtime={}={}", gvisor::NAME, gvisor::PROGRAM),
        }
    }

    /// The one that runs, while anybody needs it.
    fn running(self) -> &'static Mutex<Weak<Daemon>> {
        static REMAPPED: Mutex<Weak<Daemon>> = Mutex::new(Weak::new());
        static GVISOR: Mutex<Weak<Daemon>> = Mutex::new(Weak::new());
        match self {
            Self::Remapped => &REMAPPED,
            Self::Gvisor => &GVISOR,
        }
    }

    /// Its client.
    pub(super) fn client(self) -> Command {
        self.beside("docker")
    }

    /// A program that takes this daemon for the machine's.
    pub(super) fn beside(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("DOCKER_HOST", format!("unix://{}", self.socket().display()));
        command
    }

    /// Short, as the names of sockets must be, and nobody else's.
    fn socket(self) -> PathBuf {
        format!("/run/egress-{}-{}.sock", self.name(), process::id()).into()
    }
}

/// A running daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    pub(super) namespace: Namespace,
    // Last: what it holds is in use until the child has ended.
    _directory: TempDir,
}

impl Daemon {
    /// The daemon, started unless it runs already, with the image that the cases run in.
    pub(super) fn shared(variety: Variety) -> anyhow::Result<Arc<Self>> {
        let running = variety.running().lock();
        let mut running = running.unwrap_or_else(PoisonError::into_inner);
        if let Some(daemon) = running.upgrade() {
            return Ok(daemon);
        }
        let daemon = Arc::new(Self::start(variety)?);
        bring_image(variety)?;
        *running = Arc::downgrade(&daemon);
        Ok(daemon)
    }

    fn start(variety: Variety) -> anyhow::Result<Self> {
        let namespace = Namespace::create(variety.name())?;
        let directory = TempDir::with_prefix("egress-dockerd-").context("make a directory")?;
        let below = |option: &str, name: &str| {
            format!("--{option}={}", directory.path().join(name).display())
        };
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", namespace.name()))
            .args(["dockerd", &variety.option(), "--bridge=none"])
            .arg(below("data-root", "data"))
            .arg(below("exec-root", "exec"))
            .arg(below("pidfile", "pid"))
            .arg(format!("--host=unix://{}", variety.socket().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start a docker daemon: tests/run installs what it takes")?;
        let said = child.stderr.take().context("its standard error")?;
        let daemon = Self {
            child,
            namespace,
            _directory: directory,
        };
        wait_until_it_listens(said)?;
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let asked = id_of(&self.child)
            .and_then(|id| kill_process(id, Signal::TERM).context("end a docker daemon"));
        if asked.is_err() || !wait_for_end(&self.child, PATIENCE).unwrap_or(false) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// From the machine's daemon, as it is there now.
fn bring_image(variety: Variety) -> anyhow::Result<()> {
    let mut save = Command::new("docker")
        .args(["save", BASE])
        .stdout(Stdio::piped())
        .spawn()
        .context("hand over the image")?;
    let image = save.stdout.take().context("the image")?;
    let loaded = variety
        .client()
        .args(["load", "--quiet"])
        .stdin(image)
        .stdout(Stdio::null())
        .status()
        .context("load the image")?;
    let saved = save.wait().context("hand over the image")?;
    ensure!(
        saved.success() && loaded.success(),
        "no {BASE} for a daemon of our own: it is built by images/build"
    );
    Ok(())
}

/// Its own word that it listens is the event; its end is the other.
fn wait_until_it_listens(said: ChildStderr) -> anyhow::Result<()> {
    let (tell, told) = sync_channel(1);
    thread::spawn(move || listen(said, &tell));
    match told.recv_timeout(PATIENCE) {
        Ok(None) => Ok(()),
        Ok(Some(last)) => bail!("the docker daemon ended, saying {last}"),
        Err(_) => bail!("the docker daemon does not listen after {PATIENCE:?}"),
    }
}

/// Reads to the end, so that the daemon never waits for a reader.
fn listen(said: impl Read, tell: &SyncSender<Option<String>>) {
    let mut last = String::new();
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        if line.contains("API listen on") {
            let _ = tell.try_send(None);
        }
        last = line;
    }
    let _ = tell.try_send(Some(last));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_listens_once_it_says_so_and_its_end_is_told_with_its_last_word() {
        for (said, told) in [
            ("starting\nAPI listen on x\nmore\n", None),
            ("starting\nno such option\n", Some("no such option")),
            ("", Some("")),
        ] {
            let (tell, word) = sync_channel(1);
            listen(said.as_bytes(), &tell);
            assert_eq!(word.recv().unwrap().as_deref(), told, "{said:?}");
        }
    }
}
