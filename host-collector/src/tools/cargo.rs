//! Asks cargo which registries it uses.
//!
//! Cargo says where its default registry is nowhere but in its log: there it names the directory in
//! which it keeps that registry's index, after its configuration has had its say. In that directory
//! lies what the registry itself says of where it keeps its files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use http::Uri;
use report::Printable;
use serde::Deserialize;

use super::{Registry, ToolError, ask};
use crate::environment::Environment;

/// The registries that cargo on this host fetches from: the default one or what replaces it, and
/// those that its configuration names.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let program = environment
        .program(TOOL)
        .ok_or(ToolError::Missing { tool: TOOL })?;
    let home = environment.cargo_home().ok_or(ToolError::Unsaid {
        tool: TOOL,
        detail: "neither CARGO_HOME nor HOME says where it keeps its configuration",
    })?;
    let settings = Settings::read(&[Path::new("/.cargo"), &home])?;
    let cargo = Cargo {
        program,
        home,
        urls: settings.urls(),
    };
    let mut found = cargo.registry(None).await?;
    for name in settings.registries.keys() {
        found.extend(cargo.registry(Some(name)).await?);
    }
    if found.is_empty() {
        return Err(ToolError::Unsaid {
            tool: TOOL,
            detail: "it is configured with no registry on the network",
        });
    }
    Ok(found)
}

struct Cargo {
    program: PathBuf,
    home: PathBuf,
    /// What is configured, by host: for ports, which the names of directories do not tell.
    urls: BTreeMap<String, String>,
}

impl Cargo {
    /// The hosts of one registry: of its index, and of its files. None if it is on a disk.
    async fn registry(&self, name: Option<&str>) -> Result<Vec<Registry>, ToolError> {
        // What it has fetched once is known without the network, and is what it will use.
        for network in [&["--offline"][..], &[]] {
            let log = self.log(name, network).await?;
            let places = index_directories(&log);
            if places.is_empty() {
                return Ok(Vec::new());
            }
            for place in places {
                let path = self.home.join("registry/index").join(place);
                if let Some(config) = index_config(&path)? {
                    return self.hosts(place, &config);
                }
            }
        }
        Err(ToolError::Unsaid {
            tool: TOOL,
            detail: "its registry does not say where it keeps its files",
        })
    }

    /// What cargo says while it looks for a package. Whether there is one does not matter.
    async fn log(&self, name: Option<&str>, network: &[&str]) -> Result<String, ToolError> {
        let mut arguments = vec!["info", PACKAGE];
        arguments.extend(network);
        arguments.extend(name.into_iter().flat_map(|name| ["--registry", name]));
        let variables = [("CARGO_LOG", LOG), ("CARGO_TERM_COLOR", "never")];
        let output = ask(TOOL, &self.program, &arguments, &variables).await?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn hosts(&self, place: &str, config: &IndexConfig) -> Result<Vec<Registry>, ToolError> {
        let host = host_of_directory(place).unwrap_or_default();
        let plain = format!("https://{host}/");
        let index = self.urls.get(host).unwrap_or(&plain);
        Ok(vec![
            Registry::of_url(TOOL, index)?,
            Registry::of_url(TOOL, &config.dl)?,
        ])
    }
}

/// What a registry says of itself, in the file that its index has for this.
#[derive(Debug, Deserialize)]
struct IndexConfig {
    /// Where its files are: a URL, perhaps with markers in its path.
    dl: String,
}

fn index_config(directory: &Path) -> Result<Option<IndexConfig>, ToolError> {
    let path = directory.join("config.json");
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path, &error)),
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| failed(&path, &error)),
    }
}

/// The directories of indexes that a log speaks of.
fn index_directories(log: &str) -> BTreeSet<&str> {
    log.split("/registry/index/")
        .skip(1)
        .filter_map(|rest| rest.split(['/', '"', ' ', '\n']).next())
        .filter(|directory| host_of_directory(directory).is_some())
        .collect()
}

/// `HOST-0123456789abcdef`, the latter a hash of the index's URL.
fn host_of_directory(directory: &str) -> Option<&str> {
    let (host, hash) = directory.rsplit_once('-')?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && policy::Host::parse(host).is_ok()).then_some(host)
}

/// What of cargo's configuration says where registries are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    registries: BTreeMap<String, NamedRegistry>,
    source: BTreeMap<String, Source>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedRegistry {
    index: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Source {
    registry: Option<String>,
}

impl Settings {
    /// Reads the configuration in `directories`. Cargo is asked from the root directory, so that
    /// nothing between there and here counts.
    fn read(directories: &[&Path]) -> Result<Self, ToolError> {
        let mut all = Self::default();
        let files = directories
            .iter()
            .flat_map(|directory| ["config.toml", "config"].map(|name| directory.join(name)));
        for path in files {
            let text = match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(|error| failed(&path, &error))?,
            };
            let settings: Self = toml::from_str(&text).map_err(|error| {
                // Its text quotes the file, in which there may be a secret.
                failed(&path, &error.message())
            })?;
            all.registries.extend(settings.registries);
            all.source.extend(settings.source);
        }
        all.registries
            .retain(|_, registry| registry.index.is_some());
        Ok(all)
    }

    /// Every URL that is configured, by its host.
    fn urls(&self) -> BTreeMap<String, String> {
        let indexes = self.registries.values().filter_map(|r| r.index.as_deref());
        let sources = self.source.values().filter_map(|s| s.registry.as_deref());
        let urls = indexes
            .chain(sources)
            .map(|url| url.strip_prefix("sparse+").unwrap_or(url));
        let with_hosts = urls.filter_map(|url| {
            let host = url.parse::<Uri>().ok()?.host()?.to_owned();
            Some((host, url.to_owned()))
        });
        with_hosts.collect()
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> ToolError {
    ToolError::Failed {
        tool: TOOL,
        detail: Printable::new(&format!("{}: {error}", path.display())),
    }
}

const TOOL: &str = "cargo";
/// Ours, which is in no registry.
const PACKAGE: &str = "sandbox-egress";
const LOG: &str = "cargo::sources::registry=debug";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::host;

    /// A host with a cargo that logs what `script` prints.
    struct Host {
        dir: tempfile::TempDir,
        environment: Environment,
    }

    impl Host {
        fn new(script: &str, config: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let script = format!("home={}\n{script}", dir.path().display());
            host(dir.path(), &[("cargo", &script)]);
            fs::write(dir.path().join("config.toml"), config).unwrap();
            let path = dir.path().to_str().unwrap();
            let environment = Environment::of([("PATH", path), ("CARGO_HOME", path)]);
            Self { dir, environment }
        }

        fn with_index(self, directory: &str, config: &str) -> Self {
            let directory = self.dir.path().join("registry/index").join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("config.json"), config).unwrap();
            self
        }

        async fn entries(&self) -> Result<Vec<String>, String> {
            let registries = registries(&self.environment).await;
            let registries = registries.map_err(|error| error.to_string())?;
            Ok(registries.iter().flat_map(|r| r.entries(&[])).collect())
        }
    }

    const DEFAULT: &str = "index.example-1949cf8c6b5b557f";
    const OURS: &str = "ours.example-0123456789abcdef";
    const LOGS_BOTH: &str = r#"case "$*" in
        *"--registry ours"*) d=ours.example-0123456789abcdef ;;
        *) d=index.example-1949cf8c6b5b557f ;;
        esac
        echo "DEBUG cargo: cache missing cache_path=\"$home/registry/index/$d/.cache/x\"" >&2
        exit 101"#;

    #[tokio::test]
    async fn the_index_and_where_it_keeps_its_files_are_found() {
        let host = Host::new(LOGS_BOTH, "").with_index(
            DEFAULT,
            r#"{"dl":"https://files.example/{crate}/{version}","api":"https://api.example"}"#,
        );
        assert_eq!(
            host.entries().await.unwrap(),
            ["index.example:443", "files.example:443"]
        );
    }

    #[tokio::test]
    async fn registries_of_the_configuration_are_found_with_their_ports() {
        let config = "[registries.ours]\nindex = \"sparse+https://ours.example:8443/index/\"\n\
            [registries.other]\ntoken = \"x\"\n";
        let host = Host::new(LOGS_BOTH, config)
            .with_index(DEFAULT, r#"{"dl":"https://index.example/dl"}"#)
            .with_index(OURS, r#"{"dl":"http://ours.example:8080/dl"}"#);
        assert_eq!(
            host.entries().await.unwrap(),
            [
                "index.example:443",
                "index.example:443",
                "ours.example:8443/tls",
                "ours.example:8080/http"
            ]
        );
    }

    #[tokio::test]
    async fn an_index_that_was_never_fetched_is_fetched_once() {
        let script = r#"d=$home/registry/index/index.example-1949cf8c6b5b557f
            echo "cache_path=\"$d/.cache/x\"" >&2
            case "$*" in *--offline*) exit 101 ;; esac
            /bin/mkdir -p "$d" && echo '{"dl":"https://files.example/"}' >"$d/config.json""#;
        assert_eq!(
            Host::new(script, "").entries().await.unwrap(),
            ["index.example:443", "files.example:443"]
        );
    }

    #[tokio::test]
    async fn what_cannot_be_learnt_is_to_be_named() {
        for (script, config, part) in [
            (LOGS_BOTH, "", "does not say where it keeps its files"),
            ("exit 0", "", "no registry on the network"),
            ("exit 0", "[registries", "config.toml"),
        ] {
            let error = Host::new(script, config).entries().await.unwrap_err();
            assert!(error.contains(part) && error.contains("--allow"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let homeless = Host::new("exit 0", "");
        let path = homeless.dir.path().to_str().unwrap();
        let error = registries(&Environment::of([("PATH", path)]))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("CARGO_HOME"), "{error}");
    }

    #[tokio::test]
    async fn an_index_that_does_not_say_what_it_must_is_named() {
        let host = Host::new(LOGS_BOTH, "").with_index(DEFAULT, "{}");
        let error = host.entries().await.unwrap_err();
        assert!(error.contains("config.json"), "{error}");
    }

    #[test]
    fn a_directory_of_an_index_is_a_host_and_a_hash() {
        let log = "x /h/registry/index/a.example-0123456789abcdef/.cache/y\n\
            \"/h/registry/index/a.example-0123456789abcdef\" /registry/index/short-01/z \
            /registry/index/-0123456789abcdef";
        assert_eq!(
            index_directories(log).into_iter().collect::<Vec<_>>(),
            ["a.example-0123456789abcdef"]
        );
    }
}
