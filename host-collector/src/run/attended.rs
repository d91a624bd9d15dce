//! Attending to a run that another process has registered.

use std::os::fd::AsFd as _;

use report::Printable;

use super::{
    error::{RunError, SetUpError},
    named, say,
    summary::summary,
};
use crate::{
    attend::{
        Attending, Conclusion, Held, NoRun, Registration, Starter, Word, hold, record_launch,
    },
    cli::AttendArgs,
    environment::Environment,
    run_dir::RunDir,
    run_id::RunId,
};

/// Who hears what comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    /// Whoever typed the command.
    Person,
    /// The process that started this one, for as long as it cares.
    Launcher,
}

/// Attends until the container has ended.
pub(super) async fn attend(args: &AttendArgs, environment: &Environment) -> Result<i32, RunError> {
    if !args.inherited {
        let run_dir = take(&args.run, environment)?;
        return attend_to(run_dir, Listener::Person).await;
    }
    let attended = match inherit(&args.run, environment) {
        Ok(run_dir) => attend_to(run_dir, Listener::Launcher).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = &attended {
        Word::NoRun {
            code: 125,
            line: Some(error.to_string()),
            is_unmounted: false,
        }
        .say();
    }
    attended
}

async fn attend_to(run_dir: RunDir, listener: Listener) -> Result<i32, RunError> {
    let registration = match Registration::read(run_dir.path()) {
        Ok(Some(registration)) => registration,
        Ok(None) => return Err(SetUpError::NoSuchRun(name_of(&run_dir)).into()),
        Err(error) => {
            run_dir.leave();
            return Err(SetUpError::from(error).into());
        }
    };
    let attending = match Attending::take_up(&run_dir, &registration) {
        Ok(attending) => attending,
        Err(error) => {
            // There may be a journal in it: the next collector may have more luck.
            run_dir.leave();
            return Err(SetUpError::from(error).into());
        }
    };
    let tell = |word: Word| {
        if listener == Listener::Launcher {
            word.say();
        }
    };
    tell(Word::Ready);
    let launched = async {
        let recorded = record_launch(&run_dir, &registration).await;
        let unrecorded = recorded.err().map(|error| error.to_string());
        tell(Word::Launched { unrecorded });
    };
    let ended = attending.see_through(Starter::Another, launched).await;
    if let Some(remains) = ended.remains {
        say(&remains.to_string());
    }
    match ended.conclusion {
        Conclusion::Run(session, recorded) => {
            say(&summary(&session));
            if let Err(error) = recorded {
                say(&format!("this run is not in the session log: {error}"));
            }
            Ok(0)
        }
        Conclusion::NoRun(Ok(code)) => {
            tell(Word::NoRun {
                code,
                line: None,
                is_unmounted: false,
            });
            Ok(code)
        }
        Conclusion::NoRun(Err(error)) => refused(error, listener),
    }
}

fn refused(error: NoRun, listener: Listener) -> Result<i32, RunError> {
    if listener == Listener::Person {
        return Err(SetUpError::from(error).into());
    }
    let code = error.code();
    Word::NoRun {
        code,
        line: Some(error.to_string()),
        is_unmounted: matches!(error, NoRun::NotMounted(_)),
    }
    .say();
    Ok(code)
}

fn take(run: &str, environment: &Environment) -> Result<RunDir, SetUpError> {
    let runtime_dir = environment.runtime_dir();
    let unknown = || SetUpError::NoSuchRun(Printable::new(run));
    let run_id = named(&runtime_dir, run)?.ok_or_else(unknown)?;
    match hold(&runtime_dir, &run_id)? {
        Held::Here(run_dir) => Ok(run_dir),
        Held::Elsewhere => Err(SetUpError::Attended(run_id)),
        Held::Nowhere => Err(unknown()),
    }
}

/// The lock came as standard input.
fn inherit(run: &str, environment: &Environment) -> Result<RunDir, SetUpError> {
    let unknown = || SetUpError::NoSuchRun(Printable::new(run));
    let run_id = RunId::try_from(run.to_owned()).map_err(|_| unknown())?;
    let lock = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(RunDir::inherit(&environment.runtime_dir(), &run_id, lock)?)
}

fn name_of(run_dir: &RunDir) -> Printable {
    let name = run_dir.path().file_name().unwrap_or_default();
    Printable::new(&name.to_string_lossy())
}
