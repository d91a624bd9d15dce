//! The container engines that there are, and how each is asked.

use std::process::Command;

use super::{daemon::Variety, gvisor, rootless};
use crate::case::Place;

/// A container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// A docker whose containers' users are others on the machine.
    Remapped,
    /// Podman, run by an account that is not root's.
    Rootless,
    /// A docker whose containers have gVisor for a kernel.
    GvisorDocker,
    /// Podman, with the same kernel.
    GvisorPodman,
}

impl Engine {
    /// Its program.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker | Self::Remapped | Self::GvisorDocker => "docker",
            Self::Podman | Self::Rootless | Self::GvisorPodman => "podman",
        }
    }

    /// What tests in it are named after.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker | Self::Podman | Self::GvisorDocker | Self::GvisorPodman => self.as_str(),
            Self::Remapped => "remapped",
            Self::Rootless => "rootless",
        }
    }

    /// Where cases name it.
    #[must_use]
    pub const fn place(self) -> Place {
        match self {
            Self::Docker => Place::Docker,
            Self::Podman => Place::Podman,
            Self::Remapped => Place::Remapped,
            Self::Rootless => Place::Rootless,
            Self::GvisorDocker | Self::GvisorPodman => Place::Gvisor,
        }
    }

    /// Which daemon of the tests' own it is, if it is one.
    pub(super) const fn variety(self) -> Option<Variety> {
        match self {
            Self::Remapped => Some(Variety::Remapped),
            Self::GvisorDocker => Some(Variety::Gvisor),
            Self::Docker | Self::Podman | Self::Rootless | Self::GvisorPodman => None,
        }
    }

    /// What the collector is told for every run in it.
    pub(super) fn options(self) -> Vec<&'static str> {
        match self {
            Self::GvisorDocker => gvisor::options(gvisor::NAME).into(),
            Self::GvisorPodman => gvisor::options(gvisor::PROGRAM).into(),
            Self::Docker | Self::Podman | Self::Remapped | Self::Rootless => Vec::new(),
        }
    }

    /// A command of the engine's.
    #[must_use]
    pub fn command<const N: usize>(self, arguments: [&str; N]) -> Command {
        let mut command = match (self, self.variety()) {
            (_, Some(variety)) => variety.client(),
            (Self::Rootless, None) => rootless::account(self.as_str()),
            (_, None) => Command::new(self.as_str()),
        };
        command.args(arguments);
        command
    }
}
