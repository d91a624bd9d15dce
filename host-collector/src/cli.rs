//! The command line: every verb with its options, and the help that goes with them.

mod labels;
mod launcher;
mod reading;
mod steering;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{channel::Transport, engine::EngineKind};
pub use labels::Labels;
pub use launcher::{AttendArgs, Ending, FinishArgs, PrepareArgs};
pub use reading::{
    About, By, DenialsArgs, KeygenArgs, ListArgs, Selection, ShowArgs, SuggestArgs, TailArgs,
    VerifyArgs,
};
pub use steering::{ChangeArgs, StopArgs};

/// Launches sandboxed runs and keeps a record of what they reached and what they were refused.
#[derive(Debug, Parser)]
#[command(name = "host-collector", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Launch a container, collect its reports, append a line to the session log
    Run(Box<RunArgs>),
    /// Register a run that another program will launch, and print how
    Prepare(Box<PrepareArgs>),
    /// Collect the reports of a prepared run until its container has ended
    Attend(AttendArgs),
    /// Tell how a prepared run ended, wait for its line in the session log, and print it
    Finish(FinishArgs),
    /// Let a run that goes on reach more
    Allow(ChangeArgs),
    /// Keep a run that goes on from reaching something, whatever else allows it
    Deny(ChangeArgs),
    /// End a run, and wait for its line in the session log
    Stop(StopArgs),
    /// Tell what an allowlist says of one destination, and why
    Explain(ExplainArgs),
    /// List past runs, newest first
    List(ListArgs),
    /// Show one run, and what its record does not cover
    Show(ShowArgs),
    /// Print the newest runs, one a line, and with -f those that come
    Tail(TailArgs),
    /// Count what was refused, over many runs
    Denials(DenialsArgs),
    /// Tell what to add to an allowlist for what was refused; applies nothing
    Suggest(SuggestArgs),
    /// Check that the session log is what was written
    Verify(VerifyArgs),
    /// Try whether this host can deliver what `run` promises
    Doctor(DoctorArgs),
    /// Make a pair of keys for signing checkpoints of the log
    Keygen(KeygenArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual, or write its pages
    Man(ManArgs),
}

/// Options of `run`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Exits with the command's code; 78 for a mistake in the configuration, 125 when \
    the run could not be set up, 126 or 127 when the command could not be started."
)]
pub struct RunArgs {
    /// What the run may reach
    #[arg(long, value_enum, default_value_t = NetworkMode::Allowlist)]
    pub network: NetworkMode,
    /// Destinations to allow: entries separated by commas, presets such as @github, tools such as
    /// @tool:pip, or @FILE where FILE has a `/` or a `.` in it
    #[arg(long, value_name = "LIST|@FILE")]
    pub allow: Vec<String>,
    /// Who decides: the proxy by host name, or nftables by address
    #[arg(long, value_enum, default_value_t = Enforce::Name)]
    pub enforce: Enforce,
    /// What to do when the container cannot report
    #[arg(long, value_enum, default_value_t = ReportMode::Required)]
    pub report: ReportMode,
    /// How reports get out: over a socket that is mounted, or through the engine's exec
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Directory to mount at /workspace
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Working directory in the container [default: /workspace if there is one]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Variable to hand on; its value is never recorded
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    /// Give the container the host's CA bundle, or the one at PATH
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub host_ca: Option<Option<PathBuf>>,
    /// Who the guest is: a name of the image, UID or UID:GID [default: you, unless you are root]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Keep standard input open
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the container a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Publish a port, as the engine takes it
    #[arg(long, value_name = "[[IP:]HOST:]PORT[/PROTO]")]
    pub publish: Vec<String>,
    /// Print the run's name when its guest was started, and leave it alone
    #[arg(short, long)]
    pub detach: bool,
    /// Name of the container
    #[arg(long)]
    pub name: Option<String>,
    /// Container engine [default: the first that answers]
    #[arg(long, value_enum)]
    pub engine: Option<EngineKind>,
    /// OCI runtime, of those that the engine knows
    #[arg(long)]
    pub runtime: Option<String>,
    /// An argument for the engine's `run`; repeat it for an option and its value
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub engine_arg: Vec<String>,
    /// What the record says besides.
    #[command(flatten)]
    pub labels: Labels,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
    /// Image to run
    pub image: String,
    /// Command and its arguments [default: the image's]
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// Options of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "Exits with 0 whatever the verdict, and with 2 for a list that is none.")]
pub struct ExplainArgs {
    /// Where a client wants to go, as it would write it [default port: 443]
    #[arg(value_name = "HOST[:PORT]")]
    pub destination: String,
    /// The allowlist, as `run` takes it
    #[arg(long, value_name = "LIST|@FILE", required = true)]
    pub allow: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exits with 0 if runs can have what they are promised, and with 1 if not.")]
pub struct DoctorArgs {
    /// Container engine [default: the first that answers]
    #[arg(long, value_enum)]
    pub engine: Option<EngineKind>,
    /// OCI runtime, of those that the engine knows
    #[arg(long)]
    pub runtime: Option<String>,
    /// Image to try
    #[arg(long, default_value = "sandbox-egress/base")]
    pub image: String,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each verb into this directory [default: print that of the command]
    pub dir: Option<PathBuf>,
}

/// Where the session log is.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// Directory of the session log [default: `$SANDBOX_AUDIT_DIR`, or `~/.config/sandbox/audit`]
    #[arg(long, value_name = "DIR")]
    pub audit_dir: Option<PathBuf>,
}

/// What a run may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkMode {
    /// The destinations of --allow, and nothing else.
    Allowlist,
    /// Whatever the engine's default network reaches.
    Default,
    /// Nothing.
    None,
}

impl NetworkMode {
    /// The word in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowlist => "allowlist",
            Self::Default => "default",
            Self::None => "none",
        }
    }
}

/// Who decides under an allowlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Enforce {
    /// The proxy, by host name; an image without it is refused.
    Name,
    /// nftables alone, by the addresses that names resolve to: whoever shares one is reachable too.
    Address,
    /// By name where the image has the proxy and its user, else by address.
    Auto,
}

impl Enforce {
    /// The word in the log, and for the entrypoint.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Address => "address",
            Self::Auto => "auto",
        }
    }
}

/// What to do when the container cannot report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportMode {
    /// Do not start the guest.
    Required,
    /// Start it, and say in the record that nobody reported.
    BestEffort,
}

impl ReportMode {
    /// The word for the entrypoint.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::BestEffort => "best-effort",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn run(arguments: &[&str]) -> Result<Box<RunArgs>, clap::Error> {
        let verb = Cli::try_parse_from(["host-collector", "run"].iter().chain(arguments))?.verb;
        let Verb::Run(args) = verb else {
            panic!("{verb:?}")
        };
        Ok(args)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_is_an_allowlist_that_must_be_reported_unless_told_otherwise() {
        let args = run(&["img", "--", "sh", "-c", "x"]).unwrap();
        assert_eq!(
            (args.network, args.report),
            (NetworkMode::Allowlist, ReportMode::Required)
        );
        assert_eq!((args.image.as_str(), args.command.len()), ("img", 3));
    }

    #[test]
    fn a_command_needs_the_dashes_before_it() {
        assert!(run(&["img", "sh"]).is_err());
    }

    #[test]
    fn the_bundle_s_path_cannot_swallow_the_image() {
        assert_eq!(run(&["--host-ca", "img"]).unwrap().host_ca, Some(None));
        assert_eq!(
            run(&["--host-ca=/x", "img"]).unwrap().host_ca,
            Some(Some("/x".into()))
        );
        assert_eq!(run(&["img"]).unwrap().host_ca, None);
    }

    #[test]
    fn the_two_terminal_options_go_together() {
        let args = run(&["-it", "img"]).unwrap();
        assert!(args.interactive && args.tty);
    }

    #[test]
    fn a_run_can_be_left_alone_by_either_name() {
        for option in ["-d", "--detach", "-di", "-dt"] {
            assert!(run(&[option, "img"]).unwrap().detach, "{option}");
        }
        assert!(!run(&["img"]).unwrap().detach);
    }

    #[test]
    fn what_is_prepared_takes_the_options_of_a_run() {
        let prepare = |arguments: &[&str]| {
            let all = ["host-collector", "prepare"].iter().chain(arguments);
            match Cli::try_parse_from(all).map(|cli| cli.verb) {
                Ok(Verb::Prepare(args)) => Some(*args),
                _ => None,
            }
        };
        let args = prepare(&[
            "--within", "7", "--allow", "a", "--agent", "x", "img", "--", "c",
        ]);
        let args = args.unwrap();
        assert_eq!((args.within, args.run.allow.len()), (7, 1));
        assert_eq!(args.run.command, ["c"]);
        for within in ["0", "86401", "-1", "soon"] {
            assert!(prepare(&["--within", within, "img"]).is_none(), "{within}");
        }
    }

    #[test]
    fn engine_arguments_may_start_with_dashes() {
        let args = run(&[
            "--engine-arg",
            "--memory=1g",
            "--engine-arg",
            "-v",
            "--engine-arg",
            "/a:/b",
            "img",
        ])
        .unwrap();
        assert_eq!(args.engine_arg, ["--memory=1g", "-v", "/a:/b"]);
    }
}
