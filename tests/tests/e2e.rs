//! Whole runs with docker and podman, on a fake internet.

#[path = "e2e/attended.rs"]
mod attended;
#[path = "e2e/by_hand.rs"]
mod by_hand;
#[path = "e2e/collected.rs"]
mod collected;
#[path = "e2e/image.rs"]
mod image;
#[path = "e2e/on_terminal.rs"]
mod on_terminal;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial, run};
use sandbox_egress_tests::{
    case::Case,
    contained::{Engine, Lab},
    pool::Pool,
};

/// The labs of one engine.
type Labs = Arc<Pool<Lab>>;

/// A test in a lab, whatever its engine.
type LabTest = fn(&Lab) -> anyhow::Result<()>;

fn main() -> anyhow::Result<ExitCode> {
    let docker: Labs = Arc::new(Pool::new(|| Lab::create(Engine::Docker)));
    let podman: Labs = Arc::new(Pool::new(|| Lab::create(Engine::Podman)));
    let mut trials = Vec::new();
    for (engine, labs) in [(Engine::Docker, &docker), (Engine::Podman, &podman)] {
        for (name, case) in Case::read_all(engine.place())? {
            trials.push(trial(engine, &name, labs, move |lab| lab.check(&case)));
        }
        for (name, test) in attended::TESTS {
            trials.push(trial(engine, &format!("attended::{name}"), labs, test));
        }
        for (name, test) in by_hand::TESTS {
            trials.push(trial(engine, &format!("by_hand::{name}"), labs, test));
        }
        for (name, test) in collected::TESTS {
            trials.push(trial(engine, &format!("collected::{name}"), labs, test));
        }
    }
    Ok(run(&Arguments::from_args(), trials).exit_code())
}

fn trial(
    engine: Engine,
    name: &str,
    labs: &Labs,
    test: impl Fn(&Lab) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let labs = Arc::clone(labs);
    let run = move || {
        labs.with(test)
            .map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(format!("{}::{name}", engine.as_str()), run)
}
