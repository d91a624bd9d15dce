//! Asks docker which mirrors it pulls from.
//!
//! Where there is none it pulls from a registry that only its daemon knows: what it tells of that is
//! a name for people and for logins, not the hosts that layers and tokens come from.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Registry, ToolError, output_of};
use crate::environment::Environment;

/// The mirrors that docker on this host pulls through.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let docker = environment
        .program(TOOL)
        .ok_or(ToolError::Missing { tool: TOOL })?;
    let arguments = ["info", "--format", "{{json .RegistryConfig}}"];
    read(&output_of(TOOL, &docker, &arguments).await?)
}

/// What of docker's settings is about where images come from.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Settings {
    mirrors: Option<Vec<String>>,
    index_configs: Option<BTreeMap<String, Index>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Index {
    mirrors: Option<Vec<String>>,
}

fn read(answer: &str) -> Result<Vec<Registry>, ToolError> {
    let settings: Option<Settings> =
        serde_json::from_str(answer.trim()).map_err(|_| ToolError::Failed {
            tool: TOOL,
            detail: report::Printable::new("its answer is not JSON"),
        })?;
    let Settings {
        mirrors,
        index_configs,
    } = settings.unwrap_or_default();
    let of_indexes = index_configs
        .unwrap_or_default()
        .into_values()
        .filter_map(|index| index.mirrors);
    let mirrors: Vec<String> = mirrors.into_iter().chain(of_indexes).flatten().collect();
    if mirrors.is_empty() {
        return Err(ToolError::Unsaid {
            tool: TOOL,
            detail: "it has no mirror, and does not say which hosts its default registry is on",
        });
    }
    mirrors
        .iter()
        .map(|url| Registry::of_url(TOOL, url))
        .collect()
}

const TOOL: &str = "docker";

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(answer: &str) -> Result<Vec<String>, String> {
        let registries = read(answer).map_err(|error| error.to_string())?;
        Ok(registries.iter().flat_map(|r| r.entries(&[])).collect())
    }

    #[test]
    fn mirrors_are_found_wherever_docker_lists_them() {
        let answer = r#"{"Mirrors":["https://a.example/"],"IndexConfigs":{
            "x.example":{"Name":"x.example","Mirrors":["http://b.example:5000/"],"Secure":true},
            "y.example":{"Mirrors":null}},"InsecureRegistryCIDRs":["127.0.0.0/8"]}"#;
        assert_eq!(
            entries(answer).unwrap(),
            ["a.example:443", "b.example:5000/http"]
        );
    }

    #[test]
    fn without_a_mirror_the_hosts_are_to_be_named() {
        for answer in [
            "null",
            "{}",
            r#"{"Mirrors":null,"IndexConfigs":null}"#,
            r#"{"Mirrors":[]}"#,
        ] {
            let error = entries(answer).unwrap_err();
            assert!(
                error.contains("no mirror") && error.contains("--allow"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_no_json_is_an_error() {
        assert!(entries("<no value>").is_err());
    }
}
