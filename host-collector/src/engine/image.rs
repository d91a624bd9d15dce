//! What an image would run by itself.

use std::{path::Path, process::Stdio};

use report::Printable;
use serde::Deserialize;
use tokio::process::Command;

use super::{Container, Engine, EngineError, plan::bind};

/// The part of an image's configuration that decides what runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Image {
    /// `ENTRYPOINT`.
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    /// `CMD`.
    #[serde(default)]
    cmd: Option<Vec<String>>,
}

impl Image {
    /// Whether its entrypoint is this project's, under any of its names.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        let first = self.entrypoint.iter().flatten().next();
        first.is_some_and(|program| {
            let name = program.rsplit('/').next();
            name.is_some_and(|name| {
                matches!(
                    name,
                    "sandbox-entrypoint" | "sandbox-init" | "sandbox-firewall"
                )
            })
        })
    }

    /// The argv that the guest gets for a command, or for none: what the engine would have made of
    /// it, were this project's entrypoint not in between.
    #[must_use]
    pub fn argv(&self, command: &[String]) -> Vec<String> {
        let own = if self.is_ours() {
            None
        } else {
            self.entrypoint.clone()
        };
        let given = if command.is_empty() {
            self.cmd.clone().unwrap_or_default()
        } else {
            command.to_vec()
        };
        own.into_iter().flatten().chain(given).collect()
    }
}

impl Engine {
    /// Looks an image up, and pulls it if there is none. Progress goes to standard error.
    pub async fn image(&self, name: &str) -> Result<Image, EngineError> {
        if let Ok(image) = self.inspect_image(name).await {
            return Ok(image);
        }
        let absent = || EngineError::NoImage {
            engine: self.kind,
            image: Printable::new(name),
        };
        let stderr = rustix::stdio::stderr()
            .try_clone_to_owned()
            .map_err(|_| absent())?;
        let mut pull = Command::new(&self.program);
        pull.args(["pull", "--", name])
            .stdin(Stdio::null())
            .stdout(stderr)
            .kill_on_drop(true);
        let pulled = pull
            .status()
            .await
            .map_err(|source| self.spawn_error(source))?;
        if pulled.success() {
            self.inspect_image(name).await
        } else {
            Err(absent())
        }
    }

    /// Whether an image is here, without fetching it.
    pub async fn holds(&self, name: &str) -> bool {
        self.inspect_image(name).await.is_ok()
    }

    /// Starts a container of an image that does nothing, and waits for its end.
    pub async fn starts(&self, image: &str, runtime: Option<&str>) -> Result<(), EngineError> {
        let runtime = runtime.map(|runtime| ["--runtime", runtime]);
        let start = ["run", "--rm", "--pull", "never", "--network", "none"];
        let nothing = ["--entrypoint", "true", "--", image];
        let arguments = start.into_iter().chain(runtime.into_iter().flatten());
        self.ask("run", arguments.chain(nothing)).await.map(drop)
    }

    /// Whether an image has a file, found out with a container that is never started.
    pub async fn has_file(&self, image: &str, path: &str) -> Result<bool, EngineError> {
        let container = self.create(image, &["--entrypoint", path]).await?;
        let id = container.id().to_owned();
        let mut copy = Command::new(&self.program);
        copy.args(["cp", &format!("{id}:{path}"), "-"])
            .kill_on_drop(true);
        copy.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let copied = copy
            .status()
            .await
            .map_err(|source| self.spawn_error(source));
        container.remove().await?;
        Ok(copied?.success())
    }

    /// Why this engine mounts no directory of this host's into a container of an image that it would
    /// make without; `None` where it mounts `directory`. It may stand in a machine or a container of
    /// its own and be spoken to over a socket of this one.
    pub async fn refuses_to_mount(&self, directory: &Path, image: &str) -> Option<Printable> {
        let nothing = ["--entrypoint", "true"];
        let mount = bind(&directory.to_string_lossy(), "/mnt", ",readonly");
        let mounting = ["--mount", &mount];
        let with = self.create(image, &[nothing, mounting].concat()).await;
        let why = match with {
            Ok(container) => {
                // One that is left is not started by anybody, and is in the engine's own list.
                let _ = container.remove().await;
                return None;
            }
            Err(EngineError::Refused { detail, .. }) => detail,
            Err(_) => return None,
        };
        let without = self.create(image, &nothing).await.ok()?;
        let _ = without.remove().await;
        Some(why)
    }

    /// Makes a container that is never started.
    async fn create(&self, image: &str, options: &[&str]) -> Result<Container<'_>, EngineError> {
        let create = ["create", "--pull", "never", "--network", "none"];
        let arguments = create.into_iter().chain(options.iter().copied());
        let answer = self.ask("create", arguments.chain(["--", image])).await?;
        let id = String::from_utf8_lossy(&answer).trim().to_owned();
        Ok(self.container(id))
    }

    async fn inspect_image(&self, name: &str) -> Result<Image, EngineError> {
        let verb = "image inspect";
        let answer = self
            .ask(
                verb,
                [
                    "image",
                    "inspect",
                    "--format",
                    "{{json .Config}}",
                    "--",
                    name,
                ],
            )
            .await?;
        serde_json::from_slice(&answer).map_err(|source| EngineError::Unreadable {
            engine: self.kind,
            verb,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{calls, docker};

    fn image(json: &str) -> Image {
        serde_json::from_str(json).unwrap()
    }

    fn argv(json: &str, command: &[&str]) -> Vec<String> {
        let command: Vec<String> = command.iter().map(|&word| word.into()).collect();
        image(json).argv(&command)
    }

    #[test]
    fn a_foreign_entrypoint_stays_in_front_and_ours_does_not() {
        let foreign = r#"{"Entrypoint":["/init","-x"],"Cmd":["serve"]}"#;
        let ours = r#"{"Entrypoint":["/usr/local/bin/sandbox-entrypoint"],"Cmd":["/bin/bash"]}"#;
        for (json, command, expected) in [
            (foreign, vec![], vec!["/init", "-x", "serve"]),
            (foreign, vec!["a", "b"], vec!["/init", "-x", "a", "b"]),
            (ours, vec![], vec!["/bin/bash"]),
            (ours, vec!["a"], vec!["a"]),
            (r#"{"Cmd":["sh"]}"#, vec![], vec!["sh"]),
            (
                r#"{"Entrypoint":null,"Cmd":null,"User":"x"}"#,
                vec![],
                vec![],
            ),
            ("{}", vec!["a"], vec!["a"]),
        ] {
            assert_eq!(argv(json, &command), expected, "{json} {command:?}");
        }
    }

    #[test]
    fn ours_is_known_by_its_program_under_any_of_its_names() {
        for (program, ours) in [
            ("/usr/local/bin/sandbox-init", true),
            ("sandbox-firewall", true),
            ("/usr/local/bin/sandbox-entrypoint.sh", false),
            ("/bin/sh", false),
            ("", false),
        ] {
            assert_eq!(
                image(&format!(r#"{{"Entrypoint":["{program}"]}}"#)).is_ours(),
                ours,
                "{program}"
            );
        }
    }

    #[tokio::test]
    async fn an_image_that_is_not_here_is_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "[ \"$1\" = version ]").await;
        assert!(!engine.holds("img").await);
        assert!(!calls(dir.path()).contains("pull"), "{}", calls(dir.path()));
    }

    /// Why an engine that does this mounts nothing, and what it was told.
    async fn refusal(script: &str) -> (Option<String>, String) {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), script).await;
        let why = engine.refuses_to_mount(dir.path(), "img").await;
        (why.map(|why| why.to_string()), calls(dir.path()))
    }

    #[tokio::test]
    async fn a_mount_that_alone_is_refused_is_told_with_the_reason() {
        let (why, calls) =
            refusal("case \"$*\" in *type=bind*) echo 'no such path' >&2; exit 1 ;; esac; echo c")
                .await;
        assert_eq!(why.as_deref(), Some("no such path"));
        assert!(calls.ends_with("rm --force c\n"), "{calls}");
        assert!(!calls.contains("start"), "{calls}");
    }

    #[tokio::test]
    async fn an_engine_that_mounts_leaves_nothing_of_the_trial() {
        let (why, calls) = refusal("echo c").await;
        assert_eq!(why, None);
        assert_eq!(calls.lines().count(), 2, "{calls}");
        assert!(calls.ends_with("rm --force c\n"), "{calls}");
    }

    #[tokio::test]
    async fn an_engine_that_makes_no_container_at_all_says_nothing_of_mounts() {
        let (why, _) = refusal("[ \"$1\" = version ] && echo 1").await;
        assert_eq!(why, None);
    }

    #[tokio::test]
    async fn a_start_does_nothing_without_a_network_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "[ \"$1\" = version ] || [ \"$7\" = --runtime ]").await;
        assert!(engine.starts("img", None).await.is_err());
        engine.starts("img", Some("runsc")).await.unwrap();
        let expected = "run --rm --pull never --network none --entrypoint true -- img\n\
                        run --rm --pull never --network none --runtime runsc --entrypoint true -- img\n";
        assert_eq!(calls(dir.path()), expected);
    }

    #[tokio::test]
    async fn a_file_is_looked_for_in_a_container_that_is_removed_again() {
        for (script, found) in [
            ("exit 0", true),
            ("[ \"$1\" = cp ] && exit 1; echo id", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let engine = docker(dir.path(), &format!("echo id; {script}")).await;
            assert_eq!(engine.has_file("img", "/a/b").await.unwrap(), found);
            let told = calls(dir.path());
            assert!(
                told.starts_with("create --pull never --network none --entrypoint /a/b -- img\n"),
                "{told}"
            );
            assert!(
                told.contains("/a/b -\n") && told.contains("rm --force id"),
                "{told}"
            );
        }
    }

    #[tokio::test]
    async fn an_image_that_is_here_is_not_pulled() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "echo '{\"Cmd\":[\"sh\"]}'").await;
        assert_eq!(engine.image("img").await.unwrap().argv(&[]), ["sh"]);
        assert_eq!(
            calls(dir.path()),
            "image inspect --format {{json .Config}} -- img\n"
        );
    }

    #[tokio::test]
    async fn an_image_that_cannot_be_pulled_is_named_harmlessly() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "[ \"$1\" = version ]").await;
        let error = engine.image("img\u{1b}").await.unwrap_err().to_string();
        assert!(
            error.contains("no image `img\\u{1b}`") && error.contains("check the name"),
            "{error}"
        );
        assert!(calls(dir.path()).contains("pull -- img"));
    }

    #[tokio::test]
    async fn an_answer_that_is_no_configuration_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "echo rubbish").await;
        let error = engine.inspect_image("img").await.unwrap_err();
        assert!(matches!(error, EngineError::Unreadable { .. }), "{error}");
    }
}
