//! PID 1 of a sandbox: closes the network, then starts the guest without privileges.
//!
//! `sandbox-entrypoint COMMAND [ARGUMENT…]`, also installed as `sandbox-init` and
//! `sandbox-firewall`; `sandbox-entrypoint stream` is a process beside it. Everything else is asked of the environment, see README.md.

mod account;
mod accounts;
mod addresses;
mod allow;
mod by_number;
mod capabilities;
mod channel;
mod config;
mod connections;
mod decider;
mod enforced;
mod environment;
mod everyone;
mod failure;
mod families;
mod finish;
mod firewall;
mod guest;
mod identity;
mod ingress;
mod launch;
mod limits;
mod link;
mod listeners;
mod nflog;
mod notice;
mod oom;
mod outbox;
mod outcome;
mod proxy;
mod readiness;
mod receiving;
mod renewal;
mod resolver;
mod run;
mod self_test;
mod session;
mod signals;
mod steering;
mod stream;
mod surroundings;
mod tamper;
mod transport;
mod watch;

use std::{
    ffi::{OsStr, OsString},
    io,
    process::ExitCode,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(served) = serve(&name, &arguments) {
        return served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the environment is read"
    )]
    let lookup = |name: &str| std::env::var_os(name);
    match run::run(arguments, &lookup) {
        Ok(outcome) => {
            if let Some(complaint) = outcome.complaint {
                notice::tell(&complaint);
            }
            outcome.code
        }
        Err(failure) => {
            notice::tell(&failure.one_line());
            failure.exit_code().into()
        }
    }
}

/// What this program does for PID 1 or the host under another verb; `None` where it is to be PID 1.
fn serve(name: &OsStr, arguments: &[OsString]) -> Option<io::Result<()>> {
    if name == self_test::VERB {
        let plan = arguments.first().cloned().unwrap_or_default();
        Some(self_test::attempt_all(&plan.to_string_lossy()))
    } else if name == resolver::VERB {
        Some(resolver::serve())
    } else if stream::is_asked_for(arguments) {
        let streamed = stream::stream();
        let tell = |error: &_| notice::tell(&ToString::to_string(error));
        Some(streamed.inspect_err(tell).map_err(io::Error::other))
    } else {
        None
    }
}
