//! Why a run that goes on was not changed: one line that names the thing and the remedy.

use report::Printable;

use crate::run_id::RunId;

/// Why a run that goes on was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// It does not go on.
    #[error("run `{0}` has ended; nothing of it can be changed any more")]
    Ended(Printable),
    /// There is nothing to change.
    #[error(
        "run {0} has no allowlist and nobody in it who listens; end its container by the engine"
    )]
    NoAllowlist(RunId),
    /// Its launcher does not attend yet.
    #[error("nobody attends to run {0}; start `host-collector attend {0}`")]
    Nobody(RunId),
    /// Whoever attends does not listen.
    #[error(
        "whoever attends to run {0} does not listen; it may be of an earlier version, or about to end"
    )]
    Deaf(RunId),
    /// Somebody else is in the place of whoever attends.
    #[error("run {0}: {1}")]
    Unasked(RunId, String),
    /// An entry that denies.
    #[error("`{0}` is a denial already; give the entry without its `!` to allow or to deny it")]
    Denial(Printable),
    /// It was not taken.
    #[error("run {run}: {reason}; nothing was changed")]
    Refused {
        /// The run.
        run: RunId,
        /// Whoever refused it says why.
        reason: Printable,
    },
    /// It may have been taken.
    #[error(
        "run {run} did not confirm generation {generation} within 5 s, and may yet; ask again to \
         learn whether it has, or launch it from an image of this version"
    )]
    Unconfirmed {
        /// The run.
        run: RunId,
        /// Which list.
        generation: u64,
    },
}

impl SteerError {
    /// Whether other arguments would have done.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Ended(_) | Self::NoAllowlist(_) | Self::Denial(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::random().unwrap()
    }

    #[test]
    fn every_refusal_is_one_line_that_says_what_to_do() {
        let reason = Printable::new("no\nmore");
        for error in [
            SteerError::Ended(reason.clone()),
            SteerError::NoAllowlist(run()),
            SteerError::Nobody(run()),
            SteerError::Deaf(run()),
            SteerError::Denial(reason.clone()),
            SteerError::Refused { run: run(), reason },
            SteerError::Unconfirmed {
                run: run(),
                generation: 2,
            },
        ] {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.contains([';', ':']), "{line}");
        }
    }

    #[test]
    fn mistakes_of_whoever_asks_are_told_apart() {
        assert!(SteerError::NoAllowlist(run()).is_usage());
        assert!(!SteerError::Deaf(run()).is_usage());
    }
}
