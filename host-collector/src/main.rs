//! The host's command: a list of verbs, and the one place that turns an outcome into an exit code.

use std::process::ExitCode;

use clap::Parser as _;
use host_collector::{
    cli::{Cli, Verb},
    environment::Environment,
    explain::{self, ExplainError},
    manual::{self, ManualError},
    run::{self, RunError, SetUpError, say},
    view::{self, ViewError},
};

fn main() -> ExitCode {
    let environment = Environment::of_process();
    let verb = match Cli::try_parse() {
        Ok(cli) => cli.verb,
        Err(help) => {
            // There is nobody left to tell if this cannot be told.
            let _ = help.print();
            return if help.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // A process that was started to attend to one run minds no other.
    if !matches!(verb, Verb::Attend(_)) {
        run::recover(&environment);
    }
    let of_run = |error: RunError| (code_of_run(&error), error.to_string());
    let outcome = match verb {
        Verb::Run(args) => run::run(&args, &environment).map_err(of_run),
        Verb::Prepare(args) => run::prepare(&args, &environment).map_err(of_run),
        Verb::Attend(args) => run::attend(&args, &environment).map_err(of_run),
        Verb::Finish(args) => run::finish(&args, &environment).map_err(of_run),
        Verb::Allow(args) => run::allow(&args, &environment).map_err(of_run),
        Verb::Deny(args) => run::deny(&args, &environment).map_err(of_run),
        Verb::Stop(args) => run::stop(&args, &environment).map_err(of_run),
        Verb::Explain(args) => explain::explain(&args, &environment)
            .map(|()| 0)
            .map_err(|error| (of_explain(&error), error.to_string())),
        Verb::List(args) => seen(view::list(&args, &environment)),
        Verb::Show(args) => seen(view::show(&args, &environment)),
        Verb::Tail(args) => seen(view::tail(&args, &environment)),
        Verb::Denials(args) => seen(view::denials(&args, &environment)),
        Verb::Suggest(args) => seen(view::suggest(&args, &environment)),
        Verb::Verify(args) => view::verify(&args, &environment)
            .map(|is_sound| if is_sound { 0 } else { FOUND })
            .map_err(|error| of_view(&error)),
        Verb::Doctor(args) => view::doctor(&args, &environment)
            .map(|is_able| if is_able { 0 } else { FOUND })
            .map_err(|error| of_view(&error)),
        Verb::Keygen(args) => seen(view::keygen(&args)),
        Verb::Completions(args) => printed(manual::completions(&args)),
        Verb::Man(args) => printed(manual::man(&args)),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err((code, line)) => {
            say(&line);
            ExitCode::from(code)
        }
    }
}

const fn code_of_run(error: &RunError) -> u8 {
    match error {
        RunError::Config(_) => 78,
        RunError::SetUp(SetUpError::NoSuchRun(_) | SetUpError::Ambiguous { .. }) => USAGE,
        RunError::SetUp(SetUpError::Steer(error)) => {
            if error.is_usage() {
                USAGE
            } else {
                FAILED
            }
        }
        RunError::SetUp(_) => 125,
    }
}

const fn of_explain(error: &ExplainError) -> u8 {
    match error {
        ExplainError::Allow(_) => USAGE,
        ExplainError::Output(_) | ExplainError::Runtime(_) => FAILED,
    }
}

fn seen(outcome: Result<(), ViewError>) -> Result<u8, (u8, String)> {
    outcome.map(|()| 0).map_err(|error| of_view(&error))
}

fn of_view(error: &ViewError) -> (u8, String) {
    let code = match error {
        ViewError::Nowhere
        | ViewError::NoRun(_)
        | ViewError::Ambiguous { .. }
        | ViewError::Key(_)
        | ViewError::Log(_) => USAGE,
        ViewError::Output(_) => FAILED,
    };
    (code, error.to_string())
}

fn printed(outcome: Result<(), ManualError>) -> Result<u8, (u8, String)> {
    outcome
        .map(|()| 0)
        .map_err(|error| (FAILED, error.to_string()))
}

/// Something was found.
const FOUND: u8 = 1;
const FAILED: u8 = 1;
const USAGE: u8 = 2;
