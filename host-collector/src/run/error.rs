//! Why a run did not take place: one line that names the thing and the remedy.

use std::{io, path::PathBuf};

use report::Printable;

use super::{
    bundle::BundleError, identity::RootGuest, publish::PublishError, steer_error::SteerError,
    variables::VariableError,
};
use crate::{
    allow::AllowError,
    attend::{NoRun, RegistrationError},
    channel::ChannelError,
    engine::{EngineError, RefusedArgument},
    run_dir::RunDirError,
    run_id::RunId,
};

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What was asked for makes no sense, or is not to be had.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It makes sense, and this host or this image cannot do it.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
}

/// A mistake in what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The allowlist.
    #[error(transparent)]
    Allow(#[from] AllowError),
    /// A variable.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The CA bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The user.
    #[error(transparent)]
    User(#[from] RootGuest),
    /// A published port.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// An argument for the engine.
    #[error(transparent)]
    Argument(#[from] RefusedArgument),
    /// A list that nobody would read.
    #[error("--allow has no effect with --network {0}; leave one of them out")]
    UnusedList(&'static str),
    /// The workspace.
    #[error("--workspace {path}: {source}; name a directory of this host")]
    Workspace {
        /// As it was named.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A terminal that is none.
    #[error("--tty: standard input is no terminal; leave --tty out")]
    NoTerminal,
    /// Nothing to run.
    #[error("no command: image `{0}` names none; give one after `--`")]
    NoCommand(Printable),
}

/// What stood in the way of a run.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The run's directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The report channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The allowlist could not be laid where the container reads it.
    #[error("cannot write the allowlist to {path}: {source}; make room there")]
    List {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The allowlist is longer than variables can hold, and there is no directory for it.
    #[error(
        "the allowlist has {size} bytes, and at most {most} reach a container where nothing can be \
         mounted; shorten it with wildcards, or run on an engine of this machine"
    )]
    LongList {
        /// Its size.
        size: usize,
        /// The largest.
        most: usize,
    },
    /// The system has no randomness to give.
    #[error("cannot name the run: {0}")]
    Randomness(#[from] getrandom::Error),
    /// The system refused something to this process.
    #[error("cannot watch the run: {0}")]
    Runtime(#[from] io::Error),
    /// The guest was not started.
    #[error(transparent)]
    NoRun(#[from] NoRun),
    /// What is known of the run.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// There is no such run.
    #[error("no run `{0}` is going on; `host-collector list` shows those there are")]
    NoSuchRun(Printable),
    /// There are several.
    #[error("`{run}` is the beginning of {count} runs; give more of it")]
    Ambiguous {
        /// As it was given.
        run: Printable,
        /// How many.
        count: usize,
    },
    /// Somebody attends to it already.
    #[error(
        "run {0} is attended by another process; wait for its line with `host-collector finish {0}`"
    )]
    Attended(RunId),
    /// The process that was to attend to the run did not come to it.
    #[error("the process that was to attend to the run ended early{0}")]
    Unattended(Printable),
    /// The run goes on.
    #[error("run {run} has not ended within {seconds} s; end its container first")]
    GoesOn {
        /// The run.
        run: RunId,
        /// How long was waited.
        seconds: u64,
    },
    /// The run left no line.
    #[error(
        "run {0} has no line in the session log: its guest was never started, or the log could not be written"
    )]
    NoLine(RunId),
    /// A run that goes on was not changed.
    #[error(transparent)]
    Steer(#[from] SteerError),
    /// Nobody takes the output.
    #[error("write to standard output: {0}")]
    Output(io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_one_line_with_a_remedy() {
        let image = Printable::new("img\nx");
        let config: [ConfigError; 4] = [
            ConfigError::UnusedList("none"),
            ConfigError::Workspace {
                path: "/w".into(),
                source: io::ErrorKind::NotFound.into(),
            },
            ConfigError::NoTerminal,
            ConfigError::NoCommand(image.clone()),
        ];
        for error in config {
            let line = RunError::from(error).to_string();
            let remedies = ["leave", "name a directory", "give one"];
            assert!(
                !line.contains('\n') && remedies.iter().any(|r| line.contains(r)),
                "{line}"
            );
        }
        let set_up = [
            SetUpError::NoSuchRun(image.clone()),
            SetUpError::Ambiguous {
                run: image.clone(),
                count: 2,
            },
            SetUpError::Unattended(image),
        ];
        for error in set_up {
            let line = RunError::from(error).to_string();
            assert!(
                !line.contains('\n') && line.contains("img\\u{a}x"),
                "{line}"
            );
        }
    }
}
