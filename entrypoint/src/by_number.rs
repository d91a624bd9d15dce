#![expect(
    unsafe_code,
    reason = "a real-time signal has no name, and the safe calls take names only"
)]
//! Signals by number: an image may have any stop its program, one without a name included
//! (`STOPSIGNAL SIGRTMIN+3`, as those of systemd do).

use std::io;

use rustix::process::Pid;

/// Sends signal `number` to all of the process group `group` (killpg(3)).
///
/// # Errors
/// Where there is no such group, or no such signal.
pub(crate) fn signal_group(group: Pid, number: i32) -> io::Result<()> {
    // SAFETY: the call takes two numbers, and neither reads nor writes memory of this process. A
    // signal that would reach this process itself is handled like any other: as the kernel has it.
    let result = unsafe { libc::killpg(group.as_raw_nonzero().get(), number) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::{CommandExt as _, ExitStatusExt as _},
        process::Command,
    };

    use super::*;

    #[test]
    fn signals_with_a_name_and_without_one_arrive() {
        for number in [libc::SIGTERM, libc::SIGRTMIN() + 3, libc::SIGRTMAX()] {
            let mut child = Command::new("sleep")
                .arg("1000")
                .process_group(0)
                .spawn()
                .unwrap();
            signal_group(Pid::from_child(&child), number).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(number));
        }
    }

    #[test]
    fn a_signal_that_does_not_exist_is_an_error() {
        let own = rustix::process::getpid();
        assert!(signal_group(own, 4096).is_err());
    }
}
