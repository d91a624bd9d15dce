//! Variables that are handed on to the guest, by name.

use report::Printable;

use crate::{engine::RESERVED, environment::Environment};

/// Why a variable cannot be handed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// It came with a value, which other users of the host can see in the list of processes.
    #[error(
        "--env {name}=…: give the name only, and the value in the environment: {name}=… host-collector run --env {name}"
    )]
    Value {
        /// Its name.
        name: Printable,
    },
    /// It is no name.
    #[error("--env {name}: not the name of a variable")]
    Name {
        /// As it was given.
        name: Printable,
    },
    /// It speaks to the entrypoint.
    #[error("--env {name}: names that start with {RESERVED} are reserved; rename the variable")]
    Reserved {
        /// Its name.
        name: Printable,
    },
    /// There is nothing to hand on.
    #[error("--env {name}: not set in this environment; set it, or leave the option out")]
    Unset {
        /// Its name.
        name: Printable,
    },
}

/// Checks the names, and returns each of them once, in order.
pub(super) fn variables(
    names: &[String],
    environment: &Environment,
) -> Result<Vec<String>, VariableError> {
    let mut checked: Vec<String> = Vec::new();
    for name in names {
        check(name, environment)?;
        if !checked.contains(name) {
            checked.push(name.clone());
        }
    }
    Ok(checked)
}

fn check(name: &str, environment: &Environment) -> Result<(), VariableError> {
    if let Some((name, _)) = name.split_once('=') {
        return Err(VariableError::Value {
            name: Printable::new(name),
        });
    }
    let shown = Printable::new(name);
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        Err(VariableError::Name { name: shown })
    } else if name.starts_with(RESERVED) {
        Err(VariableError::Reserved { name: shown })
    } else if !environment.is_set(name) {
        Err(VariableError::Unset { name: shown })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(names: &[&str]) -> Result<Vec<String>, VariableError> {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        variables(
            &names,
            &Environment::of([("TOKEN", "x"), ("EMPTY", ""), ("SANDBOX_X", "1")]),
        )
    }

    #[test]
    fn names_that_are_set_pass_once_each() {
        assert_eq!(
            checked(&["TOKEN", "EMPTY", "TOKEN"]).unwrap(),
            ["TOKEN", "EMPTY"]
        );
    }

    #[test]
    fn a_value_is_refused_and_not_repeated() {
        let line = checked(&["TOKEN=s3cret"]).unwrap_err().to_string();
        assert!(
            line.contains("--env TOKEN") && !line.contains("s3cret"),
            "{line}"
        );
    }

    #[test]
    fn what_cannot_be_handed_on_is_named_with_the_remedy() {
        for (name, part) in [
            ("SANDBOX_X", "reserved"),
            ("NOPE", "not set"),
            ("", "not the name"),
            ("a-b", "not the name"),
            ("1A", "not the name"),
            ("A\u{1b}", "\\u{1b}"),
        ] {
            let line = checked(&[name]).unwrap_err().to_string();
            assert!(line.contains(part), "{line}");
        }
    }
}
