//! The session log: many writers, rotation under them, and disks that do not play along.

use std::{collections::BTreeSet, fs, path::Path, thread};

use host_collector::{
    log::{Entries, Limits, Log, record},
    session::Session,
};

fn session(run_id: &str) -> Session {
    Session {
        run_id: Some(run_id.into()),
        ..Session::default()
    }
}

fn write_many(dir: &Path, limits: Limits, writers: usize, lines: usize) {
    thread::scope(|scope| {
        for writer in 0..writers {
            scope.spawn(move || {
                let log = Log::open(dir, limits).unwrap();
                for line in 0..lines {
                    log.append(&session(&format!("{writer}-{line}"))).unwrap();
                }
            });
        }
    });
}

#[test]
fn no_line_of_many_writers_is_lost_torn_or_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    write_many(dir.path(), Limits::default(), 8, 50);
    let mut entries = Entries::open(dir.path());
    let runs: Vec<String> = entries
        .by_ref()
        .filter_map(|entry| entry.session.run_id)
        .collect();
    assert_eq!((runs.len(), entries.skipped()), (400, 0));
    assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 400);
}

#[test]
fn rotation_under_many_writers_accounts_for_every_run() {
    let dir = tempfile::tempdir().unwrap();
    write_many(dir.path(), Limits { file: 2000 }, 8, 50);
    let mut entries = Entries::open(dir.path());
    let all: Vec<Session> = entries.by_ref().map(|entry| entry.session).collect();
    let dropped = all
        .iter()
        .filter_map(|session| session.dropped_runs)
        .max()
        .unwrap();
    assert_eq!((all.len() as u64 + dropped, entries.skipped()), (400, 0));
    assert!(dropped > 0);
}

#[test]
fn the_order_of_the_chain_is_the_order_of_the_lines() {
    let dir = tempfile::tempdir().unwrap();
    write_many(dir.path(), Limits::default(), 4, 25);
    let lines = fs::read_to_string(dir.path().join("sessions.jsonl")).unwrap();
    let prevs: BTreeSet<Option<String>> = lines
        .lines()
        .map(|line| serde_json::from_str::<Session>(line).unwrap().prev)
        .collect();
    assert_eq!(prevs.len(), 100, "two lines follow the same line");
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_and_nothing_worse() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("audit"), "a file").unwrap();
    let error = record(dir.path().join("audit"), session("a"), None).unwrap_err();
    assert!(error.to_string().contains("audit"), "{error}");
}
