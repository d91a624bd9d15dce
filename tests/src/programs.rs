//! Where the built programs are.

use std::{
    env::current_exe,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// The release builds of our programs.
///
/// They are looked for beside the build of the tests, because that is where cargo puts them, and
/// because asking the environment would let a test run against another build than it names.
#[derive(Debug, Clone)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Finds them.
    pub fn locate() -> anyhow::Result<Self> {
        let test = current_exe().context("find the test's own program")?;
        // target/<triple>/debug/deps/<test>
        let builds = test
            .ancestors()
            .nth(3)
            .context("find cargo's target directory")?;
        Self::of(builds.join("release"))
    }

    /// Finds those that were built with this program.
    pub fn beside() -> anyhow::Result<Self> {
        let own = current_exe().context("find this program")?;
        let directory = own.parent().context("find where this program is")?;
        Self::of(directory.to_owned())
    }

    fn of(directory: PathBuf) -> anyhow::Result<Self> {
        for program in [
            "sandbox-entrypoint",
            "sandbox-egress-proxy",
            "host-collector",
        ] {
            ensure!(
                directory.join(program).is_file(),
                "no {program} in {}: run tests/run, or cargo build --release first",
                directory.display()
            );
        }
        Ok(Self { directory })
    }

    /// The path of one of them.
    #[must_use]
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

/// A temporary directory that other users may look into.
pub fn public_directory() -> anyhow::Result<TempDir> {
    let directory = TempDir::with_prefix("egress-").context("make a temporary directory")?;
    open_to(directory.path(), 0o755).context("open a temporary directory to others")?;
    Ok(directory)
}

/// Sets the permissions of `path`.
pub fn open_to(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
