//! The allowlist of a run, put together from lists, files, presets and tools.

use std::{
    io,
    path::{Path, PathBuf},
};

use policy::{Policy, PolicyError, Presets};
use report::Printable;

use crate::{
    environment::Environment,
    list_file,
    presets::{PresetsError, presets},
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
    /// The presets of this host cannot be read.
    #[error(transparent)]
    Presets(#[from] PresetsError),
    /// A tool could not be asked.
    #[error("--allow {0}")]
    Tool(#[from] ToolError),
}

/// Puts the list together and checks it.
pub async fn allowlist(values: &[String], environment: &Environment) -> Result<Policy, AllowError> {
    if values.is_empty() {
        return Err(AllowError::Missing);
    }
    let lists: Vec<(&str, String)> = values
        .iter()
        .map(|value| Ok((value.as_str(), text_of(value)?)))
        .collect::<Result<_, AllowError>>()?;
    // Presets that nobody asks for cannot stand in the way.
    let presets = if lists.iter().any(|(_, list)| may_name_preset(list)) {
        presets(environment)?
    } else {
        Presets::default()
    };
    let mut entries = Vec::new();
    for (origin, list) in &lists {
        for entry in presets.expand(list).map_err(wrong(origin))? {
            match entry.strip_prefix("@tool:") {
                Some(tool) => entries.extend(tools::entries(tool, environment).await?),
                None => entries.push(entry),
            }
        }
    }
    Policy::from_entries(&entries).map_err(wrong("list"))
}

fn wrong(origin: &str) -> impl FnOnce(PolicyError) -> AllowError {
    let origin = Printable::new(origin);
    |error| AllowError::Entry { origin, error }
}

/// The list of one `--allow`, from the file that it names if it names one.
fn text_of(value: &str) -> Result<String, AllowError> {
    let Some(path) = file_of(value) else {
        return Ok(value.to_owned());
    };
    list_file::read(path).map_err(|source| AllowError::File {
        path: path.to_owned(),
        source,
    })
}

/// The file that a value names. A preset or tool has neither a slash nor a dot in its name, so what
/// a guest leaves in the workspace can never be read in the place of one.
fn file_of(value: &str) -> Option<&Path> {
    let name = value.strip_prefix('@')?;
    let is_path = name.contains(['/', '.']) && !name.contains([',', '\n']);
    is_path.then(|| Path::new(name))
}

/// It does if an entry starts as presets do; one in a comment costs no more than a look.
fn may_name_preset(list: &str) -> bool {
    list.split([',', '\n'])
        .any(|entry| entry.trim_start().starts_with('@'))
}

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
        let error = list(&["@list"]).await.unwrap_err();
        assert!(error.contains("no preset has this name"), "{error}");
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
    async fn presets_are_written_out_wherever_entries_stand() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".config/sandbox/presets.d");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("ours.txt"), "a.example\n@more").unwrap();
        fs::write(directory.join("more.txt"), "b.example").unwrap();
        let file = home.path().join("list");
        fs::write(&file, "c.example # and\n@ours\n").unwrap();
        let environment = Environment::of([("HOME", home.path().to_str().unwrap())]);
        let values = [format!("@{}", file.display()), "d.example, @more".into()];
        let policy = allowlist(&values, &environment).await.unwrap();
        assert_eq!(
            policy.entries(),
            ["a.example", "b.example", "c.example", "d.example"]
        );
    }

    #[tokio::test]
    async fn a_preset_that_nobody_asks_for_is_not_looked_at() {
        let home = tempfile::tempdir().unwrap();
        let broken = home
            .path()
            .join(".config/sandbox/presets.d/UNUSABLE NAME.txt");
        fs::create_dir_all(broken.parent().unwrap()).unwrap();
        fs::write(&broken, "").unwrap();
        let environment = Environment::of([("HOME", home.path().to_str().unwrap())]);
        for (value, is_fine) in [("db@10.0.0.0/8", true), ("@github", false)] {
            let policy = allowlist(&[value.to_owned()], &environment).await;
            assert_eq!(policy.is_ok(), is_fine, "{value}");
        }
    }

    #[tokio::test]
    async fn a_list_of_a_hundred_thousand_entries_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        let long: Vec<String> = (0..100_000)
            .map(|n| format!("n{n}.example # {n}\n"))
            .collect();
        fs::write(&file, long.concat()).unwrap();
        let entries = list(&[&format!("@{}", file.display())]).await.unwrap();
        assert_eq!(entries.len(), 100_000);
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
