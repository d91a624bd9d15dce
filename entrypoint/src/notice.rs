//! What PID 1 says on the terminal, which is the guest's as soon as there is one: little.

use std::io::Write as _;

/// One line on standard error; if that is gone too, the exit code has to do.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "sandbox-entrypoint: {line}");
}
