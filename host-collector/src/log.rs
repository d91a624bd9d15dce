//! The session log: one line per run, appended by any number of collectors at once.
//!
//! It never fails or delays a run. What it forgets, it counts.

mod append;
pub(crate) mod checkpoint;
mod evidence;
mod follow;
mod generations;
mod glances;
pub(crate) mod key;
mod lines;
mod mark;
mod read;
mod rotate;
mod tail;
mod verify;

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

pub use append::{Limits, Log, NotAppended};
pub use evidence::{Evidence, evidence_of};
pub use follow::{Follower, News};
pub(crate) use glances::glances;
pub use key::KeyError;
pub use read::{Entries, Entry};
pub use verify::{Finding, Findings, Kind, Place, Progress, Report, verify};

use crate::session::Session;

/// Why a line is not in the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Nobody said where, and there is no home.
    #[error("nowhere to keep the session log; set SANDBOX_AUDIT_DIR or HOME")]
    Nowhere,
    /// The system refused something.
    #[error("{verb} {path}: {source}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The line could not be put into JSON.
    #[error("write the session line: {0}")]
    Json(#[from] serde_json::Error),
    /// Another process holds the lock, or the disk does not answer.
    #[error("the session log did not answer within {} s", PATIENCE.as_secs())]
    Busy,
}

impl LogError {
    pub(crate) fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            verb,
            path: path.to_owned(),
            source,
        }
    }
}

/// Keeps the details and the line of a run, in a thread that is left behind if it does not come
/// back: the run's exit must not hang on a disk.
///
/// # Errors
/// When the line is not in the log. The run is over and did what it did either way.
pub fn record(dir: PathBuf, session: Session, journal: Option<PathBuf>) -> Result<(), LogError> {
    record_within(PATIENCE, dir, session, journal)
}

fn record_within(
    patience: Duration,
    dir: PathBuf,
    session: Session,
    journal: Option<PathBuf>,
) -> Result<(), LogError> {
    let (done, outcome) = mpsc::sync_channel(1);
    let work = move || {
        // If nobody waits any more, nobody is told.
        let _ = done.send(record_now(&dir, session, journal.as_deref()));
    };
    let spawned = thread::Builder::new()
        .name("session-log".into())
        .spawn(work);
    spawned.map_err(LogError::io(
        "start a thread for",
        Path::new("the session log"),
    ))?;
    outcome
        .recv_timeout(patience)
        .unwrap_or(Err(LogError::Busy))
}

fn record_now(dir: &Path, mut session: Session, journal: Option<&Path>) -> Result<(), LogError> {
    let log = Log::open(dir, Limits::default())?;
    if let (Some(journal), Some(run_id)) = (journal, &session.run_id) {
        // The line is worth more than its details: it is written without them.
        if let Ok(kept) = Evidence::of(dir).keep(run_id, journal) {
            session.evidence = kept.to_str().map(ToOwned::to_owned);
        }
    }
    log.append(&session)
}

const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn session(run_id: &str) -> Session {
        Session {
            run_id: Some(run_id.into()),
            ..Session::default()
        }
    }

    #[test]
    fn a_run_leaves_its_line_and_its_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal");
        fs::write(&journal, "{}\n").unwrap();
        record(dir.path().join("audit"), session("ab"), Some(journal)).unwrap();
        let entry = Entries::open(&dir.path().join("audit")).next().unwrap();
        let evidence = entry.session.evidence.unwrap();
        assert_eq!(
            fs::read_to_string(Path::new(&evidence).join("journal.jsonl")).unwrap(),
            "{}\n"
        );
    }

    #[test]
    fn a_lost_journal_does_not_cost_the_line() {
        let dir = tempfile::tempdir().unwrap();
        record(
            dir.path().to_owned(),
            session("ab"),
            Some(dir.path().join("nowhere")),
        )
        .unwrap();
        let entry = Entries::open(dir.path()).next().unwrap();
        assert_eq!(
            (entry.session.run_id.as_deref(), entry.session.evidence),
            (Some("ab"), None)
        );
    }

    #[test]
    fn a_lock_that_nobody_gives_up_does_not_hold_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let lock = fs::File::create(dir.path().join("sessions.lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let patience = Duration::from_millis(20);
        let error =
            record_within(patience, dir.path().to_owned(), session("ab"), None).unwrap_err();
        assert!(matches!(error, LogError::Busy), "{error}");
    }

    #[test]
    fn a_log_that_cannot_be_written_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = record(file.join("audit"), session("ab"), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("file/audit"), "{error}");
    }
}
