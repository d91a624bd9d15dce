//! PID 1 of a sandbox: closes the network, then starts the guest without privileges.
//!
//! `sandbox-entrypoint COMMAND [ARGUMENT…]`, also installed as `sandbox-init` and
//! `sandbox-firewall`; `sandbox-entrypoint stream` is a process beside it. Everything else is asked of the environment, see README.md.

mod account;
mod accounts;
mod allow;
mod by_number;
mod capabilities;
mod channel;
mod config;
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
mod listeners;
mod nflog;
mod oom;
mod outbox;
mod outcome;
mod proxy;
mod readiness;
mod receiving;
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
    io::Write as _,
    process::ExitCode,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() == Some(OsStr::new(self_test::VERB)) {
        let plan = arguments.next().unwrap_or_default();
        let attempted = self_test::attempt_all(&plan.to_string_lossy());
        return attempted.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let arguments: Vec<OsString> = arguments.collect();
    if stream::is_asked_for(&arguments) {
        return match stream::stream() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error.to_string());
                ExitCode::FAILURE
            }
        };
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the environment is read"
    )]
    let lookup = |name: &str| std::env::var_os(name);
    match run::run(arguments, &lookup) {
        Ok(outcome) => {
            if let Some(complaint) = outcome.complaint {
                complain(&complaint);
            }
            outcome.code
        }
        Err(failure) => {
            complain(&failure.one_line());
            failure.exit_code().into()
        }
    }
}

/// One line on standard error; if that is gone too, the exit code has to do.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "sandbox-entrypoint: {line}");
}
