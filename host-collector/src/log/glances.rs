//! Hands every line of the log to whoever counts, oldest first.

use std::path::Path;

use super::{lines::Forwards, read::files};
use crate::session::Glance;

/// Calls `each` with every line of a run, and returns how many lines were none.
pub(crate) fn glances(dir: &Path, mut each: impl FnMut(&Glance<'_>)) -> u64 {
    let mut skipped = 0;
    let mut content = Vec::new();
    for file in files(dir).into_iter().rev() {
        let Ok(mut lines) = Forwards::of(file) else {
            continue;
        };
        while let Ok(Some(line)) = lines.next_into(&mut content) {
            let glance = serde_json::from_slice::<Glance<'_>>(&content).ok();
            let of_a_run = glance.filter(|glance| {
                !glance.time.or_empty().is_empty() || glance.run_id.as_str().is_some()
            });
            match of_a_run {
                Some(glance) => each(&glance),
                None if line.length == 0 => {}
                None => skipped += 1,
            }
        }
    }
    skipped
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::log::generations;

    #[test]
    fn every_line_is_seen_once_and_what_is_none_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let write = |generation, text: &str| {
            fs::write(generations::file(dir.path(), generation), text).unwrap();
        };
        write(0, "{\"run_id\":\"3\"}\n{\"run_id\":\"4");
        write(1, "{\"run_id\":\"1\"}\n\nnull\n{}\n{\"run_id\":\"2\"}\n");
        write(3, &"x".repeat(2_000_000));
        let mut seen = Vec::new();
        let skipped = glances(dir.path(), |glance| {
            seen.push(glance.run_id.or_empty().to_owned());
        });
        assert_eq!(
            (seen, skipped),
            (vec!["1".to_owned(), "2".into(), "3".into()], 4)
        );
    }

    #[test]
    fn a_log_that_does_not_exist_has_no_lines() {
        assert_eq!(
            glances(Path::new("/nowhere"), |glance| panic!("{glance:?}")),
            0
        );
    }
}
