//! The entrypoint and the proxy on a fake internet, without a container engine.

#[path = "net/internet_sees.rs"]
mod internet_sees;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial, run};

fn main() -> anyhow::Result<ExitCode> {
    let trials: Vec<Trial> = internet_sees::trials();
    let conclusion = run(&Arguments::from_args(), trials);
    Ok(conclusion.exit_code())
}
