//! Reads the session log back for people and for programs.

mod ago;
mod coverage;
mod denials;
mod doctor;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod going_on;
mod list;
mod progress;
mod shell;
mod show;
mod suggest;
mod table;
mod tail;
mod terminal;
mod verify;

use std::{
    io,
    path::{Path, PathBuf},
};

use report::Printable;
use serde::Serialize;
use serde_json::Value;

pub use coverage::{Blank, blanks};
pub use denials::denials;
pub use doctor::doctor;
pub use list::list;
pub use show::show;
pub use suggest::suggest;
pub use tail::tail;
pub use verify::{keygen, verify};

use crate::{
    cli::AuditArgs,
    environment::Environment,
    log::{KeyError, LogError},
    run::say,
};

/// Why there is nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// Nobody said where the log is, and there is no home.
    #[error("no session log to read; set SANDBOX_AUDIT_DIR or HOME, or name it with --audit-dir")]
    Nowhere,
    /// There is no such run.
    #[error("no run `{0}` in the session log; `host-collector list` shows those there are")]
    NoRun(Printable),
    /// There are several.
    #[error("`{run}` is the beginning of {count} runs; give more of it")]
    Ambiguous {
        /// As it was given.
        run: Printable,
        /// How many.
        count: usize,
    },
    /// A key is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The checkpoints cannot be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Nobody takes the output.
    #[error("write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Where the log is that somebody wants to read.
fn log_dir(audit: &AuditArgs, environment: &Environment) -> Result<PathBuf, ViewError> {
    let named = audit.audit_dir.clone();
    named
        .or_else(|| environment.audit_dir())
        .ok_or(ViewError::Nowhere)
}

/// Says on standard error that there was more than could be read.
fn skipped_lines(count: u64, dir: &Path) {
    if count > 0 {
        let (lines, dir) = (counted(count, "line"), dir.display());
        say(&format!(
            "{lines} of {dir} could not be read and were skipped; `host-collector verify` says which"
        ));
    }
}

/// `1 line`, `2 lines`.
fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// The word that a value has in the log.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value
        .as_ref()
        .and_then(Value::as_str)
        .unwrap_or("?")
        .to_owned()
}

/// A reader that has seen enough, such as `head`, is not an error.
fn unless_gone(written: io::Result<()>) -> Result<(), ViewError> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
