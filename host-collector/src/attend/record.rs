//! Puts the lines of a run into the log, each once, however often its collector is killed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{open, outcome, registration::Registration};
use crate::{
    log::{self, Entries, LogError},
    session::Session,
};

/// Notes that the guest was started, for the collector that comes after this one.
pub(super) fn note_launch(run_dir: &Path, registration: &Registration) {
    if mark(run_dir, LAUNCHED) {
        open::note(run_dir, registration);
    }
}

/// Whether a collector has seen the guest started.
pub(super) fn was_launched(run_dir: &Path) -> bool {
    run_dir.join(LAUNCHED).exists()
}

/// Writes the line of a launch, unless that was tried before: it says nothing that the line of the
/// end does not.
pub(super) fn at_launch(run_dir: &Path, registration: &Registration) -> Result<(), LogError> {
    if !mark(run_dir, "launch.line") {
        return Ok(());
    }
    let session = outcome::unfinished(registration);
    log::record(audit_dir(registration)?, session, None)
}

/// Writes the line of an end, unless another collector did before it was killed.
pub(super) fn at_end(
    run_dir: &Path,
    registration: &Registration,
    session: &Session,
    journal: Option<PathBuf>,
) -> Result<(), LogError> {
    let dir = audit_dir(registration)?;
    // Only where a collector got as far as this must the log be read.
    if mark(run_dir, "end.line") || !is_in_log(&dir, registration.run_id.as_str()) {
        log::record(dir, session.clone(), journal)?;
    }
    open::close(registration);
    Ok(())
}

/// Says that a line is about to be written; false if that was said before.
fn mark(run_dir: &Path, name: &str) -> bool {
    let made = fs::File::create_new(run_dir.join(name));
    !made.is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists)
}

fn is_in_log(dir: &Path, run_id: &str) -> bool {
    Entries::open(dir).any(|entry| {
        entry.session.run_id.as_deref() == Some(run_id) && entry.session.finished == Some(true)
    })
}

const LAUNCHED: &str = "launched";

fn audit_dir(registration: &Registration) -> Result<PathBuf, LogError> {
    registration.audit_dir.clone().ok_or(LogError::Nowhere)
}

#[cfg(test)]
mod tests {
    use super::{super::registration::tests::registration, *};

    fn lines(dir: &Path) -> Vec<Option<bool>> {
        let mut lines: Vec<_> = Entries::open(dir)
            .map(|entry| entry.session.finished)
            .collect();
        lines.reverse();
        lines
    }

    #[test]
    fn each_line_is_written_once_whoever_tries_again() {
        let (run, audit) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let registration = Registration {
            audit_dir: Some(audit.path().to_owned()),
            detached: true,
            ..registration(false)
        };
        let end = Session {
            finished: Some(true),
            ..outcome::unfinished(&registration)
        };
        for _ in 0..3 {
            at_launch(run.path(), &registration).unwrap();
            at_end(run.path(), &registration, &end, None).unwrap();
        }
        assert_eq!(lines(audit.path()), [None, Some(true)]);
    }

    #[test]
    fn a_line_that_was_announced_and_not_written_is_written() {
        let (run, audit) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let registration = Registration {
            audit_dir: Some(audit.path().to_owned()),
            ..registration(false)
        };
        assert!(mark(run.path(), "end.line") && !mark(run.path(), "end.line"));
        let end = Session {
            finished: Some(true),
            ..outcome::unfinished(&registration)
        };
        at_end(run.path(), &registration, &end, None).unwrap();
        assert_eq!(lines(audit.path()), [Some(true)]);
    }

    #[test]
    fn what_one_collector_has_seen_the_next_one_knows() {
        let run = tempfile::tempdir().unwrap();
        assert!(!was_launched(run.path()));
        note_launch(run.path(), &registration(true));
        note_launch(run.path(), &registration(true));
        assert!(was_launched(run.path()));
    }

    #[test]
    fn without_a_place_for_the_log_that_is_said() {
        let run = tempfile::tempdir().unwrap();
        let error = at_launch(run.path(), &registration(false)).unwrap_err();
        assert!(matches!(error, LogError::Nowhere), "{error}");
    }
}
