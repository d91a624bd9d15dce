//! Moves the log's files along, and counts the runs that fall off the end, whenever the power fails.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use memchr::memmem;
use serde::Deserialize;

use super::{LogError, generations, lines::Forwards};
use crate::session::Text;

/// Makes room for a new current file. The caller holds the lock.
///
/// The file that falls off gets a name that holds the new count, in one rename, so that its runs are
/// either in the log or counted. It goes once the count stands in a line, by [`settle`].
///
/// Oldest first, so that no file is moved onto one that was not moved yet. A number that is missing,
/// as after a crash in the midst of this, is filled and nothing falls off.
pub(crate) fn rotate(dir: &Path) -> Result<(), LogError> {
    let vacant = (1..=generations::KEPT).find(|&n| !generations::file(dir, n).exists());
    let last = if let Some(vacant) = vacant {
        vacant
    } else {
        let oldest = generations::file(dir, generations::KEPT);
        let runs = runs_in(&oldest).map_err(LogError::io("count the runs of", &oldest))?;
        let forgotten = forgotten(dir).saturating_add(runs);
        fs::rename(&oldest, generations::dropping(dir, forgotten))
            .map_err(LogError::io("rotate", &oldest))?;
        generations::KEPT
    };
    for generation in (0..last).rev() {
        let from = generations::file(dir, generation);
        fs::rename(&from, generations::file(dir, generation + 1))
            .map_err(LogError::io("rotate", &from))?;
    }
    Ok(())
}

/// How many runs the log has forgotten in all. It only grows, so the greatest number is the last.
pub(crate) fn forgotten(dir: &Path) -> u64 {
    let counted = generations::newest_first(dir).filter_map(|file| counted_in(&file));
    let pending = generations::half_dropped(dir).into_iter();
    counted
        .chain(pending.map(|(_, forgotten)| forgotten))
        .max()
        .unwrap_or(0)
}

/// Removes what was dropped and is counted. The caller holds the lock, and a line with this count is
/// on the disk; what was dropped since is for the line that counts it.
pub(crate) fn settle(dir: &Path, counted: u64) {
    for (file, forgotten) in generations::half_dropped(dir) {
        if forgotten <= counted {
            // What stays is no part of the log, and is tried again at the next rotation.
            let _ = fs::remove_file(file);
        }
    }
}

/// What counting needs of a line. Somebody who appends waits for a whole file of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counted<'a> {
    #[serde(borrow)]
    time: Text<'a>,
    #[serde(borrow)]
    run_id: Text<'a>,
    detached: Option<bool>,
    finished: Option<bool>,
    dropped_runs: Option<u64>,
}

/// What the first line of a file says that the log has forgotten.
fn counted_in(file: &Path) -> Option<u64> {
    let mut line = Vec::new();
    let read = File::open(file).and_then(|file| Forwards::of(file)?.next_into(&mut line));
    read.ok()?;
    serde_json::from_slice::<Counted<'_>>(&line)
        .ok()?
        .dropped_runs
}

/// Runs that begin in a file. A detached one has two lines, of which the second is not counted,
/// wherever the first is; a line without a name, as the log's first writer made them, is a run of
/// its own.
fn runs_in(file: &Path) -> io::Result<u64> {
    let mut lines = Forwards::of(File::open(file)?)?;
    let (mut runs, mut line) = (0, Vec::new());
    while lines.next_into(&mut line)?.is_some() {
        let begins = if is_whole(&line) {
            memmem::find(&line, SECOND).is_none()
        } else {
            begins_run(&line)
        };
        runs += u64::from(begins);
    }
    Ok(runs)
}

fn begins_run(line: &[u8]) -> bool {
    serde_json::from_slice::<Counted<'_>>(line).is_ok_and(|line| {
        let names_run = line.run_id.as_str().or(line.time.as_str()).is_some();
        names_run && (line.detached, line.finished) != (Some(true), Some(true))
    })
}

/// Whether a line was written by [`super::Log`], to its end, where `prev` stands: then it is JSON, and
/// reading as such what is only to be counted would take most of the time of appending.
fn is_whole(line: &[u8]) -> bool {
    let end = line.len().checked_sub(PREV.len() + 64 + END.len());
    let end = end.and_then(|at| line.get(at..)).unwrap_or_default();
    end.starts_with(PREV) && end.ends_with(END)
}

/// How the line of a detached run's end has these fields. In a string the quotes would be escaped.
const SECOND: &[u8] = br#""detached":true,"finished":true,"#;
const PREV: &[u8] = br#","prev":""#;
const END: &[u8] = br#""}"#;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::{Launched, MAX_LINE, Session, fit};

    proptest! {
        #[test]
        fn a_line_is_counted_by_its_looks_as_it_is_by_its_meaning(
            command in r#"["\\,:{}a-z]{0,40}"#,
            lookalike in any::<bool>(),
            (detached, finished) in any::<(bool, Option<bool>)>(),
            cut in 0usize..100,
        ) {
            let mut command = vec![command];
            if lookalike {
                command.push(format!("{}\",\"prev\":\"{}\"}}", String::from_utf8_lossy(SECOND), "a".repeat(64)));
            }
            let session = Session {
                run_id: Some("a".into()),
                launch: Launched { command, ..Launched::default() },
                detached,
                finished,
                prev: Some("a".repeat(64)),
                ..Session::default()
            };
            let mut line = fit(&session, MAX_LINE).unwrap();
            line.pop();
            prop_assert!(is_whole(&line));
            let is_second = memmem::find(&line, SECOND).is_some();
            prop_assert_eq!(begins_run(&line), !is_second);
            prop_assert_eq!(is_second, detached && finished == Some(true));
            for end in [cut, line.len() - 1 - cut] {
                let part = line.get(..end).unwrap_or_default();
                prop_assert!(!is_whole(part) && !begins_run(part));
            }
        }
    }

    #[test]
    fn a_detached_run_is_counted_once_though_its_end_is_dropped_later() {
        let dir = tempfile::tempdir().unwrap();
        let line = |n| format!("{{\"run_id\":\"{n}\",\"detached\":true}}\n");
        let end = "{\"run_id\":\"0\",\"detached\":true,\"finished\":true}\n";
        for n in 0..8 {
            write(
                dir.path(),
                0,
                &if n == 1 { end.to_owned() } else { line(n) },
            );
            rotate(dir.path()).unwrap();
        }
        // Three files have gone, of which two began a run.
        assert_eq!(forgotten(dir.path()), 2);
    }

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
            "{\"run_id\":\"a\",\"detached\":true}\n\
             {\"run_id\":\"a\",\"detached\":true,\"finished\":true}\ntorn{\n{\"time\":\"\"}\n",
        );
        rotate(dir.path()).unwrap();
        assert_eq!(forgotten(dir.path()), 12);
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
        rotate(dir.path()).unwrap();
        assert_eq!(forgotten(dir.path()), 0);
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
    fn only_what_is_counted_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        for forgotten in [3, 7] {
            fs::write(generations::dropping(dir.path(), forgotten), "").unwrap();
        }
        settle(dir.path(), 3);
        assert_eq!(forgotten(dir.path()), 7);
        assert_eq!(generations::half_dropped(dir.path()).len(), 1);
    }

    #[test]
    fn rotating_again_and_again_keeps_the_newest_five() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..9 {
            write(dir.path(), 0, &n.to_string());
            rotate(dir.path()).unwrap();
            settle(dir.path(), u64::MAX);
        }
        let kept: Vec<_> = contents(dir.path()).into_iter().flatten().collect();
        assert_eq!(kept, ["8", "7", "6", "5", "4"]);
    }

    #[test]
    fn a_directory_in_the_place_of_the_oldest_file_stops_the_rotation_and_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "{\"run_id\":\"a\"}\n");
        for n in 1..=5 {
            fs::create_dir(generations::file(dir.path(), n)).unwrap();
        }
        let error = rotate(dir.path()).unwrap_err().to_string();
        assert!(error.contains("sessions.jsonl.5"), "{error}");
        assert!(generations::file(dir.path(), 0).is_file());
    }
}
