//! What a guest on a terminal must see, however it was launched.

use std::process::Command;

use anyhow::ensure;
use sandbox_egress_tests::terminal::{CTRL_C, OnTerminal};

/// Tells the terminal's size now and whenever it changes, and ends with 4 at an interrupt.
///
/// Signals are waited for rather than handled: a handler may run before there is anything to
/// interrupt.
pub(crate) const GUEST: [&str; 3] = [
    "/usr/bin/python3",
    "-uc",
    "
import os, signal
awaited = {signal.SIGWINCH, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
came = None
while came != signal.SIGINT:
    print('size', *reversed(os.get_terminal_size(0)))
    came = signal.sigwait(awaited)
os._exit(4)",
];

/// The size arrives, so does a change of it, and Ctrl-C ends the guest with its own code.
pub(crate) fn is_kept(launch: &Command) -> anyhow::Result<()> {
    let mut program = OnTerminal::start(launch, 33, 97)?;
    // An engine may set it a moment after the guest has started.
    program.wait_for("size 33 97")?;
    program.resize(12, 34)?;
    program.wait_for("size 12 34")?;
    program.send(&[CTRL_C])?;
    let (code, shown) = program.finish()?;
    ensure!(code == 4, "{code}: {shown}");
    Ok(())
}
