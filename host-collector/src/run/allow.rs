//! The allowlist of a run, put together from lists, files and tools.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use policy::{Policy, PolicyError};
use report::Printable;

use crate::{
    environment::Environment,
    tools::{self, ToolError},
};

/// Why there is no allowlist.
#[derive(Debug, thiserror::Error)]
pub enum AllowError {
    /// None was given.
    #[error(
        "--network allowlist: nothing is allowed; name what the run may reach, such as --allow example.com"
    )]
    Missing,
    /// An entry is wrong.
    #[error("--allow {origin}: {error}")]
    Entry {
        /// The file, where it came from one.
        origin: Printable,
        /// What is wrong with it.
        error: PolicyError,
    },
    /// A file cannot be read.
    #[error("--allow @{path}: {source}; name a readable file of entries")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A tool could not be asked.
    #[error("--allow {0}")]
    Tool(#[from] ToolError),
    /// It does not fit.
    #[error(
        "--allow: {0} bytes of entries, and at most {MAX_LIST} fit into a container's environment; use wildcards"
    )]
    TooLong(usize),
}

/// Puts the list together and checks it.
pub(super) async fn allowlist(
    values: &[String],
    environment: &Environment,
) -> Result<Policy, AllowError> {
    if values.is_empty() {
        return Err(AllowError::Missing);
    }
    let mut entries = Vec::new();
    for value in values {
        entries.extend(written(value, environment).await?);
    }
    let wrong = |error| AllowError::Entry {
        origin: Printable::new("list"),
        error,
    };
    let policy = Policy::from_entries(&entries).map_err(wrong)?;
    let length = policy.entries().iter().map(|entry| entry.len() + 1).sum();
    if length > MAX_LIST {
        Err(AllowError::TooLong(length))
    } else {
        Ok(policy)
    }
}

/// The plain entries of one `--allow`, each checked, so that an error can say where it is.
async fn written(value: &str, environment: &Environment) -> Result<Vec<String>, AllowError> {
    let (origin, list) = match file_of(value) {
        Some(path) => (value, read(path)?),
        None => (value, value.to_owned()),
    };
    let (mut entries, mut expanded) = (Vec::new(), Vec::new());
    for entry in split(&list) {
        match entry.strip_prefix("@tool:") {
            Some(tool) => expanded.extend(tools::entries(tool, environment).await?),
            None => entries.push(entry.to_owned()),
        }
    }
    if expanded.is_empty() || !entries.is_empty() {
        let wrong = |error| AllowError::Entry {
            origin: Printable::new(origin),
            error,
        };
        Policy::from_entries(&entries).map_err(wrong)?;
    }
    entries.extend(expanded);
    Ok(entries)
}

/// The file that a value names. A preset or tool has neither a slash nor a dot in its name, so what
/// a guest leaves in the workspace can never be read in the place of one.
fn file_of(value: &str) -> Option<&Path> {
    let name = value.strip_prefix('@')?;
    let is_path = name.contains(['/', '.']) && !name.contains([',', '\n']);
    is_path.then(|| Path::new(name))
}

/// Entries as the policy's grammar separates them.
fn split(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter_map(|line| line.split('#').next())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

fn read(path: &Path) -> Result<String, AllowError> {
    let wrong = |source| AllowError::File {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(wrong)?;
    if !file.metadata().map_err(wrong)?.is_file() {
        return Err(wrong(io::Error::other("not a regular file")));
    }
    let mut list = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut list)
        .map_err(wrong)?;
    Ok(list)
}

/// The kernel takes no string of the environment over 128 KiB (`execve(2)`); the name takes some.
const MAX_LIST: usize = 128 * 1024 - 64;
/// With comments.
const MAX_FILE: u64 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tools::tests::{NPM, host};

    async fn list(values: &[&str]) -> Result<Vec<String>, String> {
        let values: Vec<String> = values.iter().map(|&value| value.into()).collect();
        let policy = allowlist(&values, &Environment::default()).await;
        policy
            .map(|policy| policy.entries())
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn lists_and_files_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allow");
        fs::write(&file, "# ours\nb.example, c.example # both\n\n").unwrap();
        let file = format!("@{}", file.display());
        assert_eq!(
            list(&["a.example,d.example", &file]).await.unwrap().len(),
            4
        );
    }

    #[tokio::test]
    async fn an_allowlist_without_a_list_is_refused_with_an_example() {
        assert!(list(&[]).await.unwrap_err().contains("--allow example.com"));
        for nothing in ["", " , ", "# nothing\n"] {
            assert!(list(&[nothing]).await.is_err(), "{nothing:?}");
            assert!(list(&["a.example", nothing]).await.is_err(), "{nothing:?}");
        }
    }

    #[tokio::test]
    async fn an_error_says_where_the_entry_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list.txt");
        fs::write(&file, "a.example\n*\n").unwrap();
        let error = list(&["b.example", &format!("@{}", file.display())])
            .await
            .unwrap_err();
        assert!(
            error.contains("list.txt") && error.contains("entry 2"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_named() {
        for path in ["@/nowhere/list", "@/dev/null", "@/tmp"] {
            let error = list(&[path]).await.unwrap_err();
            assert!(error.contains(&format!("--allow {path}")), "{error}");
        }
    }

    #[tokio::test]
    async fn a_preset_is_never_looked_for_as_a_file() {
        let error = list(&["@github"]).await.unwrap_err();
        assert!(error.contains("preset"), "{error}");
    }

    #[test]
    fn only_what_looks_like_a_path_is_a_file() {
        for (value, path) in [
            ("@./allow", Some("./allow")),
            ("@allow.txt", Some("allow.txt")),
            ("@/etc/allow", Some("/etc/allow")),
            ("@github", None),
            ("@tool:pip", None),
            ("a.example@10.0.0.0/8", None),
            ("@github,a.example", None),
        ] {
            assert_eq!(file_of(value), path.map(Path::new), "{value}");
        }
    }

    #[tokio::test]
    async fn a_list_that_no_environment_can_hold_is_refused_before_the_launch() {
        let long: Vec<String> = (0..8000)
            .map(|n| format!("a-rather-long-name-{n}.example"))
            .collect();
        let error = list(&[&long.join(",")]).await.unwrap_err();
        assert!(error.contains("use wildcards"), "{error}");
    }

    #[tokio::test]
    async fn a_tool_is_written_out_wherever_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allow.txt");
        fs::write(&file, "@tool:npm # ours\n").unwrap();
        let environment = host(dir.path(), &[NPM]);
        let file = format!("@{}", file.display());
        for value in ["@tool:npm", "a.example,@tool:npm", &file] {
            let policy = allowlist(&[value.to_owned()], &environment).await.unwrap();
            let entries = policy.entries();
            assert!(
                entries.contains(&"r.example:443".to_owned()),
                "{value}: {entries:?}"
            );
        }
    }
}
