//! A container engine, driven by its command line: the one interface that docker and podman share,
//! and that works the same for a remote or a rootless one.

mod argument;
mod container;
mod image;
mod plan;
mod remote;

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use report::Printable;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

pub use argument::{RefusedArgument, check_arguments};
pub use container::{Container, State};
pub use image::Image;
pub use plan::{
    CA_BUNDLE, ENTRYPOINT, Guard, HOST_DIRECTORY, Identity, Launch, Network, Plan, RESERVED,
    WORKSPACE, plan,
};

use crate::environment::Environment;

/// The engines that can be driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl EngineKind {
    /// The name of the program, and the word in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Prints the version, if the engine can be worked with.
    const fn probe(self) -> [&'static str; 3] {
        match self {
            Self::Docker => ["version", "--format", "{{.Server.Version}}"],
            Self::Podman => ["version", "--format", "{{.Client.Version}}"],
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What becomes of a client's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOutput {
    /// It is the guest's.
    Kept,
    /// Nobody reads it, and nobody feeds its input.
    Dropped,
}

/// An engine that answered.
#[derive(Debug, Clone)]
pub struct Engine {
    kind: EngineKind,
    program: PathBuf,
}

/// Why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program is not there.
    #[error("no {0} on PATH; install it, or choose another engine with --engine")]
    NotInstalled(EngineKind),
    /// Neither is there, or answers.
    #[error("no container engine: {docker}; {podman}")]
    None {
        /// Why not docker.
        docker: Box<EngineError>,
        /// Why not podman.
        podman: Box<EngineError>,
    },
    /// It is there and does not work.
    #[error(
        "{engine} does not answer: {detail}; start its service, or choose another engine with --engine"
    )]
    Silent {
        /// Which.
        engine: EngineKind,
        /// The last thing it said.
        detail: Printable,
    },
    /// It refused what was asked.
    #[error("{engine} {verb}: {detail}")]
    Refused {
        /// Which.
        engine: EngineKind,
        /// What was asked.
        verb: &'static str,
        /// The last thing it said.
        detail: Printable,
    },
    /// Its answer is not what it should be.
    #[error("{engine} {verb}: an answer that cannot be read: {source}")]
    Unreadable {
        /// Which.
        engine: EngineKind,
        /// What was asked.
        verb: &'static str,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The image is not here and could not be fetched.
    #[error(
        "no image `{image}`: {engine} has none, and could not pull it; build it, or check the name"
    )]
    NoImage {
        /// Which engine.
        engine: EngineKind,
        /// As it was named.
        image: Printable,
    },
    /// It could not be started at all.
    #[error("start {program}: {source}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Engine {
    /// The engine that was asked for, or else the first that answers.
    pub async fn find(
        wanted: Option<EngineKind>,
        environment: &Environment,
    ) -> Result<Self, EngineError> {
        if let Some(kind) = wanted {
            return Self::of_kind(kind, environment).await;
        }
        let docker = match Self::of_kind(EngineKind::Docker, environment).await {
            Ok(engine) => return Ok(engine),
            Err(error) => Box::new(error),
        };
        Self::of_kind(EngineKind::Podman, environment)
            .await
            .map_err(|error| EngineError::None {
                docker,
                podman: Box::new(error),
            })
    }

    async fn of_kind(kind: EngineKind, environment: &Environment) -> Result<Self, EngineError> {
        let program = environment
            .program(kind.as_str())
            .ok_or(EngineError::NotInstalled(kind))?;
        let engine = Self { kind, program };
        match engine.ask("version", kind.probe()).await {
            Ok(_) => Ok(engine),
            Err(EngineError::Refused { engine, detail, .. }) => {
                Err(EngineError::Silent { engine, detail })
            }
            Err(error) => Err(error),
        }
    }

    /// An engine that answered before.
    #[must_use]
    pub const fn of(kind: EngineKind, program: PathBuf) -> Self {
        Self { kind, program }
    }

    /// Its program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Which engine it is.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Starts the client that runs a container, on this process's terminal. What a client says of a
    /// container that it leaves alone is its id, which nobody asked for.
    pub fn launch(&self, plan: &Plan, output: ClientOutput) -> Result<Child, EngineError> {
        let mut client = Command::new(&self.program);
        if output == ClientOutput::Dropped {
            client.stdin(Stdio::null()).stdout(Stdio::null());
        }
        client
            .args(&plan.arguments)
            .envs(plan.environment.iter().map(|(name, value)| (name, value)));
        client.spawn().map_err(|source| self.spawn_error(source))
    }

    /// Runs a subcommand to its end and returns what it printed.
    async fn ask<A: Into<OsString>>(
        &self,
        verb: &'static str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Vec<u8>, EngineError> {
        Ok(self.ask_both(verb, arguments).await?.0)
    }

    /// The same, with what it wrote to standard error.
    async fn ask_both<A: Into<OsString>>(
        &self,
        verb: &'static str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<(Vec<u8>, Vec<u8>), EngineError> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments.into_iter().map(Into::into))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let refused = |detail| EngineError::Refused {
            engine: self.kind,
            verb,
            detail,
        };
        let answer = tokio::time::timeout(PATIENCE, command.output()).await;
        let late = || {
            refused(Printable::new(&format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )))
        };
        let output = answer
            .map_err(|_| late())?
            .map_err(|source| self.spawn_error(source))?;
        if output.status.success() {
            Ok((output.stdout, output.stderr))
        } else {
            Err(refused(last_line(&output.stderr)))
        }
    }

    fn spawn_error(&self, source: io::Error) -> EngineError {
        EngineError::Spawn {
            program: self.program.clone(),
            source,
        }
    }
}

/// Engines end what they have to say with the cause; but podman with the call of a runtime that
/// failed, and the runtime's own word is the line before.
fn last_line(stderr: &[u8]) -> Printable {
    let text = String::from_utf8_lossy(stderr);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next_back().unwrap_or("it did not say why");
    match lines.next_back() {
        Some(cause) if last.contains("failed: exit status ") => {
            Printable::new(&format!("{cause} ({last})"))
        }
        _ => Printable::new(last),
    }
}

/// An engine that is busy takes its time; one that hangs must not hang the caller for good.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::environment::tests::program;

    /// A docker that does this, and writes down what it was told.
    pub(crate) async fn docker(dir: &Path, script: &str) -> Engine {
        let calls = dir.join("calls");
        program(
            dir,
            "docker",
            &format!("echo \"$*\" >>'{}'\n{script}", calls.display()),
        );
        Engine::find(Some(EngineKind::Docker), &path(dir))
            .await
            .unwrap()
    }

    /// What it was told since it was found.
    pub(crate) fn calls(dir: &Path) -> String {
        let calls = fs::read_to_string(dir.join("calls")).unwrap();
        calls.split_once('\n').unwrap().1.to_owned()
    }

    fn path(dir: &Path) -> Environment {
        Environment::of([("PATH", dir.to_str().unwrap())])
    }

    #[tokio::test]
    async fn the_first_engine_that_answers_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        program(dir.path(), "docker", "echo 'Cannot connect' >&2; exit 1");
        program(dir.path(), "podman", "echo 4.3.1");
        assert_eq!(
            Engine::find(None, &path(dir.path())).await.unwrap().kind(),
            EngineKind::Podman
        );
        program(dir.path(), "docker", "echo 20.10");
        assert_eq!(
            Engine::find(None, &path(dir.path())).await.unwrap().kind(),
            EngineKind::Docker
        );
        let asked = Engine::find(Some(EngineKind::Podman), &path(dir.path()))
            .await
            .unwrap();
        assert_eq!(asked.kind(), EngineKind::Podman);
    }

    #[tokio::test]
    async fn no_engine_is_one_line_that_says_what_was_tried() {
        let dir = tempfile::tempdir().unwrap();
        program(
            dir.path(),
            "docker",
            "echo 'first'; echo 'Cannot connect to it' >&2; exit 1",
        );
        let error = Engine::find(None, &path(dir.path()))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("docker does not answer: Cannot connect to it"),
            "{error}"
        );
        assert!(error.contains("no podman on PATH"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn the_cause_is_the_last_line_made_harmless() {
        assert_eq!(
            last_line(b"Unable to find image\ndocker: \x1b[31mno\n\n").as_str(),
            "docker: \\u{1b}[31mno"
        );
        assert_eq!(last_line(b"").as_str(), "it did not say why");
        assert_eq!(
            last_line(b"no network\nError: `runsc start x` failed: exit status 128\n").as_str(),
            "no network (Error: `runsc start x` failed: exit status 128)"
        );
        let alone = "Error: `runsc start x` failed: exit status 128";
        assert_eq!(last_line(alone.as_bytes()).as_str(), alone);
    }

    #[tokio::test]
    async fn an_engine_that_was_asked_for_is_not_replaced_by_another() {
        let dir = tempfile::tempdir().unwrap();
        program(dir.path(), "podman", "echo 4.3.1");
        let error = Engine::find(Some(EngineKind::Docker), &path(dir.path()))
            .await
            .unwrap_err();
        assert!(
            matches!(error, EngineError::NotInstalled(EngineKind::Docker)),
            "{error}"
        );
    }

    #[tokio::test]
    async fn the_client_gets_the_plan_s_variables_in_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "[ \"$1\" = version ] || exit \"$CODE\"").await;
        let plan = Plan {
            arguments: vec!["run".into()],
            environment: vec![("CODE".into(), "42".into())],
        };
        assert_eq!(
            engine
                .launch(&plan, ClientOutput::Kept)
                .unwrap()
                .wait()
                .await
                .unwrap()
                .code(),
            Some(42)
        );
        assert_eq!(calls(dir.path()), "run\n");
    }

    #[tokio::test]
    async fn a_program_that_is_gone_is_named() {
        let engine = Engine {
            kind: EngineKind::Docker,
            program: "/nowhere/docker".into(),
        };
        let error = engine
            .ask("version", ["version"])
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("start /nowhere/docker: "), "{error}");
    }
}
