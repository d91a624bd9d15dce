//! Reads the session log back for people and for programs.

mod ago;
mod coverage;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod list;
mod show;
mod table;
mod terminal;

use std::io;

use report::Printable;
use serde::Serialize;
use serde_json::Value;

pub use coverage::{Blank, blanks};
pub use list::list;
pub use show::show;

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
    /// Nobody takes the output.
    #[error("write to standard output: {0}")]
    Output(#[from] io::Error),
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
