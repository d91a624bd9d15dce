//! The entrypoint and the proxy on a fake internet, without a container engine.

#[path = "net/internet_sees.rs"]
mod internet_sees;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial, run};
use sandbox_egress_tests::{
    bare::Lab,
    case::{Case, Place},
    pool::Pool,
};

fn main() -> anyhow::Result<ExitCode> {
    let labs = Arc::new(Pool::new(Lab::create));
    let mut trials: Vec<Trial> = internet_sees::trials();
    for (name, case) in Case::read_all(Place::Namespaces)? {
        let labs = Arc::clone(&labs);
        trials.push(Trial::test(name, move || {
            Ok(labs.with(|lab| lab.check(&case))?)
        }));
    }
    Ok(run(&Arguments::from_args(), trials).exit_code())
}
