//! `finish`: what a launcher knows of the end of a run, and the line that came of it.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use report::{EndReason, Printable};

use super::{
    error::{RunError, SetUpError},
    named,
};
use crate::{
    attend::{Attender, Finish, Held, Registration, hold},
    cli::{Ending, FinishArgs},
    environment::Environment,
    log::Entries,
    run_dir,
    run_id::RunId,
};

/// Tells whoever attends, waits for the line, and prints it.
pub(super) async fn finish(args: &FinishArgs, environment: &Environment) -> Result<i32, RunError> {
    let runtime_dir = environment.runtime_dir();
    let own = args.audit.audit_dir.clone();
    let own = own.or_else(|| environment.audit_dir());
    let (run, audit_dir) = match named(&runtime_dir, &args.run)? {
        Some(run_id) => {
            let registered = tell(args, &runtime_dir, &run_id)?;
            wait(&runtime_dir, &run_id, args.within).await?;
            (run_id.to_string(), registered.or(own))
        }
        // It may have ended by itself before anybody asked.
        None => (args.run.clone(), own),
    };
    let line = audit_dir.and_then(|dir| line_of(&dir, &run));
    let unknown = || match RunId::try_from(run.clone()) {
        Ok(run_id) => SetUpError::NoLine(run_id),
        Err(_) => SetUpError::NoSuchRun(Printable::new(&args.run)),
    };
    let line = line.ok_or_else(unknown)?;
    writeln!(io::stdout(), "{line}").map_err(SetUpError::Output)?;
    Ok(0)
}

/// Lays down what the launcher knows. Returns where the line will be.
fn tell(
    args: &FinishArgs,
    runtime_dir: &Path,
    run_id: &RunId,
) -> Result<Option<PathBuf>, SetUpError> {
    let path = run_dir::path(runtime_dir, run_id);
    let registration = Registration::read(&path)?;
    let finish = Finish {
        exit_code: args.exit_code,
        end_reason: args.end_reason.map(reason),
    };
    match finish.store(&path) {
        // It ended and was recorded a moment ago.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    Ok(registration.and_then(|registration| registration.audit_dir))
}

/// Waits until nobody attends any more, since there is nothing left to attend to. Where somebody was
/// killed who did, another takes his place.
pub(super) async fn wait(
    runtime_dir: &Path,
    run_id: &RunId,
    within: u64,
) -> Result<(), SetUpError> {
    let over = async {
        let mut was_started = false;
        loop {
            match hold(runtime_dir, run_id)? {
                Held::Nowhere => return Ok(()),
                Held::Here(run_dir) if was_started => {
                    run_dir.leave();
                    return Err(SetUpError::Unattended(Printable::new("")));
                }
                Held::Here(run_dir) => match Registration::read(run_dir.path())? {
                    Some(registration) => {
                        was_started = true;
                        drop(Attender::start(run_dir, &registration)?);
                    }
                    None => return Ok(()),
                },
                Held::Elsewhere => {}
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    let late = || SetUpError::GoesOn {
        run: run_id.clone(),
        seconds: within,
    };
    tokio::time::timeout(Duration::from_secs(within), over)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The line of an end, as it stands in the log.
pub(super) fn line_of(dir: &Path, run: &str) -> Option<String> {
    Entries::open(dir)
        .find(|entry| {
            let session = &entry.session;
            let name = session.run_id.as_deref();
            session.finished == Some(true) && name.is_some_and(|name| name.starts_with(run))
        })
        .map(|entry| entry.line)
}

const fn reason(ending: Ending) -> EndReason {
    match ending {
        Ending::Exited => EndReason::Exited,
        Ending::Signaled => EndReason::Signaled,
        Ending::TimedOut => EndReason::TimedOut,
        Ending::Oom => EndReason::Oom,
        Ending::Stopped => EndReason::Stopped,
    }
}

/// Between two looks at a lock that another process holds.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
