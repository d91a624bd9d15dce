//! Signals as something to read, instead of something that happens.

use std::io;

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::readiness::Readiness;

/// The signals of PID 1, blocked and read one by one.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A child changed its state.
    Child,
    /// Any other: it is for the guest.
    ForGuest(i32),
    /// One for the guest that keys on a terminal made. They make it for whoever is in the
    /// foreground, which the guest chooses: nobody outside need have asked for anything.
    FromTerminal(i32),
    /// One that PID 1 only has to survive.
    Ignored,
}

impl Signals {
    /// Blocks every signal that can be waited for, from here on: one that arrives while the set-up
    /// lasts reaches the guest once there is one.
    pub(crate) fn block() -> io::Result<Self> {
        let mut set = SigSet::all();
        // These say that this program is broken. Blocked, they would kill it without a word.
        for fault in FAULTS {
            set.remove(fault);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            fd: SignalFd::with_flags(&set, flags)?,
        })
    }

    /// Waits for the next signal, blocking.
    pub(crate) fn wait(&self) -> io::Result<Arrived> {
        loop {
            if let Some(info) = self.fd.read_signal()? {
                return Ok(classify(info.ssi_signo, info.ssi_code));
            }
            let mut fds = [rustix::event::PollFd::new(
                &self.fd,
                rustix::event::PollFlags::IN,
            )];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The same, to be waited for among other things.
    pub(crate) fn into_async(self) -> io::Result<AsyncSignals> {
        Ok(AsyncSignals {
            readiness: Readiness::of(&self.fd)?,
            fd: self.fd,
        })
    }
}

/// [`Signals`] within the runtime.
#[derive(Debug)]
pub(crate) struct AsyncSignals {
    fd: SignalFd,
    readiness: Readiness,
}

impl AsyncSignals {
    /// The next signal.
    pub(crate) async fn next(&self) -> io::Result<Arrived> {
        let read = || {
            self.fd
                .read_signal()?
                .ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        let info = self.readiness.read(read).await?;
        Ok(classify(info.ssi_signo, info.ssi_code))
    }
}

/// By its number and by who made it, as signalfd(2) tells both.
fn classify(number: u32, code: i32) -> Arrived {
    let number = number.cast_signed();
    match Signal::try_from(number) {
        Ok(Signal::SIGCHLD) => Arrived::Child,
        // Those of the terminal's own making concern whoever is in its foreground.
        Ok(Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGTSTP | Signal::SIGPIPE) => {
            Arrived::Ignored
        }
        Ok(Signal::SIGINT | Signal::SIGQUIT) if code == libc::SI_KERNEL => {
            Arrived::FromTerminal(number)
        }
        Ok(_) | Err(_) => Arrived::ForGuest(number),
    }
}

const FAULTS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGABRT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_sends_is_for_the_guest() {
        for signal in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGWINCH,
        ] {
            let number = signal as i32;
            assert_eq!(
                classify(number.cast_unsigned(), libc::SI_USER),
                Arrived::ForGuest(number)
            );
        }
        assert_eq!(
            classify(37, libc::SI_USER),
            Arrived::ForGuest(37),
            "a real-time signal"
        );
    }

    #[test]
    fn a_blocked_signal_is_read_and_kills_nobody() {
        let signals = Signals::block().unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        assert_eq!(
            signals.wait().unwrap(),
            Arrived::ForGuest(Signal::SIGUSR2 as i32)
        );
    }

    #[test]
    fn a_key_that_interrupts_is_told_from_somebody_who_asks_to_stop() {
        for signal in [Signal::SIGINT, Signal::SIGQUIT] {
            let number = signal as i32;
            for (code, arrived) in [
                (libc::SI_KERNEL, Arrived::FromTerminal(number)),
                (libc::SI_USER, Arrived::ForGuest(number)),
                (libc::SI_QUEUE, Arrived::ForGuest(number)),
            ] {
                assert_eq!(classify(number.cast_unsigned(), code), arrived, "{signal}");
            }
        }
    }

    #[test]
    fn a_childs_end_is_told_from_the_rest() {
        assert_eq!(
            classify(Signal::SIGCHLD as u32, libc::CLD_EXITED),
            Arrived::Child
        );
    }

    #[test]
    fn the_terminals_own_signals_are_survived_and_not_passed_on() {
        for signal in [
            Signal::SIGTTIN,
            Signal::SIGTTOU,
            Signal::SIGTSTP,
            Signal::SIGPIPE,
        ] {
            assert_eq!(
                classify(signal as u32, libc::SI_KERNEL),
                Arrived::Ignored,
                "{signal}"
            );
        }
    }
}
