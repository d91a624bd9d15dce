//! A run that is left alone once its guest was started. Another process attends to it.

use std::io::{self, Write as _};

use report::Printable;

use super::{
    error::{RunError, SetUpError},
    prepare::Prepared,
    say,
};
use crate::{
    attend::{Attender, Finish, NoRun, Registration, Word},
    engine::plan,
    run_dir::RunDir,
};

/// Launches, and returns when the guest was started, or will not be.
pub(super) async fn run(prepared: Prepared) -> Result<i32, RunError> {
    let Prepared {
        engine,
        launch,
        run_dir,
        registration,
        ..
    } = prepared;
    let path = run_dir.path().to_owned();
    let mut attender = attended(run_dir, &registration).await?;
    let client = engine.launch(&plan(&launch), launch.output);
    let code = match client {
        Ok(mut client) => client.wait().await.ok().and_then(|status| status.code()),
        Err(error) => {
            give_up(&path, None);
            return Err(SetUpError::from(error).into());
        }
    };
    if code != Some(0) {
        give_up(&path, code);
    }
    match attender.word().await {
        Some(Word::Launched { unrecorded }) => {
            if let Some(error) = unrecorded {
                say(&format!("this launch is not in the session log: {error}"));
            }
            writeln!(io::stdout(), "{}", registration.run_id).map_err(SetUpError::Output)?;
            Ok(0)
        }
        Some(Word::NoRun {
            is_unmounted: true, ..
        }) => Err(SetUpError::NoRun(NoRun::NotMounted(registration.engine)).into()),
        Some(Word::NoRun { code, line, .. }) => {
            if let Some(line) = line {
                say(&line);
            }
            Ok(code)
        }
        Some(Word::Ready) | None => Err(SetUpError::Unattended(Printable::new("")).into()),
    }
}

/// Has another process attend, and waits until it does.
pub(super) async fn attended(
    run_dir: RunDir,
    registration: &Registration,
) -> Result<Attender, SetUpError> {
    let mut attender = Attender::start(run_dir, registration)?;
    match attender.word().await {
        Some(Word::Ready) => Ok(attender),
        Some(Word::NoRun { line, .. }) => {
            let line = line.map_or_else(String::new, |line| format!(": {line}"));
            Err(SetUpError::Unattended(Printable::new(&line)))
        }
        Some(Word::Launched { .. }) | None => Err(SetUpError::Unattended(Printable::new(""))),
    }
}

/// Tells whoever attends that the container will not come.
fn give_up(run_dir: &std::path::Path, exit_code: Option<i32>) {
    let finish = Finish {
        exit_code,
        end_reason: None,
    };
    // Otherwise it gives up by itself, later.
    let _ = finish.store(run_dir);
}
