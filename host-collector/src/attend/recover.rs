//! Runs whose collector is gone: found by a lock that nobody holds, and given to another.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{
    lists, outcome,
    process::Attender,
    registration::{Launcher, Registration},
};
use crate::{
    run_dir::{self, RunDir, RunDirError},
    run_id::RunId,
    session::Session,
};

/// A run that has no line of its end yet.
#[derive(Debug, Clone)]
pub struct Unfinished {
    /// What is known of it: a line without an end.
    pub session: Session,
    /// Whether its container exists, as far as is known.
    pub is_started: bool,
    /// Where that line will be.
    pub audit_dir: Option<PathBuf>,
}

/// Starts a process for every run that nobody attends to. None of them is waited for.
///
/// Must be called within the runtime. What cannot be recovered now is left for the next time.
pub fn recover(runtime_dir: &Path) {
    let mut started = 0;
    for run_id in run_dir::all(runtime_dir) {
        if started == AT_ONCE {
            break;
        }
        // Of two that try at once one gets the lock, and the process that it starts keeps it.
        let Ok(Some(run_dir)) = RunDir::take(runtime_dir, &run_id) else {
            continue;
        };
        match Registration::read(run_dir.path()) {
            // Its collector was killed before there was a run.
            Ok(None) => drop(run_dir),
            Ok(Some(registration)) if awaits_attention(&registration) => run_dir.leave(),
            Ok(Some(registration)) => {
                started += 1;
                let _ = Attender::start(run_dir, &registration);
            }
            Err(_) => run_dir.leave(),
        }
    }
}

/// Whether its launcher has yet to say who attends.
fn awaits_attention(registration: &Registration) -> bool {
    registration.launcher == Launcher::AnotherWhoAttends
        && !registration.patience_left(Timestamp::now()).is_zero()
}

/// Every run that has a directory: it is going on, or its end is yet to be recorded.
#[must_use]
pub fn unfinished(runtime_dir: &Path) -> Vec<Unfinished> {
    let mut runs: Vec<_> = run_dir::all(runtime_dir)
        .into_iter()
        .filter_map(|run_id| {
            let path = run_dir::path(runtime_dir, &run_id);
            let registration = Registration::read(&path).ok()??;
            let mut session = outcome::unfinished(&registration);
            if let Some(policy) = lists::so_far(&path, &registration) {
                session.launch.egress_policy = Some(policy);
            }
            Some(Unfinished {
                session,
                is_started: run_dir::cidfile(&path).exists(),
                audit_dir: registration.audit_dir,
            })
        })
        .collect();
    runs.sort_by(|a, b| b.session.time.cmp(&a.session.time));
    runs
}

/// Who holds a run.
#[derive(Debug)]
pub(crate) enum Held {
    /// Nobody but us, from now on.
    Here(RunDir),
    /// Another process.
    Elsewhere,
    /// There is no such run, or not any more.
    Nowhere,
}

/// Takes a run, if nobody has it.
pub(crate) fn hold(runtime_dir: &Path, run_id: &RunId) -> Result<Held, RunDirError> {
    if !run_dir::path(runtime_dir, run_id).exists() {
        return Ok(Held::Nowhere);
    }
    Ok(RunDir::take(runtime_dir, run_id)?.map_or(Held::Elsewhere, Held::Here))
}

/// Enough to clear up after a crash in a few calls, and not so many that the next verb waits.
const AT_ONCE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::{super::registration::tests::registration, *};

    fn registered(runtime: &Path) -> (RunDir, Registration) {
        let registration = registration(true);
        let run_dir = RunDir::create(runtime, &registration.run_id).unwrap();
        registration.store(run_dir.path()).unwrap();
        (run_dir, registration)
    }

    #[test]
    fn a_run_is_held_by_one_at_a_time() {
        let runtime = tempfile::tempdir().unwrap();
        let (run_dir, registration) = registered(runtime.path());
        let held = || hold(runtime.path(), &registration.run_id).unwrap();
        assert!(matches!(held(), Held::Elsewhere));
        run_dir.leave();
        let here = held();
        assert!(matches!(&here, Held::Here(_)) && matches!(held(), Held::Elsewhere));
        drop(here);
        assert!(matches!(held(), Held::Nowhere));
    }

    #[tokio::test]
    async fn what_somebody_attends_to_is_left_alone_and_what_was_never_registered_is_removed() {
        let runtime = tempfile::tempdir().unwrap();
        let (run_dir, _) = registered(runtime.path());
        let abandoned = RunDir::create(runtime.path(), &RunId::random().unwrap()).unwrap();
        let path = abandoned.path().to_owned();
        abandoned.leave();
        recover(runtime.path());
        assert!(run_dir.path().exists() && !path.exists());
    }

    #[tokio::test]
    async fn what_its_launcher_wants_to_attend_to_is_left_to_it_for_a_while() {
        let runtime = tempfile::tempdir().unwrap();
        let (run_dir, mut registration) = registered(runtime.path());
        registration.launcher = Launcher::AnotherWhoAttends;
        registration.time_ms = Timestamp::now().as_millisecond();
        assert!(awaits_attention(&registration));
        registration.store(run_dir.path()).unwrap();
        let path = run_dir.path().to_owned();
        run_dir.leave();
        recover(runtime.path());
        assert!(path.exists() && !path.join("attend.log").exists());
        registration.time_ms = 0;
        assert!(!awaits_attention(&registration));
    }

    #[test]
    fn every_run_that_has_a_directory_is_unfinished() {
        let runtime = tempfile::tempdir().unwrap();
        let (run_dir, registration) = registered(runtime.path());
        let runs = unfinished(runtime.path());
        let [run] = &runs[..] else { panic!("{runs:?}") };
        assert_eq!(
            run.session.run_id.as_deref(),
            Some(registration.run_id.as_str())
        );
        assert_eq!((run.session.finished, run.is_started), (None, false));
        drop(run_dir);
        assert!(unfinished(runtime.path()).is_empty());
    }
}
