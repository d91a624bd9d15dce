//! The directory of one run while it lasts: out of reach for other users of the host.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::run_id::RunId;

/// `<runtime dir>/host-collector/runs/<run_id>/`, removed when dropped.
///
/// Whoever can enter it can speak to the collector in the place of the container, so every
/// directory above it that is ours is 0700, and is refused if somebody else made it.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

/// Why a run has no directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The system refused.
    #[error("cannot make {path}: {source}; set XDG_RUNTIME_DIR to a directory of yours")]
    Make {
        /// What was to be made.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is something else in its place.
    #[error("{path} is not a directory of this user; remove it or set XDG_RUNTIME_DIR")]
    Foreign {
        /// The place.
        path: PathBuf,
    },
}

impl RunDir {
    /// Makes the directory of a run.
    pub fn create(runtime_dir: &Path, run_id: &RunId) -> Result<Self, RunDirError> {
        let mut path = runtime_dir.to_owned();
        for part in ["host-collector", "runs"] {
            path.push(part);
            private_directory(&path)?;
        }
        path.push(run_id.as_str());
        make(&path)?;
        Ok(Self { path })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the engine writes the container's id.
    #[must_use]
    pub fn cidfile(&self) -> PathBuf {
        self.path.join("cid")
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // What cannot be removed goes with the session: it is no reason to fail a run.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn private_directory(path: &Path) -> Result<(), RunDirError> {
    match make(path) {
        Err(RunDirError::Make { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let foreign = || RunDirError::Foreign {
        path: path.to_owned(),
    };
    let found = fs::symlink_metadata(path).map_err(|_| foreign())?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(foreign());
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|_| foreign())
}

fn make(path: &Path) -> Result<(), RunDirError> {
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(|source| RunDirError::Make {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_can_enter_and_nothing_is_left_behind() {
        let runtime = tempfile::tempdir().unwrap();
        let run = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap();
        let path = run.path().to_owned();
        for dir in path.ancestors().take(3) {
            assert_eq!(mode(dir), 0o700, "{}", dir.display());
        }
        drop(run);
        assert!(!path.exists());
    }

    #[test]
    fn directories_left_open_by_an_earlier_version_are_closed() {
        let runtime = tempfile::tempdir().unwrap();
        let ours = runtime.path().join("host-collector");
        fs::create_dir(&ours).unwrap();
        fs::set_permissions(&ours, Permissions::from_mode(0o777)).unwrap();
        let _run = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap();
        assert_eq!(mode(&ours), 0o700);
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let runtime = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), runtime.path().join("host-collector"))
            .unwrap();
        let refused = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap_err();
        assert!(matches!(refused, RunDirError::Foreign { .. }), "{refused}");
    }

    #[test]
    fn what_cannot_be_made_is_named_with_the_remedy() {
        let refused = RunDir::create(Path::new("/nowhere"), &RunId::random().unwrap()).unwrap_err();
        let line = refused.to_string();
        assert!(
            line.contains("/nowhere/host-collector") && line.contains("XDG_RUNTIME_DIR"),
            "{line}"
        );
    }
}
