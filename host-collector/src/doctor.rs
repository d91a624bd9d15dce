//! Whether this host can deliver what `run` promises: each thing is tried, not asked for.

mod host;
mod trial;

use std::path::PathBuf;

use report::Printable;
use serde::Serialize;

use crate::{
    engine::{Engine, EngineError, EngineKind},
    environment::Environment,
};
use trial::Trial;

/// Something that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it went.
    pub status: Status,
    /// What was found.
    pub detail: Printable,
    /// What to do about it; none where nothing need be done.
    pub remedy: Option<&'static str>,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should.
    Ok,
    /// Runs are possible, and something about them is worse than it could be.
    Warn,
    /// A run would fail, or would lack what it promises.
    Fail,
}

/// What is tried, and with what.
#[derive(Debug)]
pub struct Subject {
    /// The engine; none for the first that answers.
    pub engine: Option<EngineKind>,
    /// The OCI runtime; none for the engine's default.
    pub runtime: Option<String>,
    /// The image that the trial runs.
    pub image: String,
    /// Where the session log is kept; none where nobody has said.
    pub audit_dir: Option<PathBuf>,
}

impl Check {
    fn ok(name: &'static str, detail: &str) -> Self {
        Self {
            name,
            status: Status::Ok,
            detail: Printable::new(detail),
            remedy: None,
        }
    }

    fn warn(name: &'static str, detail: &str, remedy: &'static str) -> Self {
        Self {
            status: Status::Warn,
            remedy: Some(remedy),
            ..Self::ok(name, detail)
        }
    }

    fn fail(name: &'static str, detail: &str, remedy: &'static str) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(name, detail, remedy)
        }
    }
}

/// Tries everything, and hands on each result as soon as it is there.
pub async fn examine(subject: &Subject, environment: &Environment, mut each: impl FnMut(Check)) {
    each(host::log_directory(subject.audit_dir.as_deref()));
    each(host::run_directory(&environment.runtime_dir()));
    each(host::clock(subject.audit_dir.as_deref()));
    let engine = match Engine::find(subject.engine, environment).await {
        Ok(engine) => engine,
        Err(error) => return each(no_engine(&error)),
    };
    let kind = engine.kind();
    each(Check::ok("engine", &format!("{kind} answers")));
    if !engine.holds(&subject.image).await {
        return each(Check::fail(
            "image",
            &format!("{kind} has no image `{}`", subject.image),
            "build it with images/build, or name another with --image",
        ));
    }
    each(Check::ok("image", &subject.image));
    match engine
        .starts(&subject.image, subject.runtime.as_deref())
        .await
    {
        Ok(()) => each(Check::ok(
            "container",
            "starts, runs to its end and is removed",
        )),
        Err(error) => {
            return each(Check::fail(
                "container",
                &error.to_string(),
                "the engine itself cannot run this image here: see its own documentation",
            ));
        }
    }
    for check in Trial::of(subject, kind).await.checks() {
        each(check);
    }
}

fn no_engine(error: &EngineError) -> Check {
    Check::fail(
        "engine",
        &error.to_string(),
        "install docker or podman and start its service, or choose one with --engine",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::program;

    fn subject() -> Subject {
        Subject {
            engine: None,
            runtime: None,
            image: "img".into(),
            audit_dir: None,
        }
    }

    /// What is found with a docker that does this.
    async fn found(docker: Option<&str>) -> Vec<(&'static str, Status, String)> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(script) = docker {
            program(dir.path(), "docker", script);
        }
        let path = dir.path().to_str().unwrap();
        let environment = Environment::of([("PATH", path), ("XDG_RUNTIME_DIR", path)]);
        let mut found = Vec::new();
        let each = |check: Check| {
            found.push((check.name, check.status, check.detail.as_str().to_owned()));
        };
        examine(&subject(), &environment, each).await;
        found
    }

    #[tokio::test]
    async fn without_an_engine_the_host_is_examined_all_the_same() {
        let found = found(None).await;
        let names: Vec<_> = found
            .iter()
            .map(|(name, status, _)| (*name, *status))
            .collect();
        assert_eq!(
            names,
            [
                ("log directory", Status::Fail),
                ("run directory", Status::Ok),
                ("clock", Status::Ok),
                ("engine", Status::Fail)
            ]
        );
    }

    #[tokio::test]
    async fn the_first_thing_of_the_engine_that_does_not_work_is_the_last_that_is_tried() {
        for (script, name, part) in [
            (
                "echo 'Cannot connect' >&2; exit 1",
                "engine",
                "Cannot connect",
            ),
            (
                "[ \"$1\" = version ] && echo 99",
                "image",
                "docker has no image `img`",
            ),
            (
                "case $1 in run) echo 'no\u{1b}[2J runtime' >&2; exit 125 ;; image) echo '{}' ;; *) echo 99 ;; esac",
                "container",
                "no\\u{1b}[2J runtime",
            ),
        ] {
            let found = found(Some(script)).await;
            let (last, status, detail) = found.last().unwrap();
            assert_eq!((*last, *status), (name, Status::Fail), "{script}");
            assert!(detail.contains(part), "{detail}");
        }
    }

    #[test]
    fn a_check_in_json_has_four_fields() {
        let json = serde_json::to_string(&Check::ok("engine", "x")).unwrap();
        assert_eq!(
            json,
            r#"{"name":"engine","status":"ok","detail":"x","remedy":null}"#
        );
        assert!(Status::Fail > Status::Warn && Status::Warn > Status::Ok);
    }
}
