//! Options of the verbs that change a run that goes on.

use clap::{Args, value_parser};

use super::AuditArgs;

/// Options of `allow` and `deny`.
#[derive(Debug, Args)]
#[command(
    after_help = "Waits until the container has confirmed that the list is in force, and prints which \
    it is. `allow` withdraws the denial of an entry, `deny` withdraws the entry and denies it. \
    Connections that are open go on; requests on them are decided by the new list."
)]
pub struct ChangeArgs {
    /// The run: the beginning of its name
    pub run: String,
    /// Destinations, as --allow of `run` takes them
    #[arg(value_name = "ENTRY|@FILE", required = true)]
    pub entries: Vec<String>,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The run: the beginning of its name
    pub run: String,
    /// How long the command may take to end by itself, before it is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(0..=86_400))]
    pub grace: u64,
    /// Print the run's line
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Verb};

    fn parsed(arguments: &[&str]) -> Result<Verb, clap::Error> {
        let arguments = ["host-collector"].iter().chain(arguments);
        Cli::try_parse_from(arguments).map(|cli| cli.verb)
    }

    #[test]
    fn a_change_has_a_run_and_at_least_one_entry() {
        for verb in ["allow", "deny"] {
            assert!(parsed(&[verb, "ab"]).is_err(), "{verb}");
            let (Verb::Allow(args) | Verb::Deny(args)) =
                parsed(&[verb, "ab", "a.example", "@github"]).unwrap()
            else {
                panic!("{verb}")
            };
            assert_eq!(args.entries, ["a.example", "@github"]);
        }
    }

    #[test]
    fn a_guest_has_ten_seconds_to_end_unless_told_otherwise() {
        for (arguments, grace) in [
            (&["stop", "ab"][..], 10),
            (&["stop", "ab", "--grace", "0"], 0),
        ] {
            let Verb::Stop(args) = parsed(arguments).unwrap() else {
                panic!("{arguments:?}")
            };
            assert_eq!(args.grace, grace);
        }
        assert!(parsed(&["stop", "ab", "--grace", "soon"]).is_err());
        assert!(parsed(&["stop"]).is_err());
    }
}
