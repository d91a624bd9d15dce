//! That a run was asked to end, in a file of its directory: a collector that takes it over says so
//! again to the container, which may not have heard it from the one before.

use std::{fs, io, path::Path};

/// Writes down that the guest has so many milliseconds to end, before the container is told.
pub(super) fn write_down(run_dir: &Path, grace_ms: u64) -> io::Result<()> {
    fs::write(run_dir.join(NAME), format!("{grace_ms}\n"))
}

/// For how long the guest was given, if it was asked to end. Half a line was not sent.
pub(super) fn asked(run_dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(run_dir.join(NAME)).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}

const NAME: &str = "stop";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_down_is_asked_and_half_of_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(asked(dir.path()), None);
        write_down(dir.path(), 7_000).unwrap();
        assert_eq!(asked(dir.path()), Some(7_000));
        fs::write(dir.path().join(NAME), "70").unwrap();
        assert_eq!(asked(dir.path()), None);
    }
}
