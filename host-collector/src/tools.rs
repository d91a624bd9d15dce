//! `@tool:NAME`: the registries that a tool on this host is configured to use, as plain entries.
//!
//! The tool itself is asked, so a company's mirror is found like the public registry, and no
//! registry is named here. It is asked from the root directory: a workspace may hold configuration,
//! or even a module of the tool's name, that an earlier guest left there.

mod npm;
mod pip;
mod registry;

use std::{path::Path, process::Stdio, time::Duration};

use report::Printable;
use tokio::process::Command;

use crate::environment::Environment;
use registry::Registry;

/// Why a tool's registries are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// Nobody taught us to ask it.
    #[error("@tool:{tool}: not known; use @tool:pip or @tool:npm, or name the hosts")]
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
        "pip" => pip::registries(environment).await?,
        "npm" => npm::registries(environment).await?,
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
    let failed = |detail: &str| ToolError::Failed {
        tool,
        detail: Printable::new(detail),
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output
        .map_err(|_| failed("it did not answer"))?
        .map_err(|error| failed(&error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(failed(
        stderr
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it did not say why"),
    ))
}

const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_tool_is_refused_with_what_there_is() {
        let error = entries("gem\u{1b}", &Environment::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("@tool:gem\\u{1b}: not known; use @tool:pip"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_tool_that_is_not_there_is_refused_with_the_remedy() {
        for tool in ["pip", "npm"] {
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
}
