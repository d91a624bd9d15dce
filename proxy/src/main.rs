//! The proxy as PID 1 starts it: without arguments, with the link as its standard input. And what a
//! guest may run of the same program: `connect`.

mod connect;

use std::{env, ffi::OsString, process::ExitCode};

use sandbox_egress_proxy::{Link, run};

fn main() -> ExitCode {
    // No argument of ours is anything but text; what is not will not be understood.
    let text = |argument: OsString| argument.to_string_lossy().into_owned();
    let arguments: Vec<_> = env::args_os().skip(1).map(text).collect();
    match arguments.first().map(String::as_str) {
        None => serve(),
        Some("connect") => connect(arguments.get(1..).unwrap_or_default()),
        Some("--version" | "-V") => say(&mut std::io::stdout(), VERSION, ExitCode::SUCCESS),
        Some("--help" | "-h") => say(&mut std::io::stdout(), ABOUT, ExitCode::SUCCESS),
        Some(_) => say(&mut std::io::stderr(), ABOUT, ExitCode::from(USAGE)),
    }
}

fn serve() -> ExitCode {
    let Some(link) = Link::inherit() else {
        return say(&mut std::io::stderr(), ABOUT, ExitCode::from(USAGE));
    };
    // What went wrong was told over the link, and to nobody else: nothing of the proxy's may appear
    // on the guest's terminal.
    match run(link) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn connect(arguments: &[String]) -> ExitCode {
    match connect::run(arguments, env::vars_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = ExitCode::from(error.code());
            say(&mut std::io::stderr(), &error.line(), code)
        }
    }
}

fn say(to: &mut impl std::io::Write, words: &str, code: ExitCode) -> ExitCode {
    match to.write_all(words.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

const USAGE: u8 = 2;
const VERSION: &str = concat!("sandbox-egress-proxy ", env!("CARGO_PKG_VERSION"), "\n");
const ABOUT: &str = "\
sandbox-egress-proxy decides, by host name, every connection that leaves a sandbox.

Without arguments it is the proxy, and not started by hand: sandbox-entrypoint starts it inside the
container, and gives it its allowlist and its sockets over its standard input.

    sandbox-egress-proxy connect HOST PORT    joins a connection through the proxy to standard
                                              input and output, as for ssh; see connect --help
";
