//! Moves the log's files along, and counts the runs that fall off the end.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::Path,
};

use serde::Deserialize;

use super::{LogError, generations};

/// Makes room for a new current file, and returns how many runs the log has forgotten in all. The
/// caller holds the lock.
///
/// Oldest first, so that no file is moved onto one that was not moved yet. A number that is missing,
/// as after a crash in the midst of this, is filled and nothing falls off.
pub(crate) fn rotate(dir: &Path) -> Result<u64, LogError> {
    let already = first_line(&generations::file(dir, 0))
        .dropped_runs
        .unwrap_or(0);
    let vacant = (1..=generations::KEPT).find(|&n| !generations::file(dir, n).exists());
    let last = vacant.unwrap_or(generations::KEPT);
    let dropped = match vacant {
        Some(_) => 0,
        None => runs_in(&generations::file(dir, last)).unwrap_or(0),
    };
    for generation in (0..last).rev() {
        let from = generations::file(dir, generation);
        fs::rename(&from, generations::file(dir, generation + 1))
            .map_err(LogError::io("rotate", &from))?;
    }
    Ok(already.saturating_add(dropped))
}

/// What counting needs of a line.
#[derive(Debug, Default, Deserialize)]
struct Counted {
    run_id: Option<String>,
    dropped_runs: Option<u64>,
}

fn first_line(file: &Path) -> Counted {
    let mut line = String::new();
    let read = File::open(file).and_then(|file| BufReader::new(file).read_line(&mut line));
    read.ok()
        .and_then(|_| serde_json::from_str(&line).ok())
        .unwrap_or_default()
}

/// Runs with lines in a file. The two lines of a detached run are one; a line without a name, as the
/// log's first writer made them, is a run of its own.
fn runs_in(file: &Path) -> io::Result<u64> {
    let (mut named, mut unnamed) = (HashSet::new(), 0);
    for line in BufReader::new(File::open(file)?).split(b'\n') {
        match serde_json::from_slice::<Counted>(&line?) {
            Ok(Counted {
                run_id: Some(run_id),
                ..
            }) => drop(named.insert(run_id)),
            Ok(Counted { run_id: None, .. }) => unnamed += 1,
            Err(_) => {}
        }
    }
    Ok(unnamed + named.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, generation: usize, content: &str) {
        fs::write(generations::file(dir, generation), content).unwrap();
    }

    fn contents(dir: &Path) -> Vec<Option<String>> {
        generations::newest_first(dir)
            .map(|file| fs::read_to_string(file).ok())
            .collect()
    }

    #[test]
    fn every_file_moves_one_on_and_the_oldest_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "{\"run_id\":\"f\",\"dropped_runs\":10}\n");
        for n in 1..=4 {
            write(dir.path(), n, &format!("{n}"));
        }
        write(
            dir.path(),
            5,
            "{\"run_id\":\"a\"}\n{\"run_id\":\"a\"}\ntorn{\n{\"time\":\"\"}\n",
        );
        assert_eq!(rotate(dir.path()).unwrap(), 12);
        let moved = contents(dir.path());
        assert_eq!(moved[0], None);
        assert!(moved[1].as_ref().unwrap().contains("\"f\""));
        assert_eq!(moved[2..], ["1", "2", "3", "4"].map(|n| Some(n.to_owned())));
    }

    #[test]
    fn a_missing_number_is_filled_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "new");
        write(dir.path(), 1, "old");
        write(dir.path(), 3, "oldest");
        assert_eq!(rotate(dir.path()).unwrap(), 0);
        let moved = contents(dir.path());
        let expected = [None, Some("new"), Some("old"), Some("oldest"), None, None];
        assert_eq!(moved, expected.map(|text| text.map(ToOwned::to_owned)));
    }

    #[test]
    fn an_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = rotate(dir.path()).unwrap_err().to_string();
        assert!(error.contains("sessions.jsonl"), "{error}");
    }

    #[test]
    fn rotating_again_and_again_keeps_the_newest_five() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..9 {
            write(dir.path(), 0, &n.to_string());
            rotate(dir.path()).unwrap();
        }
        let kept: Vec<_> = contents(dir.path()).into_iter().flatten().collect();
        assert_eq!(kept, ["8", "7", "6", "5", "4"]);
    }
}
