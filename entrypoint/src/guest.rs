//! The guest: the command that nobody trusts, and how it ends.

use std::{
    cell::Cell,
    fmt, io,
    process::{Command, ExitCode},
};

use nix::sys::resource::{UsageWho, getrusage};
use report::{EndReason, Exit, Printable};
use rustix::{
    process::{Pid, Signal, WaitOptions, WaitStatus, wait},
    termios::tcgetpgrp,
};

use crate::{by_number, config::Config, environment::Environment, launch::Launch, oom::Kills};

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pid: Pid,
    usage_before: Usage,
    oom_kills: Option<Kills>,
    asked_to_stop: Cell<bool>,
}

/// How the guest's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It returned a code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
}

/// Why the command could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{command}: {source}")]
pub(crate) struct NotStarted {
    command: String,
    source: io::Error,
}

impl Guest {
    /// Starts the command of `config`.
    pub(crate) fn start(
        config: &Config,
        launch: Launch,
        environment: &Environment,
    ) -> Result<Self, NotStarted> {
        let [program, arguments @ ..] = config.command.as_slice() else {
            return Err(NotStarted {
                command: String::new(),
                source: io::ErrorKind::NotFound.into(),
            });
        };
        // Whoever is in the foreground of the terminal that we stand on gives it to the guest.
        let foreground = tcgetpgrp(rustix::stdio::stdin()).is_ok();
        let usage_before = Usage::of_children();
        let oom_kills = Kills::since_now();
        let child = launch
            .with_umask(config.umask)
            .in_foreground(foreground)
            .spawn(
                Command::new(program)
                    .args(arguments)
                    .env_clear()
                    .envs(environment),
            )
            .map_err(|source| NotStarted {
                command: program.to_string_lossy().into_owned(),
                source,
            })?;
        Ok(Self {
            pid: Pid::from_child(&child),
            usage_before,
            oom_kills,
            asked_to_stop: Cell::new(false),
        })
    }

    /// Hands on to the guest's process group a signal that PID 1 got. The guest cannot have sent
    /// it, so one that asks to stop is the engine's or the user's.
    pub(crate) fn forward(&self, number: i32) {
        if STOPS.contains(&number) {
            self.asked_to_stop.set(true);
        }
        self.signal(number);
    }

    /// Asks the guest to end: the host wants it to.
    pub(crate) fn stop(&self) {
        self.forward(Signal::TERM.as_raw());
    }

    /// Ends what of the guest's process group has not ended by itself.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL.as_raw());
    }

    /// Sends a signal to the guest's process group, whoever it is from.
    pub(crate) fn signal(&self, number: i32) {
        // It may have ended meanwhile, which the next wait tells.
        let _ = by_number::signal_group(self.pid, number);
    }

    /// Collects every child that ended; the guest's own end is returned, and `other` is told of each
    /// of the rest.
    pub(crate) fn reap(&self, mut other: impl FnMut(i32, Ended)) -> Option<Ended> {
        let mut ended = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            let end = Ended::of(status);
            if pid != self.pid {
                if let Some(end) = end {
                    other(pid.as_raw_nonzero().get(), end);
                }
            } else if end.is_some() {
                ended = end;
            } else if status.stopped() {
                // A container's first process cannot be suspended from its terminal; nobody
                // outside could ever continue it.
                self.signal(Signal::CONT.as_raw());
            }
        }
        ended
    }

    /// What is reported of its end.
    pub(crate) fn exit(&self, ended: Ended, outlived_root: u64) -> Exit {
        let usage = Usage::of_children();
        let (code, signal, end_reason) = match ended {
            Ended::Exited(code) => (Some(code), None, EndReason::Exited),
            Ended::Signaled(signal) => (None, Some(signal), self.reason_for(signal)),
        };
        let end_reason = if self.asked_to_stop.get() {
            EndReason::Stopped
        } else {
            end_reason
        };
        let before = self.usage_before;
        Exit {
            code,
            signal,
            end_reason,
            cpu_ms: usage.cpu_ms.saturating_sub(before.cpu_ms),
            peak_rss_kb: (usage.peak_rss_kb > before.peak_rss_kb).then_some(usage.peak_rss_kb),
            outlived_root,
            detail: None,
        }
    }

    fn reason_for(&self, signal: i32) -> EndReason {
        let is_oom = self.oom_kills.as_ref().is_some_and(Kills::happened);
        if is_oom && signal == Signal::KILL.as_raw() {
            EndReason::Oom
        } else {
            EndReason::Signaled
        }
    }
}

impl Ended {
    /// The end that a status tells of, if it tells of one.
    pub(crate) fn of(status: WaitStatus) -> Option<Self> {
        let exited = status.exit_status().map(Self::Exited);
        exited.or_else(|| status.terminating_signal().map(Self::Signaled))
    }

    /// What PID 1 exits with: the code, or 128 + n for a signal.
    pub(crate) fn exit_code(self) -> ExitCode {
        let code = match self {
            Self::Exited(code) => code & 0xff,
            Self::Signaled(signal) => 128 + signal,
        };
        ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signaled(number) => match nix::sys::signal::Signal::try_from(*number) {
                Ok(signal) => write!(f, "was killed by {signal}"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

impl NotStarted {
    /// 127 for a command that is not there, 126 for one that cannot be executed.
    pub(crate) fn code(&self) -> u8 {
        if self.source.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        }
    }

    /// What is reported of it.
    pub(crate) fn exit(&self) -> Exit {
        Exit {
            code: Some(self.code().into()),
            signal: None,
            end_reason: EndReason::StartFailed,
            cpu_ms: 0,
            peak_rss_kb: None,
            outlived_root: 0,
            detail: Some(Printable::new(&self.to_string())),
        }
    }
}

/// What engines and users stop a program with.
const STOPS: [i32; 4] = [
    Signal::HUP.as_raw(),
    Signal::INT.as_raw(),
    Signal::QUIT.as_raw(),
    Signal::TERM.as_raw(),
];

/// Of all children that were waited for.
#[derive(Debug, Clone, Copy)]
struct Usage {
    cpu_ms: u64,
    peak_rss_kb: u64,
}

impl Usage {
    fn of_children() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
            return Self {
                cpu_ms: 0,
                peak_rss_kb: 0,
            };
        };
        let ms = |time: nix::sys::time::TimeVal| {
            u64::try_from(time.tv_sec() * 1000 + time.tv_usec() / 1000).unwrap_or(0)
        };
        Self {
            cpu_ms: ms(usage.user_time()) + ms(usage.system_time()),
            peak_rss_kb: u64::try_from(usage.max_rss()).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_start_says_why_by_its_code() {
        for (kind, code) in [
            (io::ErrorKind::NotFound, 127),
            (io::ErrorKind::PermissionDenied, 126),
            (io::ErrorKind::IsADirectory, 126),
        ] {
            let failed = NotStarted {
                command: "x".into(),
                source: kind.into(),
            };
            assert_eq!(failed.code(), code, "{kind}");
            assert_eq!(failed.exit().end_reason, EndReason::StartFailed);
        }
    }

    #[test]
    fn a_guest_that_was_asked_to_stop_is_told_from_one_that_ended_by_itself() {
        let mut child = Command::new("true").spawn().unwrap();
        let (pid, asked_to_stop) = (Pid::from_child(&child), Cell::new(false));
        let guest = Guest {
            pid,
            usage_before: Usage::of_children(),
            oom_kills: None,
            asked_to_stop,
        };
        guest.forward(Signal::WINCH.as_raw());
        assert_eq!(
            guest.exit(Ended::Exited(0), 0).end_reason,
            EndReason::Exited
        );
        guest.signal(Signal::INT.as_raw());
        assert!(!guest.asked_to_stop.get());
        guest.forward(Signal::TERM.as_raw());
        let exit = guest.exit(Ended::Exited(5), 0);
        assert_eq!((exit.end_reason, exit.code), (EndReason::Stopped, Some(5)));
        child.wait().unwrap();
    }

    #[test]
    fn an_end_is_told_by_its_code_or_by_the_name_of_its_signal() {
        for (end, told) in [
            (Ended::Exited(101), "exited with code 101"),
            (Ended::Signaled(9), "was killed by SIGKILL"),
            (Ended::Signaled(64), "was killed by signal 64"),
        ] {
            assert_eq!(end.to_string(), told);
        }
    }

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!(Ended::Signaled(15).exit_code(), ExitCode::from(143));
        assert_eq!(Ended::Exited(7).exit_code(), ExitCode::from(7));
        assert_eq!(Ended::Signaled(64).exit_code(), ExitCode::from(192));
    }

    fn config(command: &[&str]) -> Config {
        Config {
            command: command.iter().map(Into::into).collect(),
            run_as: None,
            umask: None,
            allowlist: None,
        }
    }

    #[test]
    fn a_missing_command_is_127_and_a_directory_126() {
        for (command, code) in [("/nonexistent/x", 127), ("/etc", 126), ("/etc/passwd", 126)] {
            let refused = Guest::start(
                &config(&[command]),
                Launch::unchanged(),
                &Environment::new(),
            );
            assert_eq!(refused.unwrap_err().code(), code, "{command}");
        }
    }

    #[test]
    fn a_complaint_names_the_command() {
        let refused = Guest::start(
            &config(&["/nonexistent/x"]),
            Launch::unchanged(),
            &Environment::new(),
        );
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .starts_with("/nonexistent/x: ")
        );
    }

    #[test]
    fn what_is_reported_of_a_start_that_failed_has_the_code_and_the_cause() {
        let failed = NotStarted {
            command: "x".into(),
            source: io::ErrorKind::NotFound.into(),
        };
        let exit = failed.exit();
        assert_eq!(exit.code, Some(127));
        assert!(exit.detail.unwrap().as_str().starts_with("x: "));
    }

    #[test]
    fn a_guest_ended_by_a_signal_has_no_code() {
        let guest = Guest {
            pid: rustix::process::getpid(),
            usage_before: Usage::of_children(),
            oom_kills: None,
            asked_to_stop: Cell::new(false),
        };
        let exit = guest.exit(Ended::Signaled(9), 3);
        assert_eq!(
            (exit.code, exit.signal, exit.outlived_root),
            (None, Some(9), 3)
        );
        assert_eq!(exit.end_reason, EndReason::Signaled);
    }

    #[test]
    fn memory_below_that_of_the_set_up_is_unknown_and_not_that_of_the_set_up() {
        let usage_before = Usage {
            cpu_ms: 0,
            peak_rss_kb: u64::MAX,
        };
        let guest = Guest {
            pid: rustix::process::getpid(),
            usage_before,
            oom_kills: None,
            asked_to_stop: Cell::new(false),
        };
        assert_eq!(guest.exit(Ended::Exited(0), 0).peak_rss_kb, None);
    }

    #[test]
    fn a_guest_that_the_host_stops_was_stopped_and_one_that_is_killed_for_it_as_well() {
        use std::os::unix::process::CommandExt as _;
        let mut child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .unwrap();
        let guest = Guest {
            pid: Pid::from_child(&child),
            usage_before: Usage::of_children(),
            oom_kills: None,
            asked_to_stop: Cell::new(false),
        };
        guest.kill();
        assert!(!guest.asked_to_stop.get(), "only after it was asked");
        guest.stop();
        assert!(!child.wait().unwrap().success());
        let exit = guest.exit(Ended::Signaled(9), 0);
        assert_eq!(
            (exit.end_reason, exit.signal),
            (EndReason::Stopped, Some(9))
        );
    }
}
