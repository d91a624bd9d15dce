//! Whole runs with docker and podman, on a fake internet.

#[path = "e2e/attended.rs"]
mod attended;
#[path = "e2e/brought.rs"]
mod brought;
#[path = "e2e/by_hand.rs"]
mod by_hand;
#[path = "e2e/collected.rs"]
mod collected;
#[path = "e2e/contract.rs"]
mod contract;
#[path = "e2e/ended.rs"]
mod ended;
#[path = "e2e/image.rs"]
mod image;
#[path = "e2e/on_terminal.rs"]
mod on_terminal;
#[path = "e2e/steered.rs"]
mod steered;
#[path = "e2e/tampered.rs"]
mod tampered;

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
    let remapped: Labs = Arc::new(Pool::new(|| Lab::create(Engine::Remapped)));
    let rootless: Labs = Arc::new(Pool::new(|| Lab::create(Engine::Rootless)));
    let mut trials = Vec::new();
    for (engine, labs) in [
        (Engine::Docker, &docker),
        (Engine::Podman, &podman),
        (Engine::Remapped, &remapped),
        (Engine::Rootless, &rootless),
    ] {
        let usual = matches!(engine, Engine::Docker | Engine::Podman);
        for (name, case) in Case::read_all(engine.place())? {
            if usual || hangs_on_users(&name) {
                trials.push(trial(engine, &name, labs, move |lab| lab.check(&case)));
            }
        }
        let everywhere: [(&str, &[_]); 3] = [
            ("by_hand", &by_hand::TESTS),
            ("contract", &contract::TESTS),
            ("ended", &ended::TESTS),
        ];
        let more: [(&str, &[_]); 5] = [
            ("attended", &attended::TESTS),
            ("brought", &brought::TESTS),
            ("collected", &collected::TESTS),
            ("steered", &steered::TESTS),
            ("tampered", &tampered::TESTS),
        ];
        let more = if usual { &more[..] } else { &[] };
        for (kind, tests) in everywhere.iter().chain(more) {
            for (name, test) in *tests {
                trials.push(trial(engine, &format!("{kind}::{name}"), labs, *test));
            }
        }
    }
    for (name, test) in brought::REMOTE {
        let name = format!("brought::{name}");
        trials.push(trial(Engine::Docker, &name, &docker, test));
    }
    Ok(run(&Arguments::from_args(), trials).exit_code())
}

/// The kinds of cases of which something hangs on who root of the container is outside of it. The
/// others would only be the same once more.
const DIFFERENT_FOR_OTHER_USERS: [&str; 7] = [
    "guest::",
    "launch::",
    "names::",
    "dns::",
    "record::",
    "adversary::processes::",
    "adversary::escape::",
];

fn hangs_on_users(case: &str) -> bool {
    DIFFERENT_FOR_OTHER_USERS
        .iter()
        .any(|kind| case.starts_with(kind))
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
    Trial::test(format!("{}::{name}", engine.name()), run)
}
