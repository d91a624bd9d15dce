//! What a guest on a terminal must see, however it was launched.

use std::{process::Command, time::Duration};

use anyhow::ensure;
use sandbox_egress_tests::terminal::{CTRL_C, CTRL_Z, OnTerminal};

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
    ensure!(follows(&mut program)?, "no change of the size was told");
    program.send(&[CTRL_C])?;
    let (code, shown) = program.finish()?;
    ensure!(code == 4, "{code}: {shown}");
    Ok(())
}

/// Whether a change of the size arrives. An engine's client that has only just told the size may not
/// listen for changes yet, and never hears of one that comes then: it gets others.
fn follows(program: &mut OnTerminal) -> anyhow::Result<bool> {
    for columns in 34..=43 {
        program.resize(12, columns)?;
        if program.shows_within(A_WHILE, &format!("size 12 {columns}"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

const A_WHILE: Duration = Duration::from_secs(3);

/// An interactive shell, and a job for it that says what becomes of it and repeats what is typed.
pub(crate) const SHELL: [&str; 6] = [
    "env",
    "PS1=ready> ",
    "JOB=
import os, select, signal
# A handler alone would not run before the next line if the job was stopped just before it read.
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGCONT, lambda *_: None)
print('the job runs')
while True:
    ready, _, _ = select.select([0, woken], [], [])
    if woken in ready and os.read(woken, 1)[0] == signal.SIGCONT:
        print('the job goes on')
    if 0 in ready:
        print('the job got', input())",
    "bash",
    "--norc",
    "--noprofile",
];

/// Ctrl-Z stops the foreground job and nothing else, `fg` goes on with it on the terminal, Ctrl-C ends
/// it and not the shell, whose code is the guest's.
pub(crate) fn has_jobs(launch: &Command) -> anyhow::Result<()> {
    let mut program = OnTerminal::start(launch, 33, 97)?;
    program.wait_for("ready> ")?;
    program.send(b"/usr/bin/python3 -uc \"$JOB\"\n")?;
    program.wait_for("the job runs")?;
    program.send(b"one\n")?;
    program.wait_for("the job got one")?;
    program.send(&[CTRL_Z])?;
    program.wait_for("Stopped")?;
    program.send(b"echo the shell is $((1 + 1))\n")?;
    program.wait_for("the shell is 2")?;
    program.send(b"fg\n")?;
    program.wait_for("the job goes on")?;
    program.send(b"two\n")?;
    program.wait_for("the job got two")?;
    program.send(&[CTRL_C])?;
    program.wait_for("KeyboardInterrupt")?;
    program.send(b"echo it ended with $?\n")?;
    program.wait_for("it ended with 130")?;
    program.send(b"exit 9\n")?;
    let (code, shown) = program.finish()?;
    ensure!(code == 9, "{code}: {shown}");
    Ok(())
}

/// Leaves its terminal as few programs do, and tries to type into whatever reads it next.
pub(crate) const MEDDLER: [&str; 3] = [
    "/usr/bin/python3",
    "-uc",
    r"
import fcntl, os, signal, termios, tty
# Or whoever is in the background would stop at the next call.
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
tty.setraw(0)
print('\033[?1049h\033[?1000h\033[6n', end='')
for character in b'echo typed by the guest\n':
    try:
        fcntl.ioctl(0, termios.TIOCSTI, bytes([character]))
    except OSError as error:
        print('TIOCSTI', error.errno, end=' ')
        break
for request in termios.TIOCCONS, termios.TIOCSCTTY, 0x5437:  # TIOCVHANGUP
    try:
        fcntl.ioctl(0, request, 1)
        print('request', hex(request), 'was granted', end=' ')
    except OSError:
        pass
# What is shown from here on is held back, for good; and somebody else comes to the foreground.
termios.tcflow(0, termios.TCOOFF)
for group in 1, os.getppid():
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass
os._exit(3)",
];

/// What the terminal of somebody's own is like afterwards, as whoever sits at it finds it.
const AFTERWARDS: &str = "
import os, select, subprocess, sys, termios, tty
before, group = termios.tcgetattr(0), os.tcgetpgrp(0)
code = subprocess.call(sys.argv[1:])
kept = termios.tcgetattr(0) == before and os.tcgetpgrp(0) == group
tty.setraw(0, termios.TCSANOW)
typed = os.read(0, 99) if select.select([0], [], [], 0)[0] else b''
print('kept', kept, 'and typed', typed)
sys.exit(code)";

/// The settings of the terminal that the launch stands on are what they were, and nothing was typed
/// on it.
pub(crate) fn is_left_as_it_was(launch: &Command) -> anyhow::Result<()> {
    let mut seat = Command::new("/usr/bin/python3");
    seat.args(["-c", AFTERWARDS])
        .arg(launch.get_program())
        .args(launch.get_args());
    if let Some(place) = launch.get_current_dir() {
        seat.current_dir(place);
    }
    for (name, value) in launch.get_envs() {
        match value {
            Some(value) => seat.env(name, value),
            None => seat.env_remove(name),
        };
    }
    let (code, shown) = OnTerminal::start(&seat, 33, 97)?.finish()?;
    ensure!(
        code == 3 && shown.contains("kept True and typed b''"),
        "{code}: {shown}"
    );
    ensure!(!shown.contains("was granted"), "{shown}");
    Ok(())
}
