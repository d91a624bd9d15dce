//! How a container ends: by its guest, by a signal, by an engine that has waited long enough.

use std::fs;

use anyhow::ensure;
use sandbox_egress_tests::{
    contained::Lab,
    process::{Finished, output_of},
    terminal::OnTerminal,
};

use crate::{
    LabTest,
    by_hand::{allowing, engine_run, finish},
};

pub(crate) const TESTS: [(&str, LabTest); 3] = [
    ("a-signal-is-128-and-its-number", signals),
    ("every-signal-reaches-the-guest", forwarded),
    ("of-what-ignores-a-stop-nothing-is-left", ignored),
];

/// With an allowlist, without one, and below an init of the engine's.
fn ways(lab: &Lab) -> [Vec<String>; 4] {
    let allow = allowing(lab, "allowed.test");
    let init = "--init".to_owned();
    [
        vec![allow.clone()],
        vec![],
        vec![init.clone(), allow],
        vec![init],
    ]
}

fn signals(lab: &Lab) -> anyhow::Result<()> {
    for options in ways(lab) {
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        for (signal, number) in [("KILL", 9), ("TERM", 15), ("USR1", 10)] {
            let guest = format!("kill -{signal} $$");
            let finished = finish(engine_run(lab, &options, &["sh", "-c", &guest]))?;
            let Finished { code, stderr, .. } = finished;
            ensure!(
                code == 128 + number,
                "{options:?} {signal}: {code}: {stderr}"
            );
        }
    }
    Ok(())
}

/// Every one that the engine can be asked to send and that does not end the container itself.
fn forwarded(lab: &Lab) -> anyhow::Result<()> {
    let guest = "
import signal
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
           signal.SIGALRM, signal.SIGWINCH, signal.SIGRTMIN + 3, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print('waiting')
while True:
    number = signal.sigwait(numbers)
    print('got', int(number), 'so far')
    if number == signal.SIGTERM:
        exit(7)";
    for options in ways(lab) {
        let mut options: Vec<_> = options.iter().map(String::as_str).collect();
        options.push("-it");
        let command = engine_run(lab, &options, &["/usr/bin/python3", "-uc", guest]);
        let mut program = OnTerminal::start(&command, 24, 80)?;
        program.wait_for("waiting")?;
        let container = lab.container()?;
        for number in ["1", "2", "3", "10", "12", "14", "28", "37", "15"] {
            let signal = format!("--signal={number}");
            output_of(&mut lab.command(["kill", &signal, &container]))?;
            program.wait_for(&format!("got {number} so far"))?;
        }
        let (code, shown) = program.finish()?;
        ensure!(code == 7, "{options:?}: {code}: {shown}");
    }
    Ok(())
}

/// Sessions of their own included.
fn ignored(lab: &Lab) -> anyhow::Result<()> {
    for (number, options) in ways(lab).into_iter().enumerate() {
        let mut options: Vec<_> = options.iter().map(String::as_str).collect();
        options.push("-it");
        // On every command line below it, and nowhere else on the machine.
        let mark = format!("mark-{}-{number}", std::process::id());
        let guest = format!(
            "import os, signal; '{mark}'
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(tell, b'x')
        while True:
            signal.pause()
    os._exit(0)
os.read(ready, 1)
print('wait' + 'ing')
while True:
    signal.pause()"
        );
        let command = engine_run(lab, &options, &["/usr/bin/python3", "-uc", &guest]);
        let mut program = OnTerminal::start(&command, 24, 80)?;
        program.wait_for("waiting")?;
        let container = lab.container()?;
        ensure!(marked(&mark)? >= 2, "{options:?}: the guest is not found");
        output_of(&mut lab.command(["stop", "--time=1", &container]))?;
        let (code, shown) = program.finish()?;
        ensure!(code == 137, "{options:?}: {code}: {shown}");
        ensure!(marked(&mark)? == 0, "{options:?}: some are left");
    }
    Ok(())
}

/// How many processes of the machine, the engine's client left out, have `mark` in what they were
/// started with.
fn marked(mark: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        count +=
            usize::from(command.starts_with("/usr/bin/python3\0-uc") && command.contains(mark));
    }
    Ok(count)
}
