//! Makes the guest the one whom the kernel ends first when memory runs out, and not PID 1 or the
//! proxy (proc(5), `oom_score_adj`).

use std::{fs, io};

use report::Printable;

/// While this is held, what PID 1 starts is preferred as the victim.
///
/// PID 1 raises its own score and takes it back after the fork: it may not write the guest's, which
/// is another user's, and the guest could do it but need not.
#[derive(Debug)]
pub(crate) struct Sacrifice {
    before: io::Result<String>,
}

impl Sacrifice {
    /// Raises the score that the next child inherits.
    pub(crate) fn prepare() -> Self {
        let before = fs::read_to_string(PATH).and_then(|before| {
            let raised = before
                .trim()
                .parse::<i32>()
                .unwrap_or(0)
                .saturating_add(RAISE)
                .min(MAX);
            fs::write(PATH, raised.to_string())?;
            Ok(before)
        });
        Self { before }
    }

    /// Why it could not be had.
    pub(crate) fn degradation(&self) -> Option<Printable> {
        let error = self.before.as_ref().err()?;
        Some(Printable::new(&format!(
            "oom_score_adj could not be raised for the guest: {error}"
        )))
    }

    /// Takes PID 1's own score back.
    pub(crate) fn end(self) {
        if let Ok(before) = self.before {
            // Lowering to what it was needs no privilege; if it fails PID 1 is a victim like the
            // guest, and its death is visible in the record.
            let _ = fs::write(PATH, before.trim());
        }
    }
}

const PATH: &str = "/proc/self/oom_score_adj";
const RAISE: i32 = 500;
const MAX: i32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_raised_for_children_and_taken_back() {
        let before = fs::read_to_string(PATH).unwrap();
        let sacrifice = Sacrifice::prepare();
        let child = std::process::Command::new("cat")
            .arg(PATH)
            .output()
            .unwrap();
        assert!(sacrifice.degradation().is_none());
        sacrifice.end();
        let raised: i32 = String::from_utf8(child.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_eq!(
            raised,
            (before.trim().parse::<i32>().unwrap() + RAISE).min(MAX)
        );
        assert_eq!(fs::read_to_string(PATH).unwrap(), before);
    }

    #[test]
    fn a_score_that_could_not_be_raised_is_said() {
        let before = Err(io::ErrorKind::PermissionDenied.into());
        let sentence = Sacrifice { before }.degradation().unwrap();
        assert!(sentence.as_str().contains("oom_score_adj"), "{sentence}");
    }
}
