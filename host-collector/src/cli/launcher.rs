//! Options of the verbs that another launcher uses.

use clap::{Args, ValueEnum, value_parser};

use super::{AuditArgs, RunArgs};

/// Options of `prepare`.
#[derive(Debug, Args)]
#[command(
    after_help = "Prints one JSON object: `arguments` for the engine, whose environment must also \
    have what `environment` holds. With --detach, the launch gets a line in the log as well."
)]
pub struct PrepareArgs {
    /// Start nothing that attends: `attend RUN` will
    #[arg(long)]
    pub no_attend: bool,
    /// Give the run up if its container is not started by then
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=86_400))]
    pub within: u64,
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of `attend`.
#[derive(Debug, Args)]
pub struct AttendArgs {
    /// The run: the beginning of its name
    pub run: String,
    /// Another collector has started this one, and holds its run for it.
    #[arg(long, hide = true)]
    pub inherited: bool,
}

/// Options of `finish`.
#[derive(Debug, Args)]
pub struct FinishArgs {
    /// The run: the beginning of its name
    pub run: String,
    /// The code with which the container ended
    #[arg(long, value_name = "CODE", allow_negative_numbers = true)]
    pub exit_code: Option<i32>,
    /// How it came to its end, where the launcher made it end
    #[arg(long, value_enum)]
    pub end_reason: Option<Ending>,
    /// How long to wait for the line
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..=86_400))]
    pub within: u64,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// How a run came to its end, as its launcher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ending {
    /// The command returned.
    Exited,
    /// A signal ended it.
    Signaled,
    /// A time limit was reached.
    TimedOut,
    /// There was no memory left for it.
    Oom,
    /// Somebody stopped it.
    Stopped,
}
