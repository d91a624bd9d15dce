//! Podman as an account of nobody's in particular runs it: without root, in a user namespace of that
//! account's, with a network that a process of its own translates.
//!
//! The account, its range of ids and its image are made by `tests/run`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::ADDRESS;
use crate::{
    internet::{Internet, Subnet},
    namespace::Namespace,
    process::output_of,
    programs::{Programs, public_directory},
};

/// The account, see `tests/run`.
const ACCOUNT: &str = "sandbox-egress-tests";

/// The place in the network from which the account's containers reach a lab's internet, and nothing
/// else.
#[derive(Debug)]
pub(super) struct Uplink {
    namespace: Namespace,
    pub(super) subnet: Subnet,
    programs: TempDir,
}

impl Uplink {
    /// Makes one, on `internet`.
    pub(super) fn create(internet: &Internet, programs: &Programs) -> anyhow::Result<Self> {
        let namespace = Namespace::create("uplink")?;
        internet.plug_guest(&namespace, ADDRESS)?;
        // Where the build is may be closed to other accounts.
        let directory = public_directory()?;
        let collector = "host-collector";
        fs::copy(programs.path(collector), directory.path().join(collector))
            .context("copy the collector")?;
        Ok(Self {
            namespace,
            subnet: internet.subnet(),
            programs: directory,
        })
    }

    /// What makes a container's network lead here. IPv6 is not a default of podman's.
    pub(super) fn engine_arguments(&self) -> Vec<String> {
        let [resolver, _] = self.subnet.resolver();
        vec![
            "--network=slirp4netns:enable_ipv6=true".to_owned(),
            format!("--dns={resolver}"),
        ]
    }

    /// `program`, as the account's, in this place.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let place = format!("--net=/run/netns/{}", self.namespace.name());
        let inner = account(program);
        command
            .arg(place)
            .arg(inner.get_program())
            .args(inner.get_args());
        command.current_dir("/");
        set_up(&mut command);
        command
    }

    /// The collector, which the account may read.
    pub(super) fn collector(&self) -> PathBuf {
        self.programs.path().join("host-collector")
    }
}

/// `program`, as the account's.
pub(super) fn account(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("runuser");
    command
        .args(["-u", ACCOUNT, "--"])
        .arg(program.as_ref())
        .current_dir("/");
    set_up(&mut command);
    command
}

/// Gives `path` to the account.
pub(super) fn give(path: &Path) -> anyhow::Result<()> {
    let id = output_of(Command::new("id").args(["-u", ACCOUNT]))?;
    let id = id.trim().parse().context("the account's id")?;
    chown(path, Some(id), Some(id)).with_context(|| format!("give {} away", path.display()))
}

/// What a login would set, and nothing that says how root's podman is to work.
fn set_up(command: &mut Command) {
    command
        .env("HOME", format!("/home/{ACCOUNT}"))
        .env("XDG_RUNTIME_DIR", format!("/run/{ACCOUNT}"))
        .env_remove("CONTAINERS_CONF")
        .env_remove("DBUS_SESSION_BUS_ADDRESS");
}

/// Says what is missing where the account is.
pub(super) fn require() -> anyhow::Result<()> {
    let runtime = PathBuf::from(format!("/run/{ACCOUNT}"));
    let mode = fs::metadata(&runtime).map(|data| data.permissions().mode() & 0o777);
    ensure!(
        mode.is_ok_and(|mode| mode == 0o700),
        "no {}: run tests/run e2e, which makes the account that podman runs as",
        runtime.display()
    );
    Ok(())
}
