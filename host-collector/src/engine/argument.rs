//! Engine arguments of the user's own: which of them would undo what the run promises.

use super::plan::{ALLOW, GIVEN};

/// An argument that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--engine-arg {argument}: {why}")]
pub struct RefusedArgument {
    /// The option; for a variable, with its name and without its value.
    pub argument: String,
    /// Why, and what to do instead.
    pub why: &'static str,
}

/// Refuses arguments that contradict the run. All others are the user's business.
pub fn check_arguments(arguments: &[String], allowlist: bool) -> Result<(), RefusedArgument> {
    let mut arguments = arguments.iter().map(String::as_str).peekable();
    while let Some(argument) = arguments.next() {
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (argument, arguments.peek().copied()),
        };
        let refused = always(option).or_else(|| {
            if allowlist {
                under_allowlist(option, value)
            } else {
                None
            }
        });
        if let Some(why) = refused {
            let argument = match variable(option, value) {
                Some(name) => format!("{option} {name}"),
                None => option.to_owned(),
            };
            return Err(RefusedArgument { argument, why });
        }
    }
    Ok(())
}

fn always(option: &str) -> Option<&'static str> {
    match option {
        "--rm" | "--cidfile" => {
            Some("the run removes its container itself, when it knows how it ended; leave it out")
        }
        "-d" | "--detach" => {
            Some("the run must know of it: leave it out, and use --detach of `run`")
        }
        _ => None,
    }
}

fn under_allowlist(option: &str, value: Option<&str>) -> Option<&'static str> {
    match option {
        "--network" | "--net" => {
            let shared =
                |v: &str| v == "host" || v.starts_with("container:") || v.starts_with("ns:");
            value
                .is_some_and(shared)
                .then_some("an allowlist needs a network namespace of its own; leave it out")
        }
        "--privileged" => Some("a privileged guest can undo the allowlist; leave it out"),
        "--pid" => Some("the entrypoint must be PID 1 of its own namespace; leave it out"),
        "--entrypoint" => {
            Some("the allowlist is enforced by the entrypoint; give the command after `--`")
        }
        "-u" | "--user" => Some("the entrypoint starts as root and drops it; use --user of `run`"),
        "-e" | "--env" => variable(option, value)
            .is_some_and(|name| GIVEN.contains(&name) || name.starts_with(ALLOW))
            .then_some("that variable is set by the run; leave it out"),
        _ => None,
    }
}

/// The name of the variable that the option sets, if it sets one.
fn variable<'a>(option: &str, value: Option<&'a str>) -> Option<&'a str> {
    let value = value.filter(|_| matches!(option, "-e" | "--env"))?;
    Some(value.split_once('=').map_or(value, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str], allowlist: bool) -> Result<(), RefusedArgument> {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.into()).collect();
        check_arguments(&arguments, allowlist)
    }

    #[test]
    fn what_would_undo_an_allowlist_is_refused_in_either_spelling() {
        for arguments in [
            &["--network=host"][..],
            &["--network", "host"],
            &["--memory", "1g", "--net", "container:x"],
            &["--privileged"],
            &["--privileged=true"],
            &["--user", "0"],
            &["--entrypoint=/bin/sh"],
            &["--pid=host"],
            &["-e", "SANDBOX_REPORT=off"],
            &["--env=SANDBOX_EGRESS_ALLOW=*"],
        ] {
            assert!(check(arguments, true).is_err(), "{arguments:?}");
            assert!(check(arguments, false).is_ok(), "{arguments:?}");
        }
    }

    #[test]
    fn a_variable_is_named_without_its_value() {
        let line = check(&["--env=SANDBOX_EGRESS_ALLOW=s3cret"], true)
            .unwrap_err()
            .to_string();
        assert!(
            line.contains("SANDBOX_EGRESS_ALLOW") && !line.contains("s3cret"),
            "{line}"
        );
    }

    #[test]
    fn what_only_shapes_the_container_passes() {
        for arguments in [
            &["--memory=1g"][..],
            &["--network", "corp"],
            &["--volume", "/a:/b"],
            &["--env", "SANDBOX_UMASK=027"],
            &["--env=SANDBOX_UPSTREAM_PROXY=http://p:1"],
            &[],
        ] {
            assert_eq!(check(arguments, true), Ok(()), "{arguments:?}");
        }
    }

    #[test]
    fn what_the_run_does_itself_is_refused_without_an_allowlist_too() {
        for argument in ["--rm", "--cidfile=/x", "-d", "--detach"] {
            let line = check(&[argument], false).unwrap_err().to_string();
            assert!(line.contains("leave it out"), "{line}");
        }
    }
}
