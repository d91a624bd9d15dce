//! The entrypoint and the proxy on a fake internet, without a container engine.

#[path = "net/internet_sees.rs"]
mod internet_sees;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Trial, run};
use sandbox_egress_tests::{
    bare::Lab,
    case::{Case, Place},
    pool::Pool,
    trials::arguments,
};

/// What is about packets, and so about who catches them.
const WITHOUT_NFTABLES_TOO: [&str; 11] = [
    "addresses::",
    "adversary::dns::",
    "adversary::doors::",
    "adversary::escape::",
    "adversary::ingress::",
    "adversary::packets::",
    "adversary::record::",
    "dns::",
    "guest::",
    "names::",
    "record::",
];

fn main() -> anyhow::Result<ExitCode> {
    let labs = Arc::new(Pool::new(Lab::create));
    let mut trials: Vec<Trial> = internet_sees::trials();
    for (name, case) in Case::read_all(Place::Namespaces)? {
        // Faults befall what an engine runs.
        if !case.meanwhile.is_empty() {
            continue;
        }
        if WITHOUT_NFTABLES_TOO
            .iter()
            .any(|part| name.starts_with(part))
        {
            let name = format!("without_nftables::{name}");
            trials.push(trial(&labs, name, case.without_nftables()));
        }
        trials.push(trial(&labs, name, case));
    }
    Ok(run(&arguments(), trials).exit_code())
}

fn trial(labs: &Arc<Pool<Lab>>, name: String, case: Case) -> Trial {
    let labs = Arc::clone(labs);
    Trial::test(name, move || Ok(labs.with(|lab| lab.check(&case))?))
}
