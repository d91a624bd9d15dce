//! Asks pip which indexes it uses.

use std::path::{Path, PathBuf};

use super::{Registry, ToolError, output_of};
use crate::environment::Environment;

/// The registries that pip on this host fetches from.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let python = interpreter(environment)
        .await
        .ok_or(ToolError::Missing { tool: TOOL })?;
    let settings =
        Settings::read(&output_of(TOOL, &python, &["-m", "pip", "config", "list"]).await?);
    let standard = Standard::read(&output_of(TOOL, &python, &["-c", ASK_STANDARD]).await?);
    indexes(&settings, &standard)
}

/// The interpreter that pip belongs to.
async fn interpreter(environment: &Environment) -> Option<PathBuf> {
    let of_scripts = ["pip", "pip3"]
        .iter()
        .filter_map(|name| shebang(&environment.program(name)?));
    let on_path = ["python3", "python"]
        .iter()
        .filter_map(|name| environment.program(name));
    for python in of_scripts.chain(on_path) {
        if output_of(TOOL, &python, &["-m", "pip", "--version"])
            .await
            .is_ok()
        {
            return Some(python);
        }
    }
    None
}

/// The Python that a script names in its first line.
fn shebang(script: &Path) -> Option<PathBuf> {
    let content = std::fs::read(script).ok()?;
    let first = content.split(|&b| b == b'\n').next()?;
    let program = PathBuf::from(std::str::from_utf8(first.strip_prefix(b"#!")?).ok()?.trim());
    let is_python = program.file_name()?.to_str()?.starts_with("python");
    (is_python && program.is_absolute()).then_some(program)
}

/// What of pip's settings says where it fetches from.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    index: Option<String>,
    more: Vec<String>,
}

impl Settings {
    /// Reads `pip config list`: a line for each setting, `origin.name='value'`, where the
    /// environment wins over the files, and what is set for `install` over what is for all.
    fn read(list: &str) -> Self {
        let mut settings = Self::default();
        let mut rank = 0;
        for (origin, name, value) in list.lines().filter_map(setting) {
            let its = match origin {
                ":env:" => 3,
                "install" => 2,
                _ => 1,
            };
            match name {
                "index-url" if its > rank => {
                    rank = its;
                    settings.index = Some(value);
                }
                "extra-index-url" | "find-links" => {
                    settings
                        .more
                        .extend(value.split_whitespace().map(ToOwned::to_owned));
                }
                _ => {}
            }
        }
        settings
    }
}

/// Values are written as Python writes strings; of the escapes only line ends occur in URLs.
fn setting(line: &str) -> Option<(&str, &str, String)> {
    let (key, value) = line.split_once('=')?;
    let (origin, name) = key.rsplit_once('.')?;
    let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
    Some((origin, name, value.replace("\\n", "\n")))
}

/// Where pip fetches from when nobody told it: it knows that itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Standard {
    index: String,
    files: String,
}

impl Standard {
    fn read(answer: &str) -> Self {
        let mut lines = answer.lines().map(|line| line.trim().to_owned());
        Self {
            index: lines.next().unwrap_or_default(),
            files: lines.next().unwrap_or_default(),
        }
    }
}

/// The index, what it keeps its files on, and whatever else is configured.
fn indexes(settings: &Settings, standard: &Standard) -> Result<Vec<Registry>, ToolError> {
    let default = Registry::of_url(TOOL, &standard.index)?;
    let mut registries = vec![match &settings.index {
        Some(url) => Registry::of_url(TOOL, url)?,
        None => default.clone(),
    }];
    for url in &settings.more {
        // A directory of wheels is no registry.
        if url.contains("://") && !url.starts_with("file:") {
            registries.push(Registry::of_url(TOOL, url)?);
        }
    }
    if registries.contains(&default) {
        registries.extend(default.at(&standard.files));
    }
    Ok(registries)
}

const TOOL: &str = "pip";
const ASK_STANDARD: &str = "from pip._internal.models.index import PyPI\n\
    print(PyPI.simple_url)\nprint(PyPI.file_storage_domain)";

#[cfg(test)]
mod tests {
    use super::*;

    const STANDARD: &str = "https://index.example/simple\nfiles.example\n";

    fn entries(list: &str) -> Vec<String> {
        let registries = indexes(&Settings::read(list), &Standard::read(STANDARD)).unwrap();
        registries
            .iter()
            .flat_map(|registry| registry.entries(&[]))
            .collect()
    }

    #[test]
    fn without_settings_it_is_what_pip_brings_along() {
        assert_eq!(
            entries(":env:.cert='/x'\nglobal.timeout='5'\n"),
            ["index.example:443", "files.example:443"]
        );
    }

    #[test]
    fn a_mirror_takes_the_place_of_the_index_and_of_its_files() {
        assert_eq!(
            entries("global.index-url='https://mirror.example:8443/root/simple'"),
            ["mirror.example:8443/tls"]
        );
    }

    #[test]
    fn the_environment_wins_over_install_and_install_over_global() {
        let list = "install.index-url='https://i.example'\n:env:.index-url='https://e.example'\nglobal.index-url='https://g.example'\n";
        assert_eq!(entries(list), ["e.example:443"]);
        assert_eq!(entries(&list.replace(":env:", "global")), ["i.example:443"]);
    }

    #[test]
    fn further_indexes_are_added_and_directories_are_not() {
        let list = "global.extra-index-url='\\nhttps://a.example/x\\nhttps://index.example/y'\nglobal.find-links='/opt/wheels file:///srv https://w.example/'\n";
        assert_eq!(
            entries(list),
            [
                "index.example:443",
                "a.example:443",
                "index.example:443",
                "w.example:443",
                "files.example:443"
            ]
        );
    }

    #[test]
    fn a_setting_that_is_no_url_is_an_error() {
        let settings = Settings::read("global.index-url='mirror'");
        assert!(indexes(&settings, &Standard::read(STANDARD)).is_err());
    }

    #[test]
    fn only_a_script_of_python_tells_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        for (content, expected) in [
            (
                "#!/usr/bin/python3.11\nimport pip",
                Some("/usr/bin/python3.11"),
            ),
            ("#!/usr/bin/env bash\n", None),
            ("#!python\n", None),
            ("", None),
        ] {
            let script = dir.path().join("pip");
            std::fs::write(&script, content).unwrap();
            assert_eq!(shebang(&script), expected.map(PathBuf::from), "{content:?}");
        }
    }
}
