//! Asks npm which registries it uses.

use serde_json::{Map, Value};

use super::{Registry, ToolError, output_of};
use crate::environment::Environment;

/// The registries that npm on this host fetches from, those of scopes included.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let npm = environment
        .program(TOOL)
        .ok_or(ToolError::Missing { tool: TOOL })?;
    read(&output_of(TOOL, &npm, &["config", "list", "--json"]).await?)
}

fn read(answer: &str) -> Result<Vec<Registry>, ToolError> {
    let unreadable = |_| ToolError::Failed {
        tool: TOOL,
        detail: report::Printable::new("its answer is not JSON"),
    };
    let settings: Map<String, Value> = serde_json::from_str(answer).map_err(unreadable)?;
    let is_registry =
        |name: &str| name == "registry" || (name.starts_with('@') && name.ends_with(":registry"));
    settings
        .iter()
        .filter(|(name, _)| is_registry(name))
        .filter_map(|(_, value)| value.as_str())
        .map(|url| Registry::of_url(TOOL, url))
        .collect()
}

const TOOL: &str = "npm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_and_those_of_scopes_are_found_and_nothing_else() {
        let answer = r#"{"registry":"https://r.example/","@corp:registry":"http://c.example:4873/",
            "replace-registry-host":"never","registry-x":7,"//r.example/:_auth":null}"#;
        let entries: Vec<_> = read(answer)
            .unwrap()
            .iter()
            .flat_map(|r| r.entries(&[]))
            .collect();
        assert_eq!(entries, ["c.example:4873/http", "r.example:443"]);
    }

    #[test]
    fn an_answer_that_is_no_json_is_an_error() {
        assert!(read("undefined\n").is_err());
    }
}
