//! What is known of a run before its container exists, written down so that any process can attend
//! to it.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    channel::Terms, engine::EngineKind, environment::Environment, run_id::RunId, session::Launched,
};

/// A run as it was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub run_id: RunId,
    /// When it was registered, in milliseconds since the epoch.
    pub time_ms: i64,
    /// The engine.
    pub engine: EngineKind,
    /// The engine's program.
    pub program: PathBuf,
    /// Variables that tell the program which engine: another process may have others.
    pub engine_environment: BTreeMap<String, String>,
    /// The image, as it was named.
    pub image: String,
    /// What the channel is held to, under an allowlist.
    pub terms: Option<Terms>,
    /// Whether a container that does not report is no run.
    pub report_is_required: bool,
    /// Whether the launcher does not wait for the end.
    pub detached: bool,
    /// Who starts the container.
    pub launcher: Launcher,
    /// How long it may take until the container is started, in seconds.
    pub patience_s: u64,
    /// Where the session log is.
    pub audit_dir: Option<PathBuf>,
    /// Name of the machine.
    pub host: String,
    /// What the log will say of the launch.
    pub record: Launched,
}

/// Who starts a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launcher {
    /// This program.
    Ours,
    /// Another.
    Another,
    /// Another, which also sees to it that somebody attends.
    AnotherWhoAttends,
}

/// Why a run is not known.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// It cannot be written or read.
    #[error("{verb} {path}: {source}; look at that directory")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("read {path}: {source}; it is of another version: use that, or remove its directory")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl Registration {
    /// When it was registered.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.time_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// How much longer the container may take to be started.
    #[must_use]
    pub fn patience_left(&self, now: Timestamp) -> Duration {
        let waited = now.duration_since(self.time()).unsigned_abs();
        Duration::from_secs(self.patience_s).saturating_sub(waited)
    }

    /// Writes it into the run's directory, whole or not at all.
    pub fn store(&self, run_dir: &Path) -> Result<(), RegistrationError> {
        let path = file(run_dir);
        let io = |source| RegistrationError::Io {
            verb: "write",
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec(self).map_err(|error| io(error.into()))?;
        write_whole(&path, &text).map_err(io)
    }

    /// Reads that of a run's directory; `None` if there is none.
    pub fn read(run_dir: &Path) -> Result<Option<Self>, RegistrationError> {
        let path = file(run_dir);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(RegistrationError::Io {
                    verb: "read",
                    path,
                    source,
                });
            }
            Ok(text) => text,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| RegistrationError::Unreadable { path, source })
    }
}

/// What of the environment tells an engine's client where the engine is.
pub(crate) fn engine_environment(environment: &Environment) -> BTreeMap<String, String> {
    let value = |name: &str| Some((name.to_owned(), environment.get(name)?.to_str()?.to_owned()));
    ENGINE_VARIABLES.into_iter().filter_map(value).collect()
}

/// Writes a private file that is never seen half written.
pub(super) fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&part)?.write_all(text)?;
    fs::rename(part, path)
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("run.json")
}

const ENGINE_VARIABLES: [&str; 8] = [
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINERS_CONF",
];

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    pub(crate) fn registration(allowlist: bool) -> Registration {
        Registration {
            run_id: RunId::random().unwrap(),
            time_ms: 1_000,
            engine: EngineKind::Docker,
            program: "/nowhere/docker".into(),
            engine_environment: BTreeMap::new(),
            image: "img".into(),
            terms: allowlist.then(|| Terms::random(None).unwrap()),
            report_is_required: true,
            detached: false,
            launcher: Launcher::Ours,
            patience_s: 300,
            audit_dir: None,
            host: "host".into(),
            record: Launched::default(),
        }
    }

    #[test]
    fn another_process_reads_what_was_registered_and_nobody_else_can() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Registration::read(dir.path()).unwrap().is_none());
        let stored = registration(true);
        stored.store(dir.path()).unwrap();
        let read = Registration::read(dir.path()).unwrap().unwrap();
        assert_eq!((read.run_id, read.time_ms), (stored.run_id, stored.time_ms));
        let nonce = stored.terms.unwrap().nonce;
        assert!(read.terms.unwrap().nonce.matches(nonce.expose()));
        let mode = fs::metadata(file(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_no_registration_is_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(file(dir.path()), "{}").unwrap();
        let line = Registration::read(dir.path()).unwrap_err().to_string();
        assert!(
            line.contains("run.json") && line.contains("another version"),
            "{line}"
        );
        let line = registration(false)
            .store(Path::new("/nowhere"))
            .unwrap_err();
        assert!(
            line.to_string().starts_with("write /nowhere/run.json: "),
            "{line}"
        );
    }

    #[test]
    fn patience_ends_whichever_way_the_clock_steps() {
        let registration = registration(false);
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        assert_eq!(registration.patience_left(at(1_000)).as_secs(), 300);
        assert_eq!(registration.patience_left(at(101_000)).as_secs(), 200);
        assert_eq!(registration.patience_left(at(9_999_000)).as_secs(), 0);
        assert_eq!(registration.patience_left(at(-9_999_000)).as_secs(), 0);
    }

    #[test]
    fn only_what_names_the_engine_is_written_down() {
        let environment = Environment::of([("DOCKER_HOST", "unix:///x"), ("TOKEN", "s3cret")]);
        let kept = engine_environment(&environment);
        assert_eq!(
            kept.into_iter().collect::<Vec<_>>(),
            [("DOCKER_HOST".to_owned(), "unix:///x".to_owned())]
        );
    }
}
