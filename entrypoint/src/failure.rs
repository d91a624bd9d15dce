//! Why a run is refused: one line, one exit code, nothing started.

use std::{fmt, io};

/// Exit code for a configuration that cannot be used: `EX_CONFIG` of sysexits(3).
pub(crate) const EX_CONFIG: u8 = 78;
/// Exit code for a set-up that did not work, as container engines use it.
pub(crate) const EX_SETUP: u8 = 125;

/// A run that is refused before the guest exists.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was asked for cannot be done. The variable names what to mend.
    #[error("{variable}: {problem}; {remedy}")]
    Config {
        variable: &'static str,
        problem: String,
        remedy: String,
    },
    /// A step of the set-up failed; nothing runs, so nothing can leave.
    #[error("{step}: {cause}; {remedy}")]
    Setup {
        step: &'static str,
        cause: String,
        remedy: &'static str,
    },
}

impl Failure {
    /// A configuration error.
    pub(crate) fn config(
        variable: &'static str,
        problem: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Config {
            variable,
            problem: problem.to_string(),
            remedy: remedy.into(),
        }
    }

    /// A set-up error.
    pub(crate) fn setup(
        step: &'static str,
        cause: impl fmt::Display,
        remedy: &'static str,
    ) -> Self {
        Self::Setup {
            step,
            cause: cause.to_string(),
            remedy,
        }
    }

    /// A system call that should not fail here; its remedy is the engine's set-up.
    pub(crate) fn system(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| {
            Self::setup(
                step,
                cause,
                "start the container with the engine's defaults",
            )
        }
    }

    /// What was wrong, without the step and the remedy.
    pub(crate) fn cause(&self) -> &str {
        match self {
            Self::Config { problem, .. } => problem,
            Self::Setup { cause, .. } => cause,
        }
    }

    /// This failure of a second way to do a step, with the reason why the first did not work.
    pub(crate) fn after(self, first: &Self) -> Self {
        match self {
            Self::Setup {
                step,
                cause,
                remedy,
            } => Self::setup(step, format_args!("{}, and {cause}", first.cause()), remedy),
            Self::Config { .. } => self,
        }
    }

    /// What the process exits with.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } => EX_CONFIG,
            Self::Setup { .. } => EX_SETUP,
        }
    }

    /// The message with everything that could break its one line taken out.
    pub(crate) fn one_line(&self) -> String {
        self.to_string()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_that_names_the_thing_and_the_remedy() {
        let failure = Failure::config("SANDBOX_RUN_AS", "no user\n`x`", "name one that exists");
        assert_eq!(
            failure.one_line(),
            "SANDBOX_RUN_AS: no user `x`; name one that exists"
        );
        assert_eq!(failure.exit_code(), EX_CONFIG);
    }

    #[test]
    fn a_set_up_that_fails_is_told_from_a_bad_configuration() {
        let failure = Failure::setup("load the firewall", "no nft", "install nftables");
        assert_eq!(failure.exit_code(), EX_SETUP);
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        let failure = Failure::setup("s", "\u{1b}[31m\r\nx\u{9b}", "r");
        assert!(
            !failure.one_line().contains(char::is_control),
            "{:?}",
            failure.one_line()
        );
    }

    #[test]
    fn a_step_that_failed_in_two_ways_tells_both_and_the_last_remedy() {
        let first = Failure::setup("load", "no nft", "install nft");
        let second = Failure::setup("load", "no iptables", "install either");
        assert_eq!(
            second.after(&first).one_line(),
            "load: no nft, and no iptables; install either"
        );
    }

    #[test]
    fn a_system_error_names_its_step() {
        let failure = Failure::system("open the door")(io::Error::from_raw_os_error(13));
        assert!(
            failure
                .one_line()
                .starts_with("open the door: Permission denied")
        );
    }
}
