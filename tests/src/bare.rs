//! Guests without an engine: the real entrypoint and proxy in namespaces that the tests make.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use tempfile::TempDir;

use crate::{
    internet::Internet,
    namespace::Namespace,
    process::Running,
    programs::{Programs, open_to, public_directory},
};

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
sandbox:x:1000:1000::/tmp:/bin/sh
sandbox-proxy:x:990:990::/nonexistent:/usr/sbin/nologin
";
const GROUP: &str = "root:x:0:\nsandbox:x:1000:\nsandbox-proxy:x:990:\n";
/// The last part of a guest's address.
const ADDRESS: u8 = 200;
/// What an engine's default environment has, and nothing of this machine's.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A place for one guest: namespace, files and the directory of its channel.
#[derive(Debug)]
pub struct Bare {
    namespace: Namespace,
    directory: TempDir,
}

impl Bare {
    /// Makes one on `internet`.
    pub fn create(programs: &Programs, internet: &Internet) -> anyhow::Result<Self> {
        let namespace = Namespace::create("guest")?;
        internet.plug_guest(&namespace, ADDRESS)?;
        let directory = public_directory()?;
        let bare = Self {
            namespace,
            directory,
        };
        bare.lay_files(programs, internet)
            .context("lay the files of a guest")?;
        Ok(bare)
    }

    /// The directory whose `report.sock` the entrypoint connects to.
    #[must_use]
    pub fn channel(&self) -> PathBuf {
        self.path("channel")
    }

    /// Where the guest starts, and may write.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// Starts the entrypoint as process 1, with `env` and no other variable of note.
    pub fn start<'a>(
        &self,
        env: impl IntoIterator<Item = (String, String)>,
        command: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Running> {
        let mut child = self.namespace.command("unshare");
        child
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
            .arg(self.path("guest.sh"))
            .arg(self.directory.path())
            .args(command)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("SSL_CERT_FILE", self.workspace().join("ca.pem"))
            .envs(env);
        Running::start(&mut child)
    }

    /// A command in the guest's network, but not kept to anything: what an attacker who got past
    /// the entrypoint could do.
    #[must_use]
    pub fn unguarded(&self, program: &str) -> Command {
        self.namespace.command(program)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lay_files(&self, programs: &Programs, internet: &Internet) -> anyhow::Result<()> {
        for name in ["etc", "channel", "bin", "workspace"] {
            fs::create_dir(self.path(name))?;
        }
        let [resolver, _] = internet.subnet().resolver();
        for (name, text) in [
            ("etc/passwd", PASSWD),
            ("etc/group", GROUP),
            ("etc/resolv.conf", &format!("nameserver {resolver}\n")),
            ("workspace/ca.pem", internet.root_certificate()),
            ("guest.sh", include_str!("guest.sh")),
        ] {
            fs::write(self.path(name), text)?;
            open_to(&self.path(name), 0o644)?;
        }
        for program in ["sandbox-entrypoint", "sandbox-egress-proxy"] {
            place(&programs.path(program), &self.path("bin").join(program))?;
        }
        open_to(&self.workspace(), 0o777)?;
        Ok(())
    }
}

/// Copies rather than links: where the build is may be closed to other users, or another disk.
fn place(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("copy {}", from.display()))
        .map(drop)
}
