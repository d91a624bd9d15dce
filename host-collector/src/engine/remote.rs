//! Whether an engine shares this machine's files: where it does not, nothing of this host can be
//! mounted. Found out without asking anybody, except where a context other than the usual is used.

use std::{ffi::OsStr, fs, path::PathBuf};

use serde::Deserialize;

use super::{Engine, EngineKind};
use crate::environment::Environment;

impl Engine {
    /// Whether it is on another machine, as far as its client's configuration tells. A socket here
    /// may lead elsewhere all the same, which only trying shows.
    pub async fn is_remote(&self, environment: &Environment) -> bool {
        let endpoint = match self.kind {
            EngineKind::Docker => match environment.get("DOCKER_HOST") {
                Some(host) if !host.is_empty() => Some(host.to_owned()),
                Some(_) | None => match context(environment) {
                    Some(context) => self.endpoint_of(&context).await.map(Into::into),
                    None => None,
                },
            },
            EngineKind::Podman => podman_endpoint(environment),
        };
        endpoint.is_some_and(|endpoint| !is_local(&endpoint))
    }

    async fn endpoint_of(&self, context: &str) -> Option<String> {
        let format = "{{.Endpoints.docker.Host}}";
        let arguments = ["context", "inspect", "--format", format, context];
        let answer = self.ask("context inspect", arguments).await.ok()?;
        Some(String::from_utf8_lossy(&answer).trim().to_owned())
    }
}

fn is_local(endpoint: &OsStr) -> bool {
    let endpoint = endpoint.to_string_lossy();
    match endpoint.split_once("://") {
        Some((scheme, _)) => matches!(scheme, "unix" | "fd"),
        // Docker takes it for a host, podman for the name of a connection.
        None => endpoint.starts_with('/'),
    }
}

/// Podman's client is remote where one of these says which service to use.
fn podman_endpoint(environment: &Environment) -> Option<std::ffi::OsString> {
    let set = |name| environment.get(name).filter(|value| !value.is_empty());
    let endpoint = set("CONTAINER_HOST").or_else(|| set("CONTAINER_CONNECTION"));
    endpoint.map(ToOwned::to_owned)
}

/// The context that docker's client uses, where it is not the usual one.
fn context(environment: &Environment) -> Option<String> {
    let named = environment.get("DOCKER_CONTEXT");
    let named = named.map(|name| name.to_string_lossy().into_owned());
    let named = named.filter(|name| !name.is_empty());
    let context = named.or_else(|| current_context(environment))?;
    (context != "default").then_some(context)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientConfig {
    current_context: Option<String>,
}

fn current_context(environment: &Environment) -> Option<String> {
    let directory = environment.get("DOCKER_CONFIG").map(PathBuf::from);
    let usual = || Some(PathBuf::from(environment.get("HOME")?).join(".docker"));
    let text = fs::read(directory.or_else(usual)?.join("config.json")).ok()?;
    let config: ClientConfig = serde_json::from_slice(&text).ok()?;
    config.current_context
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::program;

    #[test]
    fn a_socket_of_this_machine_is_local_and_everything_else_is_not() {
        for (endpoint, local) in [
            ("unix:///var/run/docker.sock", true),
            ("fd://", true),
            ("/run/podman/podman.sock", true),
            ("tcp://127.0.0.1:2375", false),
            ("ssh://me@there", false),
            ("npipe:////./pipe/docker_engine", false),
            ("there:2375", false),
            ("production", false),
        ] {
            assert_eq!(is_local(OsStr::new(endpoint)), local, "{endpoint}");
        }
    }

    async fn is_remote(kind: EngineKind, variables: &[(&str, &str)]) -> bool {
        let engine = Engine::of(kind, "/nowhere/to/be/found".into());
        let environment = Environment::of(variables.iter().copied());
        engine.is_remote(&environment).await
    }

    #[tokio::test]
    async fn what_the_client_is_told_decides_and_nobody_is_asked() {
        use EngineKind::{Docker, Podman};
        for (kind, variables, remote) in [
            (Docker, &[][..], false),
            (Docker, &[("DOCKER_HOST", "")], false),
            (Docker, &[("DOCKER_HOST", "tcp://a:1")], true),
            (Docker, &[("DOCKER_HOST", "unix:///x")], false),
            (Docker, &[("DOCKER_CONTEXT", "default")], false),
            (Docker, &[("CONTAINER_HOST", "tcp://a:1")], false),
            (Podman, &[], false),
            (Podman, &[("CONTAINER_HOST", "ssh://a")], true),
            (Podman, &[("CONTAINER_HOST", "unix:///x")], false),
            (Podman, &[("CONTAINER_CONNECTION", "a")], true),
            (Podman, &[("DOCKER_HOST", "tcp://a:1")], false),
        ] {
            assert_eq!(
                is_remote(kind, variables).await,
                remote,
                "{kind} {variables:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_context_is_looked_up_where_it_is_not_the_usual_one() {
        let dir = tempfile::tempdir().unwrap();
        let script = "case $5 in far) echo ssh://there;; near) echo unix:///x;; *) exit 1;; esac";
        program(dir.path(), "docker", script);
        let engine = Engine::of(EngineKind::Docker, dir.path().join("docker"));
        let home = dir.path().to_str().unwrap();
        for (context, remote) in [("far", true), ("near", false), ("unknown", false)] {
            let environment = Environment::of([("DOCKER_CONTEXT", context)]);
            assert_eq!(engine.is_remote(&environment).await, remote, "{context}");
            let config = format!(r#"{{"auths":{{}},"currentContext":"{context}"}}"#);
            fs::create_dir_all(dir.path().join(".docker")).unwrap();
            fs::write(dir.path().join(".docker/config.json"), config).unwrap();
            let environment = Environment::of([("HOME", home)]);
            assert_eq!(engine.is_remote(&environment).await, remote, "{context}");
        }
    }
}
