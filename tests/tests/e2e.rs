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
#[path = "e2e/foreign.rs"]
mod foreign;
#[path = "e2e/image.rs"]
mod image;
#[path = "e2e/on_terminal.rs"]
mod on_terminal;
#[path = "e2e/published.rs"]
mod published;
#[path = "e2e/steered.rs"]
mod steered;
#[path = "e2e/suggested.rs"]
mod suggested;
#[path = "e2e/tampered.rs"]
mod tampered;
#[path = "e2e/verdicts.rs"]
mod verdicts;

use std::process::ExitCode;

use libtest_mimic::run;
use sandbox_egress_tests::{
    case::Case,
    contained::Engine,
    trials::{LabTest, arguments, engines, in_lab},
};

fn main() -> anyhow::Result<ExitCode> {
    let mut trials = Vec::new();
    for (engine, labs) in engines() {
        let usual = matches!(engine, Engine::Docker | Engine::Podman);
        for (name, case) in Case::read_all(engine.place())? {
            // What happens from outside meanwhile is the part `faults`.
            if case.meanwhile.is_empty() && (usual || hangs_on_users(&name)) {
                trials.push(in_lab(engine, &name, &labs, move |lab| lab.check(&case)));
            }
        }
        let everywhere: [(&str, &[_]); 4] = [
            ("by_hand", &by_hand::TESTS),
            ("contract", &contract::TESTS),
            ("ended", &ended::TESTS),
            ("foreign", &foreign::TESTS),
        ];
        let more: [(&str, &[_]); 8] = [
            ("attended", &attended::TESTS),
            ("brought", &brought::TESTS),
            ("collected", &collected::TESTS),
            ("published", &published::TESTS),
            ("steered", &steered::TESTS),
            ("suggested", &suggested::TESTS),
            ("tampered", &tampered::TESTS),
            ("verdicts", &verdicts::TESTS),
        ];
        let more = if usual { &more[..] } else { &[] };
        for (kind, tests) in everywhere.iter().chain(more) {
            for (name, test) in *tests {
                trials.push(in_lab(engine, &format!("{kind}::{name}"), &labs, *test));
            }
        }
        if engine == Engine::Docker {
            for (name, test) in brought::REMOTE {
                trials.push(in_lab(engine, &format!("brought::{name}"), &labs, test));
            }
        }
    }
    Ok(run(&arguments(), trials).exit_code())
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
