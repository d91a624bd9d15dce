//! A host of its own for one run, whose guest says how far it has come and waits to be told to go on.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, mkfifoat},
};
use serde_json::Value;
use tempfile::TempDir;

use super::{Files, Lab};
use crate::{
    case::Network,
    process::{PATIENCE, output_of},
    programs::{open_to, public_directory},
};

/// What a guest runs to say that it has come so far, and to wait until it is told to go on.
const MEANWHILE: &str = "#!/bin/sh\necho >said; read line <go\n";

/// Where one run takes place: its files, and a runtime directory that no other run is in.
#[derive(Debug)]
pub struct Stage<'a> {
    /// Its lab.
    pub lab: &'a Lab,
    /// The launch's files.
    pub files: Files,
    runtime: TempDir,
    said: File,
    go: File,
    more: &'static [&'static str],
}

impl<'a> Stage<'a> {
    /// Sets it.
    pub fn set(lab: &'a Lab) -> anyhow::Result<Self> {
        let (files, runtime) = (lab.files()?, public_directory()?);
        let meanwhile = files.workspace().join("meanwhile");
        fs::write(&meanwhile, MEANWHILE)?;
        open_to(&meanwhile, 0o755)?;
        let [said, go] = ["said", "go"].map(|name| fifo(&files.workspace().join(name)));
        Ok(Self {
            lab,
            said: said?,
            go: go?,
            files,
            runtime,
            more: &[],
        })
    }

    /// Whose runs have these options as well.
    #[must_use]
    pub fn with(self, more: &'static [&'static str]) -> Self {
        Self { more, ..self }
    }

    /// `host-collector VERB` up to the image, with an allowlist of one name.
    #[must_use]
    pub fn launch(&self, verb: &[&str]) -> Command {
        let allow = format!("allowed.test@{}", self.lab.internet().subnet().v4_net());
        let run = self
            .lab
            .collector(&self.files, Network::Allowlist, &[allow]);
        let mut command = self.collector();
        command.args(verb).args(run.get_args().skip(1));
        command.args(self.more);
        command
    }

    /// `host-collector` on this host.
    #[must_use]
    pub fn collector(&self) -> Command {
        let mut command = self.lab.collector_verb();
        command
            .env("SANDBOX_AUDIT_DIR", self.files.audit())
            .env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Where runs have their directories.
    #[must_use]
    pub fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    /// Waits until the guest says that it has come so far.
    pub fn said(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut byte = [0];
        while byte != *b"\n" {
            let left = Timespec::try_from(PATIENCE.saturating_sub(began.elapsed()))?;
            let mut said = [PollFd::new(&self.said, PollFlags::IN)];
            if poll(&mut said, Some(&left)).context("listen to a guest")? == 0 {
                bail!("the guest never came so far");
            }
            (&self.said).read_exact(&mut byte)?;
        }
        Ok(())
    }

    /// Tells the guest to go on, whether it is there to hear it or not.
    pub fn go_on(&self) -> anyhow::Result<()> {
        (&self.go).write_all(b"go\n").context("let the guest go on")
    }

    /// Waits until the collector has stored a report.
    pub fn journaled(&self, run: &str, what: &str) -> anyhow::Result<()> {
        self.stored(run, "journal.jsonl", what)
    }

    /// Waits until the collector has stored something.
    pub fn stored(&self, run: &str, file: &str, what: &str) -> anyhow::Result<()> {
        self.is_so(run, file, "grep -q -F -e \"$1\" \"$0\"", what)
    }

    /// Waits until the collector has filled its journal to the end of a page, as it does on a disk
    /// that is full: the rest of the write is refused.
    pub fn journal_is_full(&self, run: &str) -> anyhow::Result<()> {
        let ends_with_page = "test $(($(stat -c %s \"$0\") % $1)) -eq 0";
        self.is_so(run, "journal.jsonl", ends_with_page, "4096")
    }

    /// Waits until a shell's `condition` holds, in which `$0` is a file of the run's and `$1` is `what`.
    fn is_so(&self, run: &str, file: &str, condition: &str, what: &str) -> anyhow::Result<()> {
        let file = format!("host-collector/runs/{run}/{file}");
        let look = format!("until {condition}; do sleep 0.02; done");
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-c", &look]);
        shell.arg(self.runtime.path().join(file));
        output_of(shell.arg(what)).map(drop)
    }

    /// The run that is going on here.
    pub fn run_id(&self) -> anyhow::Result<String> {
        let runs = self.runtime.path().join("host-collector/runs");
        let entry = fs::read_dir(runs)?.next().context("no run")??;
        Ok(entry.file_name().to_string_lossy().into_owned())
    }

    /// The line of a run, which is waited for.
    pub fn finish(&self, run: &str) -> anyhow::Result<Value> {
        let line = output_of(self.collector().args(["finish", run]))?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Open at both ends, so that neither the guest nor this process waits for the other to open it.
fn fifo(path: &PathBuf) -> anyhow::Result<File> {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)?;
    open_to(path, 0o666)?;
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.with_context(|| format!("open {}", path.display()))
}
