//! What a launcher says of a run and nobody checks: it is recorded as it was said.

use clap::{Args, value_parser};

/// Options that only the record has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Recorded as said")]
pub struct Labels {
    /// The agent that the run is for
    #[arg(long, value_parser = label)]
    pub agent: Option<String>,
    /// The branch that the workspace is on
    #[arg(long, value_parser = label)]
    pub branch: Option<String>,
    /// What a router was asked for before it chose this image or agent
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub routed_from: Option<String>,
    /// Why it chose so
    #[arg(long, value_name = "TEXT", value_parser = label)]
    pub route_reason: Option<String>,
    /// The router's name for the task
    #[arg(long, value_name = "ID", value_parser = label)]
    pub route_id: Option<String>,
    /// Which attempt at the task this is, from 1
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub route_attempt: Option<u32>,
    /// The agent that handed the task over
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub handoff_from: Option<String>,
    /// The session that it handed over
    #[arg(long, value_name = "ID", value_parser = label)]
    pub handoff_session: Option<String>,
}

/// A line of the log has room for all of them at once.
fn label(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("it is empty; leave the option out".into()),
        1..=MOST_BYTES => Ok(text.to_owned()),
        length => Err(format!(
            "it has {length} bytes, and the log takes {MOST_BYTES}; say it shorter"
        )),
    }
}

const MOST_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        labels: Labels,
    }

    fn labels(arguments: &[&str]) -> Result<Labels, clap::Error> {
        Ok(Line::try_parse_from(["x"].iter().chain(arguments))?.labels)
    }

    #[test]
    fn each_is_kept_as_it_was_said() {
        let said = labels(&[
            "--agent",
            "a b",
            "--route-reason",
            "ü\u{1b}",
            "--route-attempt",
            "2",
        ]);
        let said = said.unwrap();
        assert_eq!(
            (
                said.agent.as_deref(),
                said.route_reason.as_deref(),
                said.route_attempt
            ),
            (Some("a b"), Some("ü\u{1b}"), Some(2))
        );
        assert_eq!(said.branch, None);
    }

    #[test]
    fn what_would_not_fit_a_line_or_says_nothing_is_refused_by_name() {
        let long = "x".repeat(MOST_BYTES + 1);
        for (option, value) in [
            ("--agent", long.as_str()),
            ("--handoff-session", ""),
            ("--route-attempt", "0"),
        ] {
            let error = labels(&[option, value]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{option}");
            assert!(error.to_string().contains(option), "{error}");
        }
    }
}
