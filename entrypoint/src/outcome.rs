//! How a run ends for whoever started the container.

use std::process::ExitCode;

/// How a run ends for whoever started it.
pub(crate) struct Outcome {
    /// What PID 1 exits with.
    pub(crate) code: ExitCode,
    /// What to say on standard error, where something kept the guest from starting.
    pub(crate) complaint: Option<String>,
}
