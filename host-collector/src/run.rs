//! Launching: in the foreground, detached, or prepared for another program; and the verbs that go
//! with a run which another process attends to.

mod attended;
mod bundle;
mod change;
mod detached;
mod error;
mod finish;
mod foreground;
mod identity;
mod launch;
mod list;
mod prepare;
mod prepared;
mod publish;
mod request;
mod steer_error;
mod stop;
mod summary;
mod terminal;
mod variables;

use std::{io::Write as _, path::Path};

pub use bundle::BundleError;
pub use error::{ConfigError, RunError, SetUpError};
pub use identity::RootGuest;
pub use publish::PublishError;
pub use steer_error::SteerError;
pub use summary::summary;
pub use variables::VariableError;

pub(crate) use summary::{SHOWN_ID, doubt};

use report::Printable;
use tokio::runtime::Builder;

use crate::{
    attend,
    cli::{AttendArgs, ChangeArgs, FinishArgs, PrepareArgs, RunArgs, StopArgs},
    environment::Environment,
    run_dir,
    run_id::RunId,
    steer::Direction,
};

/// Launches, and returns the code to exit with.
///
/// # Errors
/// When there was no run. One that took place is never an error, whatever became of its record.
pub fn run(args: &RunArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(launch::launch(args, environment))
}

/// Registers a run for another program to launch, and prints how.
///
/// # Errors
/// When it cannot be launched here.
pub fn prepare(args: &PrepareArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(prepared::prepare(args, environment))
}

/// Attends to a run that another process has registered.
///
/// # Errors
/// When there is none, or another process attends to it.
pub fn attend(args: &AttendArgs, environment: &Environment) -> Result<u8, RunError> {
    if args.inherited {
        attend::detach();
    }
    to_its_end(attended::attend(args, environment))
}

/// Waits for the line of a run that another process attends to, and prints it.
///
/// # Errors
/// When there will be none.
pub fn finish(args: &FinishArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(finish::finish(args, environment))
}

/// Lets a run that goes on reach more.
///
/// # Errors
/// When it does not follow the list.
pub fn allow(args: &ChangeArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(change::change(Direction::Allow, args, environment))
}

/// Keeps a run that goes on from reaching something.
///
/// # Errors
/// When it does not follow the list.
pub fn deny(args: &ChangeArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(change::change(Direction::Deny, args, environment))
}

/// Ends a run, and waits for its line.
///
/// # Errors
/// When it does not end, or leaves no line.
pub fn stop(args: &StopArgs, environment: &Environment) -> Result<u8, RunError> {
    to_its_end(stop::stop(args, environment))
}

/// Starts a process for every run whose collector was killed. Costs the caller nothing it would
/// notice, and fails nothing.
pub fn recover(environment: &Environment) {
    // Not even a runtime where there is nothing to do.
    let runtime_dir = environment.runtime_dir();
    if let Some(audit_dir) = environment.audit_dir() {
        attend::after_boot(&audit_dir);
    }
    if run_dir::all(&runtime_dir).is_empty() {
        return;
    }
    let _ = to_its_end(async {
        attend::recover(&runtime_dir);
        Ok(0)
    });
}

/// Runs on a runtime of its own.
fn to_its_end(work: impl Future<Output = Result<i32, RunError>>) -> Result<u8, RunError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SetUpError::from)?;
    let code = runtime.block_on(work)?;
    // Engines give codes of a byte; anything else is none of theirs.
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
}

/// The one run with a directory whose name begins so; `None` if there is none.
fn named(runtime_dir: &Path, beginning: &str) -> Result<Option<RunId>, SetUpError> {
    let mut runs = run_dir::all(runtime_dir);
    runs.retain(|run_id| !beginning.is_empty() && run_id.as_str().starts_with(beginning));
    match runs.len() {
        0 | 1 => Ok(runs.pop()),
        count => Err(SetUpError::Ambiguous {
            run: Printable::new(beginning),
            count,
        }),
    }
}

/// One line on standard error.
pub fn say(line: &str) {
    // There is nobody left to tell if this cannot be told.
    let _ = writeln!(std::io::stderr(), "host-collector: {line}");
}
