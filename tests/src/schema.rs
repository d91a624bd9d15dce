//! Whether a session line is what `docs/session-log.schema.json` says a line is.

use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, ensure};
use jsonschema::Validator;
use serde_json::Value;

/// Every line that a test produces comes by here.
///
/// # Errors
/// When the line has something that the schema does not, or lacks what it asks for.
pub fn check(line: &Value) -> anyhow::Result<()> {
    let faults: Vec<String> = validator()?
        .iter_errors(line)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    ensure!(
        faults.is_empty(),
        "the session line is not as its schema says: {}\n{line:#}",
        faults.join("; ")
    );
    Ok(())
}

fn validator() -> anyhow::Result<&'static Validator> {
    static VALIDATOR: OnceLock<Validator> = OnceLock::new();
    if let Some(validator) = VALIDATOR.get() {
        return Ok(validator);
    }
    let schema = serde_json::from_str(SCHEMA).context("parse the schema")?;
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    let built = options.build(&schema);
    let validator = built.map_err(|error| anyhow!("compile the schema: {error}"))?;
    Ok(VALIDATOR.get_or_init(|| validator))
}

const SCHEMA: &str = include_str!("../../docs/session-log.schema.json");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_that_lacks_something_or_has_too_much_is_told() {
        let line = json!({
            "time": "2026-11-29T12:00:00.000Z", "image": "i", "command": [], "detached": false,
            "exit_code": 0, "duration_ms": 1,
        });
        check(&line).unwrap();
        let mut with = line.clone();
        with["environment"] = json!({"TOKEN": "x"});
        assert!(
            check(&with)
                .unwrap_err()
                .to_string()
                .contains("environment")
        );
        let mut without = line;
        without.as_object_mut().unwrap().remove("image");
        assert!(check(&without).unwrap_err().to_string().contains("image"));
    }
}
