//! `@tool:NAME`: the registries that a tool on this host is configured to use, as plain entries.
//!
//! The tool itself is asked, so a company's mirror is found like the public registry, and no
//! registry is named here. It is asked from the root directory: a workspace may hold configuration,
//! or even a module of the tool's name, that an earlier guest left there.

mod apt;
mod cargo;
mod docker;
mod go;
mod npm;
mod pip;
mod registry;

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use report::Printable;
use tokio::process::Command;

use crate::environment::Environment;
use registry::Registry;

/// Why a tool's registries are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// Nobody taught us to ask it.
    #[error(
        "@tool:{tool}: not known; use @tool:apt, cargo, docker, go, npm or pip, or name the hosts"
    )]
    Unknown {
        /// As it was named.
        tool: Printable,
    },
    /// It is not on this host.
    #[error(
        "@tool:{tool}: not installed on this host, so it cannot be asked; install it, or name its registry with --allow"
    )]
    Missing {
        /// Which.
        tool: &'static str,
    },
    /// It was asked and failed.
    #[error("@tool:{tool}: asking it did not work: {detail}; name its registry with --allow")]
    Failed {
        /// Which.
        tool: &'static str,
        /// The last thing it said.
        detail: Printable,
    },
    /// It has no answer.
    #[error("@tool:{tool}: {detail}; name the hosts with --allow")]
    Unsaid {
        /// Which.
        tool: &'static str,
        /// What it does not say.
        detail: &'static str,
    },
    /// It is configured with something that is no URL.
    #[error(
        "@tool:{tool}: configured with `{url}`, which is no http or https URL; mend the configuration, or name the host"
    )]
    Url {
        /// Which.
        tool: &'static str,
        /// As it is configured, without credentials.
        url: Printable,
    },
}

/// The entries that a tool stands for.
pub async fn entries(tool: &str, environment: &Environment) -> Result<Vec<String>, ToolError> {
    let registries = match tool {
        "apt" => apt::registries(environment).await?,
        "cargo" => cargo::registries(environment).await?,
        "docker" => docker::registries(environment).await?,
        "go" => go::registries(environment).await?,
        "npm" => npm::registries(environment).await?,
        "pip" => pip::registries(environment).await?,
        _ => {
            return Err(ToolError::Unknown {
                tool: Printable::new(tool),
            });
        }
    };
    let mut entries = Vec::new();
    for registry in registries {
        let addresses = registry.resolve(environment).await;
        entries.extend(registry.entries(&addresses));
    }
    entries.sort();
    entries.dedup();
    Ok(entries)
}

/// What a program printed.
async fn output_of(
    tool: &'static str,
    program: &Path,
    arguments: &[&str],
) -> Result<String, ToolError> {
    let output = ask(tool, program, arguments, &[]).await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty());
    Err(failed(tool, last.unwrap_or("it did not say why")))
}

/// What came of running a program in the root directory.
async fn ask(
    tool: &'static str,
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Output, ToolError> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    output
        .map_err(|_| failed(tool, "it did not answer"))?
        .map_err(|error| failed(tool, &error.to_string()))
}

fn failed(tool: &'static str, detail: &str) -> ToolError {
    ToolError::Failed {
        tool,
        detail: Printable::new(detail),
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::environment::tests::program;

    #[tokio::test]
    async fn an_unknown_tool_is_refused_with_what_there_is() {
        let error = entries("gem\u{1b}", &Environment::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("@tool:gem\\u{1b}: not known; use @tool:apt, cargo"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_tool_that_is_not_there_is_refused_with_the_remedy() {
        for tool in ["apt", "cargo", "docker", "go", "npm", "pip"] {
            let error = entries(tool, &Environment::default())
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("not installed on this host") && error.contains("--allow"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn a_program_is_asked_from_the_root_and_its_last_word_is_the_cause() {
        let sh = Path::new("/bin/sh");
        assert_eq!(output_of("pip", sh, &["-c", "pwd"]).await.unwrap(), "/\n");
        let error = output_of("pip", sh, &["-c", "echo a >&2; echo b >&2; exit 3"])
            .await
            .unwrap_err();
        assert_eq!(
            error,
            ToolError::Failed {
                tool: "pip",
                detail: Printable::new("b")
            }
        );
    }

    /// A host on which these programs answer so.
    pub(crate) fn host(dir: &Path, programs: &[(&str, &str)]) -> Environment {
        for (name, script) in programs {
            program(dir, name, script);
        }
        Environment::of([("PATH", dir.to_str().unwrap())])
    }

    pub(crate) const NPM: (&str, &str) = ("npm", r#"echo '{"registry":"https://r.example/"}'"#);

    #[tokio::test]
    async fn a_mirror_that_this_host_finds_in_a_guarded_range_is_written_with_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let getent = (
            "getent",
            "echo '127.0.0.9 STREAM r.example'; echo '127.0.0.9 DGRAM'",
        );
        let environment = host(dir.path(), &[NPM, getent]);
        assert_eq!(
            entries("npm", &environment).await.unwrap(),
            ["r.example:443@127.0.0.9/32"]
        );
    }

    #[tokio::test]
    async fn a_registry_that_this_host_cannot_find_is_left_to_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let environment = host(dir.path(), &[NPM, ("getent", "exit 2")]);
        assert_eq!(
            entries("npm", &environment).await.unwrap(),
            ["r.example:443"]
        );
    }

    #[tokio::test]
    async fn pip_is_asked_through_the_interpreter_that_it_belongs_to() {
        let dir = tempfile::tempdir().unwrap();
        let python = r#"case "$*" in
            *--version*) exit 0 ;;
            *config*) echo "global.extra-index-url='https://index.example/x https://more.example/y'" ;;
            *) echo https://index.example/simple; echo files.example ;;
        esac"#;
        let environment = host(dir.path(), &[("python3", python)]);
        let expected = ["files.example:443", "index.example:443", "more.example:443"];
        assert_eq!(entries("pip", &environment).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn a_python_without_pip_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let environment = host(dir.path(), &[("python3", "exit 1")]);
        assert_eq!(
            entries("pip", &environment).await,
            Err(ToolError::Missing { tool: "pip" })
        );
    }
}
