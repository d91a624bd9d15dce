//! The files of the log: the one that is written, and those that were.

use std::path::{Path, PathBuf};

/// Rotated files that are kept besides the current one.
pub(crate) const KEPT: usize = 5;

/// The file of a generation: 0 is written to, 1 was before it, up to [`KEPT`].
pub(crate) fn file(dir: &Path, generation: usize) -> PathBuf {
    dir.join(name(generation))
}

/// Its name.
pub(crate) fn name(generation: usize) -> String {
    match generation {
        0 => NAME.to_owned(),
        n => format!("{NAME}.{n}"),
    }
}

/// The file of runs that rotation is about to drop, whose name says how many the log has forgotten in
/// all once they are gone.
pub(crate) fn dropping(dir: &Path, forgotten: u64) -> PathBuf {
    dir.join(format!("{DROPPING}{forgotten}"))
}

/// Those files, with that number. There are some only if a crash came between dropping and counting.
pub(crate) fn half_dropped(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let forgotten = entry.file_name().to_str()?.strip_prefix(DROPPING)?.parse();
        Some((entry.path(), forgotten.ok()?))
    });
    found.collect()
}

/// All files, newest first, whether they exist or not.
pub(crate) fn newest_first(dir: &Path) -> impl Iterator<Item = PathBuf> {
    (0..=KEPT).map(|generation| file(dir, generation))
}

const NAME: &str = "sessions.jsonl";
const DROPPING: &str = "sessions.dropping-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_half_dropped_is_found_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "sessions.dropping-7",
            "sessions.dropping-x",
            "sessions.jsonl",
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(half_dropped(dir.path()), [(dropping(dir.path(), 7), 7)]);
        assert_eq!(half_dropped(Path::new("/nowhere")), []);
    }

    #[test]
    fn the_current_file_has_no_number() {
        let names: Vec<_> = newest_first(Path::new("/a")).collect();
        assert_eq!(names.len(), 6);
        assert_eq!(names.first().unwrap(), Path::new("/a/sessions.jsonl"));
        assert_eq!(names.last().unwrap(), Path::new("/a/sessions.jsonl.5"));
    }
}
