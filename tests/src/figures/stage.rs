//! One guest with the real programs, in a namespace, and everything that is heard of it.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use anyhow::{Context, ensure};
use host_collector::channel::{Attendance, Channel, Terms};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{
    guest::GO,
    observe::{Heard, Look, Observer, What, all},
};
use crate::{
    bare::{Bare, attend},
    internet::{Internet, Subnet},
    programs::{Programs, open_to},
};

/// Where guests are measured.
#[derive(Debug)]
pub struct Stage {
    programs: Programs,
    internet: Internet,
}

/// What came of a guest.
#[derive(Debug)]
pub struct Played {
    /// What it printed.
    pub said: String,
    /// What was heard of it, in order.
    pub heard: Vec<Heard>,
    /// What the collector made of it.
    pub attendance: Attendance,
}

/// The list of a guest.
#[derive(Debug, Clone, Copy)]
pub enum List<'a> {
    /// It has none: nothing is enforced.
    None,
    /// These entries.
    Of(&'a [String]),
}

impl Stage {
    /// One with its internet running.
    pub fn build() -> anyhow::Result<Self> {
        Ok(Self {
            programs: Programs::beside()?,
            internet: Internet::start(Subnet::new(1))?,
        })
    }

    /// Its networks.
    #[must_use]
    pub fn subnet(&self) -> Subnet {
        self.internet.subnet()
    }

    /// Runs a guest that does this to its end.
    pub fn play(&self, list: List<'_>, role: &[&str]) -> anyhow::Result<Played> {
        let guest = Bare::create(&self.programs, &self.internet, true)?;
        let channel = Channel::open(guest.directory.path(), Terms::random(None)?)?;
        let mut env = vec![];
        if let List::Of(entries) = list {
            // As the collector hands a long one over, so that all of them go the same way.
            fs::write(channel.directory().join("allow.txt"), entries.join("\n"))?;
            env.extend([
                (
                    "SANDBOX_EGRESS_ALLOW",
                    "@/run/sandbox-egress/host/allow.txt",
                ),
                ("SANDBOX_REPORT", "required"),
                ("SANDBOX_REPORT_NONCE", channel.nonce().expose()),
                ("SANDBOX_RUN_ID", "figures"),
            ]);
        }
        env.push(("SANDBOX_RUN_AS", "sandbox"));
        let env: Vec<_> = env
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let (go, command) = (way_back(&guest)?, command(&guest, role)?);
        let running = guest.start(env, command)?;
        let (mut observer, heard) = Observer::new(running.id(), go);
        let (finished, attendance) =
            attend(channel, running, move |message| observer.hear(message))?;
        ensure!(finished.code == 0, "{role:?}: {finished:?}");
        let heard = all(&heard).clone();
        Ok(Played {
            said: finished.stdout,
            heard,
            attendance,
        })
    }
}

/// Where the host tells the guest to go on. Open both ways, so that opening it waits for nobody.
fn way_back(guest: &Bare) -> anyhow::Result<File> {
    let path = guest.path("workspace").join(GO);
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).context("make a pipe with a name")?;
    open_to(&path, 0o666)?;
    let mut options = File::options();
    let opened = options.read(true).write(true).open(&path);
    opened.context("open a pipe with a name")
}

/// In the place of the entrypoint is this program, which executes the real one, and is the guest.
fn command(guest: &Bare, role: &[&str]) -> anyhow::Result<Vec<String>> {
    let real = guest.path("bin/real");
    fs::create_dir(&real)?;
    for program in ["sandbox-entrypoint", "sandbox-egress-proxy"] {
        fs::rename(guest.path("bin").join(program), real.join(program))?;
    }
    let own = guest.path("bin/sandbox-entrypoint");
    let this = std::env::current_exe().context("find this program")?;
    fs::copy(this, &own).context("copy this program")?;
    let text = |path: PathBuf| path.display().to_string();
    let entrypoint = real.join("sandbox-entrypoint");
    let mut command = vec!["begin".to_owned(), text(entrypoint), text(own)];
    command.push("guest".to_owned());
    command.extend(role.iter().map(ToString::to_string));
    Ok(command)
}

impl Played {
    /// The numbers that the guest printed.
    pub fn numbers(&self) -> anyhow::Result<Vec<u64>> {
        let words = self.said.split_whitespace();
        let numbers = words.map(|word| word.parse().with_context(|| format!("no number: {word}")));
        numbers.collect()
    }

    /// The looks at the processes, in order.
    #[must_use]
    pub fn looks(&self) -> Vec<Look> {
        let looks = self.heard.iter().filter_map(|heard| match &heard.what {
            What::Looked(look) => Some(**look),
            What::Hello | What::Enforcing | What::Denied(_) => None,
        });
        looks.collect()
    }

    /// All that the container said was refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let reports = self.attendance.reports.as_ref();
        let totals = reports.map(|reports| reports.account.totals());
        totals.map_or(0, |totals| totals.denied.values().sum())
    }
}
