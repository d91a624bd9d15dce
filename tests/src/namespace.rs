//! Network namespaces by name: made with iproute2, entered by a thread, gone on drop.

use std::{
    fs::File,
    os::fd::AsFd,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::output_of;

/// A network namespace of this process's own.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one with its loopback up. `label` tells what it is for, in listings.
    pub fn create(label: &str) -> anyhow::Result<Self> {
        let name = format!("egress-{label}-{}", unique());
        output_of(Command::new("ip").args(["netns", "add", &name]))
            .context("make a network namespace: the tests need root and iproute2")?;
        let namespace = Self { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` inside, with arguments separated by blanks.
    pub fn ip(&self, arguments: &str) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(arguments.split(' '));
        output_of(&mut command).map(drop)
    }

    /// A command that will run inside.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// What a thread needs to come inside.
    pub fn door(&self) -> anyhow::Result<Door> {
        let path = format!("/run/netns/{}", self.name);
        File::open(&path)
            .map(Door)
            .with_context(|| format!("open {path}"))
    }
}

/// The way into a namespace.
#[derive(Debug)]
pub struct Door(File);

impl Door {
    /// Moves the calling thread inside, for good: sockets that it makes belong to the namespace.
    pub fn enter(self) -> anyhow::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .context("enter a network namespace")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nobody is left to tell; a leftover is named after this process and harms nothing.
        let _ = output_of(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

/// A short text that no other namespace or interface of this machine has: interface names end at
/// fifteen bytes.
#[must_use]
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
