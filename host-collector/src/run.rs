//! `run`: launches a container, collects what it reports, keeps the record, exits with its code.

mod bundle;
mod drive;
mod error;
mod identity;
mod list;
mod outcome;
mod prepare;
mod publish;
mod request;
mod signals;
mod summary;
mod variables;

use std::{io::Write as _, path::PathBuf};

pub use bundle::BundleError;
pub use error::{ConfigError, RunError, SetUpError};
pub use identity::RootGuest;
pub use publish::PublishError;
pub use summary::summary;
pub use variables::VariableError;

pub(crate) use summary::{SHOWN_ID, doubt, target};

use report::EndReason;
use tokio::runtime::Builder;

use crate::{
    cli::{ReportMode, RunArgs},
    environment::Environment,
    log::{self, LogError},
    session::Session,
};
use drive::Driven;

/// Runs on a runtime of its own, and returns the code to exit with.
///
/// # Errors
/// When there was no run. One that took place is never an error, whatever became of its record.
pub fn to_its_end(args: RunArgs, environment: &Environment) -> Result<u8, RunError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SetUpError::from)?;
    let code = runtime.block_on(run(args, environment))?;
    // Engines give codes of a byte; anything else is none of theirs.
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

async fn run(args: RunArgs, environment: &Environment) -> Result<i32, RunError> {
    let mut prepared = prepare::prepare(&args, environment).await?;
    for warning in &prepared.warnings {
        say(&format!("warning: {warning}"));
    }
    let driven = drive::drive(&mut prepared).await?;
    if !outcome::was_launched(&driven, args.report == ReportMode::Required) {
        return Ok(outcome::refusal(
            &driven,
            prepared.engine.kind(),
            &args.image,
        )?);
    }
    let session = outcome::session(
        &driven,
        prepared.record,
        &prepared.launch.run_id,
        host_name(),
    );
    // A command that could not be started has been named by the entrypoint: that is the one line.
    if session.end_reason != Some(EndReason::StartFailed) {
        say(&summary(&session));
    }
    let audit_dir = args.audit.audit_dir.or_else(|| environment.audit_dir());
    if let Err(error) = record(audit_dir, session, &driven) {
        say(&format!("this run is not in the session log: {error}"));
    }
    Ok(outcome::exit_code(&driven))
}

fn record(audit_dir: Option<PathBuf>, session: Session, driven: &Driven) -> Result<(), LogError> {
    let journal = driven
        .attendance
        .as_ref()
        .filter(|attendance| attendance.reports.is_some());
    let journal = journal.map(|attendance| attendance.journal.path().to_owned());
    log::record(audit_dir.ok_or(LogError::Nowhere)?, session, journal)
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// One line on standard error.
pub fn say(line: &str) {
    // There is nobody left to tell if this cannot be told.
    let _ = writeln!(std::io::stderr(), "host-collector: {line}");
}
