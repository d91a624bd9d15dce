//! One container of an engine: how it fares, signals to it, its removal.

use jiff::Timestamp;
use report::Printable;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Engine, EngineError, last_line,
    plan::{ENTRYPOINT, LABEL},
};
use crate::run_id::RunId;

/// A container that was created.
#[derive(Debug, Clone)]
pub struct Container<'a> {
    engine: &'a Engine,
    id: String,
}

/// What the engine says of a container.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct State {
    state: Inner,
    #[serde(default)]
    networks: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Inner {
    running: bool,
    pid: i32,
    /// Of podman's.
    conmon_pid: i32,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    exit_code: i32,
    started_at: String,
    finished_at: String,
}

impl State {
    /// Whether it runs. One that is being stopped, or is suspended, does not as some engines put it,
    /// and has not ended either.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state.running || (self.was_started() && self.state.finished_at.starts_with(NEVER))
    }

    /// The number of its first process, if it has one.
    pub(crate) const fn process(&self) -> Option<i32> {
        if self.state.pid > 0 {
            Some(self.state.pid)
        } else {
            None
        }
    }

    /// The number of the process that tells podman of its end.
    pub(crate) const fn monitor(&self) -> Option<i32> {
        if self.state.conmon_pid > 0 {
            Some(self.state.conmon_pid)
        } else {
            None
        }
    }

    /// Whether the kernel ran out of memory for it.
    #[must_use]
    pub const fn is_oom_killed(&self) -> bool {
        self.state.oom_killed
    }

    /// Whether its first process was ever started. The engines write the year 1 where it was not.
    #[must_use]
    pub fn was_started(&self) -> bool {
        !self.state.started_at.is_empty() && !self.state.started_at.starts_with(NEVER)
    }

    /// When its first process was started.
    #[must_use]
    pub fn started_at(&self) -> Option<Timestamp> {
        time(&self.state.started_at)
    }

    /// When it had ended.
    #[must_use]
    pub fn finished_at(&self) -> Option<Timestamp> {
        time(&self.state.finished_at).filter(|_| !self.is_running())
    }

    /// The exit code of its first process, if that was started and has ended.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        (self.was_started() && !self.is_running()).then_some(self.state.exit_code)
    }

    /// The network that it joined.
    #[must_use]
    pub fn network_name(&self) -> Option<&str> {
        self.networks.as_ref()?.keys().next().map(String::as_str)
    }
}

/// The engines write the year 1 for what has not happened.
fn time(text: &str) -> Option<Timestamp> {
    let happened = !text.starts_with(NEVER);
    text.parse().ok().filter(|_| happened)
}

/// The year 1.
const NEVER: &str = "0001-";

impl Engine {
    /// Whether the numbers of processes that it tells are those of this machine, as far as the
    /// engine says so.
    pub(crate) async fn is_of_this_machine(&self) -> bool {
        let arguments = ["info", "--format", "{{.Host.ServiceIsRemote}}"];
        let answer = self.ask("info", arguments).await;
        answer.is_ok_and(|answer| answer.trim_ascii() == b"false")
    }

    /// The id of a run's container, found by its label.
    pub async fn labelled(&self, run_id: &RunId) -> Result<Option<String>, EngineError> {
        let filter = format!("label={LABEL}={run_id}");
        let arguments = ["ps", "--all", "--no-trunc", "--quiet", "--filter", &filter];
        let answer = self.ask("ps", arguments).await?;
        let ids = String::from_utf8_lossy(&answer);
        Ok(ids.split_whitespace().next().map(ToOwned::to_owned))
    }

    /// The container with this id.
    #[must_use]
    pub fn container(&self, id: String) -> Container<'_> {
        Container { engine: self, id }
    }
}

impl Container<'_> {
    /// Asks how it fares.
    pub async fn state(&self) -> Result<State, EngineError> {
        let verb = "container inspect";
        let format = r#"{"state":{{json .State}},"networks":{{json .NetworkSettings.Networks}}}"#;
        let answer = self
            .engine
            .ask(verb, ["container", "inspect", "--format", format, &self.id])
            .await?;
        serde_json::from_slice(&answer).map_err(|source| EngineError::Unreadable {
            engine: self.engine.kind,
            verb,
            source,
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sends a signal to its first process.
    pub async fn signal(&self, name: &str) -> Result<(), EngineError> {
        self.engine
            .ask("kill", ["kill", "--signal", name, &self.id])
            .await
            .map(drop)
    }

    /// Waits until it has ended, however long that takes.
    pub async fn ended(&self) -> Result<(), EngineError> {
        let mut wait = tokio::process::Command::new(&self.engine.program);
        wait.args(["wait", &self.id])
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        wait.output()
            .await
            .map(drop)
            .map_err(|source| self.engine.spawn_error(source))
    }

    /// The last line that it has written to its standard error, or else to its output.
    pub async fn last_words(&self) -> Result<Printable, EngineError> {
        let arguments = ["logs", "--tail", "10", &self.id];
        let (out, error) = self.engine.ask_both("logs", arguments).await?;
        Ok(last_line(if error.is_empty() { &out } else { &error }))
    }

    /// The client that brings the channel of its PID 1. Started at the root, since the guest may
    /// have removed the directory that the container starts in.
    #[must_use]
    pub fn stream(&self) -> tokio::process::Command {
        let mut client = tokio::process::Command::new(&self.engine.program);
        client
            .args(["exec", "--interactive", "--user", "0:0", "--workdir", "/"])
            .args([&self.id, ENTRYPOINT, "stream"]);
        client
    }

    /// Removes it, running or not.
    pub async fn remove(&self) -> Result<(), EngineError> {
        self.engine
            .ask("rm", ["rm", "--force", &self.id])
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{calls, docker};

    fn state(json: &str) -> State {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_container_that_ran_has_a_code_and_a_network() {
        let state = state(
            r#"{"state":{"Status":"exited","Running":false,"OOMKilled":true,"ExitCode":3,"Error":"",
                "StartedAt":"2026-11-29T16:44:43.3Z"},"networks":{"bridge":{"Links":null}}}"#,
        );
        assert_eq!(
            (
                state.exit_code(),
                state.is_oom_killed(),
                state.network_name()
            ),
            (Some(3), true, Some("bridge"))
        );
    }

    #[test]
    fn a_container_that_never_ran_has_no_code_whatever_the_engine_writes() {
        for code in [0, 127] {
            let state = state(&format!(
                r#"{{"state":{{"ExitCode":{code},"StartedAt":"0001-01-01T00:00:00Z"}},"networks":null}}"#
            ));
            assert_eq!(
                (state.was_started(), state.exit_code(), state.network_name()),
                (false, None, None)
            );
        }
    }

    #[test]
    fn a_running_container_has_no_code_yet() {
        let state =
            state(r#"{"state":{"Running":true,"ExitCode":0,"StartedAt":"2026-11-29T16:44:43Z"}}"#);
        assert_eq!((state.is_running(), state.exit_code()), (true, None));
    }

    #[test]
    fn times_that_the_engine_does_not_know_are_none() {
        let of = |started, finished, running| {
            state(&format!(
                r#"{{"state":{{"Running":{running},"StartedAt":"{started}","FinishedAt":"{finished}"}}}}"#
            ))
        };
        let (at, never) = ("2026-11-29T16:44:43Z", "0001-01-01T00:00:00Z");
        let ended = of(at, at, false);
        assert_eq!(
            (ended.started_at(), ended.finished_at()),
            (at.parse().ok(), at.parse().ok())
        );
        let again = of(at, at, true);
        assert_eq!(
            (again.started_at(), again.finished_at()),
            (at.parse().ok(), None)
        );
        let made = of(never, never, false);
        assert_eq!((made.started_at(), made.finished_at()), (None, None));
        assert_eq!(of("", "soon", false).finished_at(), None);
    }

    #[tokio::test]
    async fn a_container_is_found_by_its_run() {
        let run = RunId::random().unwrap();
        for (answer, found) in [("abc", Some("abc")), ("abc\ndef", Some("abc")), ("", None)] {
            let dir = tempfile::tempdir().unwrap();
            let engine = docker(dir.path(), &format!("echo '{answer}'")).await;
            assert_eq!(engine.labelled(&run).await.unwrap().as_deref(), found);
            let asked =
                format!("ps --all --no-trunc --quiet --filter label=sandbox-egress.run={run}\n");
            assert_eq!(calls(dir.path()), asked);
        }
    }

    #[tokio::test]
    async fn a_container_is_told_by_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "").await;
        let container = engine.container("abc".into());
        container.signal("TERM").await.unwrap();
        container.ended().await.unwrap();
        container.remove().await.unwrap();
        assert_eq!(
            calls(dir.path()),
            "kill --signal TERM abc\nwait abc\nrm --force abc\n"
        );
    }

    #[tokio::test]
    async fn the_last_words_of_a_container_are_one_harmless_line() {
        for (script, words) in [
            (
                "echo out; echo no >&2; printf 'why\\033[2J\\n' >&2",
                "why\\u{1b}[2J",
            ),
            ("echo out", "out"),
            (":", "it did not say why"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let engine = docker(dir.path(), script).await;
            let said = engine.container("abc".into()).last_words().await.unwrap();
            assert_eq!(said.as_str(), words);
            assert_eq!(calls(dir.path()), "logs --tail 10 abc\n");
        }
    }

    #[tokio::test]
    async fn what_the_engine_refuses_is_an_error_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(
            dir.path(),
            "[ \"$1\" = version ] || { echo 'no such container' >&2; exit 1; }",
        )
        .await;
        let error = engine
            .container("abc".into())
            .state()
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "docker container inspect: no such container");
    }
}
