//! `stop`: ends a run, and says what came of it.

use std::io::{self, Write as _};

use super::{
    change::{find, request_of, unwelcome},
    error::{RunError, SetUpError},
    finish::{line_of, wait},
    say,
    summary::summary,
};
use crate::{
    attend::Registration,
    cli::StopArgs,
    environment::Environment,
    run_dir,
    session::Session,
    steer::{Reply, Request},
};

/// Has the container end its guest, waits until it has, and says how that went.
pub(super) async fn stop(args: &StopArgs, environment: &Environment) -> Result<i32, RunError> {
    let runtime_dir = environment.runtime_dir();
    let run = find(&args.run, &args.audit, environment)?;
    let path = run_dir::path(&runtime_dir, &run);
    let registration = Registration::read(&path).map_err(SetUpError::from)?;
    let request = Request::Stop {
        grace_ms: args.grace.saturating_mul(1000),
    };
    match request_of(&run, &request, environment).await? {
        Reply::Stopping => {}
        reply @ (Reply::InForce(_)
        | Reply::Unchanged(_)
        | Reply::Unconfirmed { .. }
        | Reply::Refused { .. }) => {
            return Err(SetUpError::from(unwelcome(run, reply)).into());
        }
    }
    wait(&runtime_dir, &run, args.grace.saturating_add(TO_CLOSE_S)).await?;
    let audit_dir = registration.and_then(|registration| registration.audit_dir);
    let line = audit_dir.and_then(|dir| line_of(&dir, run.as_str()));
    let line = line.ok_or(SetUpError::NoLine(run))?;
    if args.json {
        writeln!(io::stdout(), "{line}").map_err(SetUpError::Output)?;
    } else if let Ok(session) = serde_json::from_str::<Session>(&line) {
        say(&summary(&session));
    }
    Ok(0)
}

/// For PID 1 to end what the guest left behind and to close its account, for the engine to notice,
/// and for the line to be written.
const TO_CLOSE_S: u64 = 30;
