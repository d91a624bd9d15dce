//! A run that this process waits for.

use report::EndReason;

use super::{
    error::{RunError, SetUpError},
    prepare::Prepared,
    say,
    summary::summary,
    terminal::Terminal,
};
use crate::{
    attend::{Attending, Conclusion, Signals, Starter, exit_code},
    engine::plan,
};

/// Launches, listens, hands on signals, keeps the record, and returns the guest's code.
pub(super) async fn run(prepared: Prepared) -> Result<i32, RunError> {
    let Prepared {
        engine,
        launch,
        run_dir,
        registration,
        ..
    } = prepared;
    let mut signals = Signals::watch().map_err(SetUpError::from)?;
    let attending = Attending::take_up(&run_dir, &registration).map_err(SetUpError::from)?;
    let terminal = Terminal::taken();
    let client = engine.launch(&plan(&launch), launch.output);
    let starter = Starter::Client(client.map_err(SetUpError::from)?, &mut signals);
    let ended = attending.see_through(starter, std::future::ready(())).await;
    terminal.give_back();
    if let Some(remains) = ended.remains {
        say(&remains.to_string());
    }
    match ended.conclusion {
        Conclusion::NoRun(refusal) => Ok(refusal.map_err(SetUpError::from)?),
        Conclusion::Run(session, recorded) => {
            // A command that could not be started has been named by the entrypoint: that is the one
            // line.
            if session.end_reason != Some(EndReason::StartFailed) {
                say(&summary(&session));
            }
            if let Err(error) = recorded {
                say(&format!("this run is not in the session log: {error}"));
            }
            Ok(exit_code(&ended.driven).unwrap_or(UNKNOWN))
        }
    }
}

const UNKNOWN: i32 = 125;
