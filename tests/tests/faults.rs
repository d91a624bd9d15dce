//! What befalls runs of docker and podman from outside: killed and stopped processes, full disks,
//! a resolver that is gone. Each must leave nothing open, and a record that is true.

#[path = "faults/client.rs"]
mod client;
#[path = "faults/clock.rs"]
mod clock;
#[path = "faults/disks.rs"]
mod disks;
#[path = "faults/engine.rs"]
mod engine;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/reboot.rs"]
mod reboot;

use std::process::ExitCode;

use libtest_mimic::run;
use sandbox_egress_tests::{
    case::Case,
    contained::Engine,
    trials::{arguments, engines, in_lab},
};

fn main() -> anyhow::Result<ExitCode> {
    let mut trials = Vec::new();
    for (engine, labs) in engines() {
        // Others' root is no other in what befalls a run.
        if !matches!(engine, Engine::Docker | Engine::Podman) {
            continue;
        }
        for (name, case) in Case::read_all(engine.place())? {
            if !case.meanwhile.is_empty() {
                trials.push(in_lab(engine, &name, &labs, move |lab| lab.check(&case)));
            }
        }
        for (name, test) in client::TESTS {
            trials.push(in_lab(engine, &format!("client::{name}"), &labs, test));
        }
        for (name, test) in clock::TESTS {
            trials.push(in_lab(engine, &format!("clock::{name}"), &labs, test));
        }
        for (name, test) in disks::TESTS {
            trials.push(in_lab(engine, &format!("disks::{name}"), &labs, test));
        }
        for (name, test) in proxy::TESTS {
            trials.push(in_lab(engine, &format!("proxy::{name}"), &labs, test));
        }
        for (name, test) in reboot::TESTS {
            trials.push(in_lab(engine, &format!("reboot::{name}"), &labs, test));
        }
        if engine == Engine::Docker {
            for (name, test) in engine::TESTS {
                trials.push(in_lab(engine, &format!("engine::{name}"), &labs, test));
            }
        }
    }
    Ok(run(&arguments(), trials).exit_code())
}
