//! The directory of one run while it lasts: out of reach for other users of the host, and in the
//! hands of one process at a time.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{
            DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
        },
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::run_id::RunId;

/// `<runtime dir>/host-collector/runs/<run_id>/`, removed when dropped.
///
/// Whoever can enter it can speak to the collector in the place of the container, so every
/// directory above it that is ours is 0700, and is refused if somebody else made it.
///
/// Whoever has this holds the lock in it. A process that dies lets go of that, whatever it dies of:
/// so a directory whose lock nobody holds is a run that nobody attends to.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: File,
    left: bool,
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
    /// Its lock cannot be had.
    #[error("cannot lock {path}: {source}; look at that directory")]
    Lock {
        /// The lock.
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
        let lock = path.join(LOCK);
        let held = new_lock(&path.join(UNHELD), &lock);
        match held {
            Ok(lock) => Ok(Self {
                path,
                lock,
                left: false,
            }),
            Err(source) => {
                let _ = fs::remove_dir_all(&path);
                Err(RunDirError::Lock { path: lock, source })
            }
        }
    }

    /// Takes over the directory of a run that nobody attends to; `None` if somebody does, or there
    /// is none.
    pub fn take(runtime_dir: &Path, run_id: &RunId) -> Result<Option<Self>, RunDirError> {
        let path = path(runtime_dir, run_id);
        let name = path.join(LOCK);
        let refused = |source| RunDirError::Lock {
            path: name.clone(),
            source,
        };
        let lock = match OpenOptions::new().write(true).open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                remove_if_old(&path);
                return Ok(None);
            }
            opened => opened.map_err(refused)?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.map_err(|errno| refused(errno.into()))?,
        }
        // Its last holder may have removed it while this opened it.
        let is_there = lock.metadata().map_err(refused)?.nlink() > 0;
        Ok(is_there.then_some(Self {
            path,
            lock,
            left: false,
        }))
    }

    /// Takes the directory of a run over from a process that has handed on its lock.
    ///
    /// # Errors
    /// When that is no lock, or one of another directory.
    pub fn inherit(runtime_dir: &Path, run_id: &RunId, lock: OwnedFd) -> Result<Self, RunDirError> {
        let path = path(runtime_dir, run_id);
        let (name, lock) = (path.join(LOCK), File::from(lock));
        let refused = |source| RunDirError::Lock {
            path: name.clone(),
            source,
        };
        let (ours, theirs) = (
            fs::metadata(&name).map_err(refused)?,
            lock.metadata().map_err(refused)?,
        );
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        }
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| refused(errno.into()))?;
        Ok(Self {
            path,
            lock,
            left: false,
        })
    }

    /// The lock, to be handed on to another process: it is held until both have let go of it.
    pub fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Leaves the directory as it is, for another process.
    pub fn leave(mut self) {
        self.left = true;
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the engine writes the container's id.
    #[must_use]
    pub fn cidfile(&self) -> PathBuf {
        cidfile(&self.path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // What cannot be removed goes with the session: it is no reason to fail a run. The lock goes
        // last, so that nobody takes half a directory for a run.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name() != LOCK {
                let path = entry.path();
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The runs that have a directory.
#[must_use]
pub fn all(runtime_dir: &Path) -> Vec<RunId> {
    let entries = fs::read_dir(runs(runtime_dir))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| RunId::try_from(name).ok())
        .collect()
}

/// Where the directory of a run is, if there is one.
#[must_use]
pub fn path(runtime_dir: &Path, run_id: &RunId) -> PathBuf {
    runs(runtime_dir).join(run_id.as_str())
}

/// Where the engine writes the container's id.
#[must_use]
pub fn cidfile(run_dir: &Path) -> PathBuf {
    run_dir.join("cid")
}

/// Where the directories of runs are.
pub(crate) fn runs(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("host-collector").join("runs")
}

/// A lock that is held before it has its name: somebody who looks for runs that nobody attends to
/// would take one that is free, and with it the run that is being made.
fn new_lock(unheld: &Path, lock: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(unheld)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(unheld, lock)?;
    Ok(file)
}

/// A directory without a lock is about to get one, or its maker was killed before it did.
fn remove_if_old(path: &Path) {
    let made = fs::metadata(path).and_then(|metadata| metadata.modified());
    let age = made.map(|made| SystemTime::now().duration_since(made).unwrap_or_default());
    if age.is_ok_and(|age| age > Duration::from_secs(60)) {
        let _ = fs::remove_file(path.join(UNHELD));
        let _ = fs::remove_dir(path);
    }
}

const UNHELD: &str = "lock.new";
const LOCK: &str = "lock";

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
    use std::sync::atomic::{AtomicBool, Ordering};

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

    #[test]
    fn whoever_looks_for_runs_without_an_attendant_never_gets_one_that_is_being_made() {
        let runtime = tempfile::tempdir().unwrap();
        let all_made = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runtime = runtime.path();
            let looking = scope.spawn(|| {
                let mut taken = 0;
                while !all_made.load(Ordering::Relaxed) {
                    let taking = all(runtime)
                        .into_iter()
                        .map(|run| RunDir::take(runtime, &run));
                    taken += taking.filter(|took| !matches!(took, Ok(None))).count();
                }
                taken
            });
            let runs: Vec<_> = (0..500)
                .map(|_| RunDir::create(runtime, &RunId::random().unwrap()))
                .collect();
            all_made.store(true, Ordering::Relaxed);
            assert_eq!(looking.join().unwrap(), 0);
            assert!(runs.iter().all(Result::is_ok), "{runs:?}");
        });
    }

    #[test]
    fn a_directory_is_in_one_hand_at_a_time_and_taken_from_whoever_let_go() {
        let runtime = tempfile::tempdir().unwrap();
        let run_id = RunId::random().unwrap();
        let take = || RunDir::take(runtime.path(), &run_id).unwrap();
        assert!(take().is_none());
        let run = RunDir::create(runtime.path(), &run_id).unwrap();
        assert!(take().is_none());
        run.leave();
        let taken = take().unwrap();
        assert!(take().is_none());
        assert_eq!(all(runtime.path()), std::slice::from_ref(&run_id));
        drop(taken);
        assert!(take().is_none() && all(runtime.path()).is_empty());
    }

    #[test]
    fn a_lock_that_is_handed_on_is_held_all_the_while() {
        let runtime = tempfile::tempdir().unwrap();
        let run_id = RunId::random().unwrap();
        let run = RunDir::create(runtime.path(), &run_id).unwrap();
        let lock = run.lock().unwrap();
        run.leave();
        assert!(RunDir::take(runtime.path(), &run_id).unwrap().is_none());
        let heir = RunDir::inherit(runtime.path(), &run_id, lock.into()).unwrap();
        assert!(RunDir::take(runtime.path(), &run_id).unwrap().is_none());
        heir.leave();
        assert!(RunDir::take(runtime.path(), &run_id).unwrap().is_some());
    }

    #[test]
    fn another_file_is_no_lock() {
        let runtime = tempfile::tempdir().unwrap();
        let run = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap();
        let run_id = RunId::try_from(run.path().file_name().unwrap().to_str().unwrap().to_owned());
        let null = File::open("/dev/null").unwrap();
        let refused = RunDir::inherit(runtime.path(), &run_id.unwrap(), null.into());
        assert!(
            matches!(refused, Err(RunDirError::Lock { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn what_was_made_a_moment_ago_is_not_taken_for_a_leftover() {
        let runtime = tempfile::tempdir().unwrap();
        let run_id = RunId::random().unwrap();
        let path = path(runtime.path(), &run_id);
        fs::create_dir_all(&path).unwrap();
        assert!(RunDir::take(runtime.path(), &run_id).unwrap().is_none());
        assert!(path.exists());
        let old = SystemTime::now() - Duration::from_secs(3600);
        File::open(&path).unwrap().set_modified(old).unwrap();
        assert!(RunDir::take(runtime.path(), &run_id).unwrap().is_none());
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_run_is_not_listed() {
        let runtime = tempfile::tempdir().unwrap();
        assert!(all(runtime.path()).is_empty());
        let _run = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap();
        fs::create_dir(runs(runtime.path()).join("..x")).unwrap();
        fs::write(runs(runtime.path()).join("file"), "").unwrap();
        assert_eq!(all(runtime.path()).len(), 1);
    }
}
