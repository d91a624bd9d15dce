//! The proxy as PID 1 starts it: without arguments, with the link as its standard input.

use std::{env, process::ExitCode};

use sandbox_egress_proxy::{Link, run};

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        None => {}
        Some("--version" | "-V") => return say(&mut std::io::stdout(), VERSION, ExitCode::SUCCESS),
        Some("--help" | "-h") => return say(&mut std::io::stdout(), ABOUT, ExitCode::SUCCESS),
        Some(_) => return say(&mut std::io::stderr(), ABOUT, ExitCode::from(USAGE)),
    }
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

It is not started by hand and takes no arguments: sandbox-entrypoint starts it inside the
container, and gives it its allowlist and its sockets over its standard input.
";
