//! Checks the log: what is no line, which lines do not follow each other, what is missing at the end.

mod chain;
mod finding;

use std::{
    fs::File,
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

use super::{
    generations,
    lines::{Forwards, Line},
    mark::{self, Lock},
};
use crate::session::{NoSession, Session};
use chain::Chain;
pub use finding::{Finding, Findings, Kind, Place};

/// What the log holds, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Report {
    /// Files that there are.
    pub files: u64,
    /// Lines that were read as runs.
    pub lines: u64,
    /// Lines that were skipped.
    pub skipped: u64,
    /// Runs that rotation has dropped, as the log itself says.
    pub dropped_runs: u64,
    /// All that is not as it should be.
    pub findings: Findings,
    /// Digests of the lines in their order, for checkpoints.
    pub(crate) chain: Chain,
}

/// How far checking has come, in bytes of those there are.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads the whole log, oldest line first.
///
/// Whatever stands in it is skipped, named and counted, and hides nothing that stands beside it.
#[must_use]
pub fn verify(dir: &Path, progress: Progress<'_>) -> Report {
    let snapshot = Snapshot::of(dir);
    let total = snapshot.files.iter().map(|(_, lines)| lines.size()).sum();
    let mut report = Report {
        files: snapshot.files.len() as u64,
        ..Report::default()
    };
    let mut done = 0;
    for (place, lines) in snapshot.files {
        let (before, size) = (done, lines.size());
        let mut at = |read: u64| progress(before + read, total);
        if let Err(error) = report.read(place, lines, &mut at) {
            report
                .findings
                .add(place, Kind::Unreadable, error.to_string());
        }
        done += size;
    }
    // Of a rotation that a crash cut short: dropped, and not counted in a line yet.
    report.dropped_runs = report.dropped_runs.max(snapshot.half_dropped);
    report
        .chain
        .check(report.dropped_runs, &mut report.findings);
    if let Some(mark) = snapshot.mark {
        report.check_end(&mark);
    }
    report
}

impl Report {
    fn read(
        &mut self,
        mut place: Place,
        mut lines: Forwards,
        at: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let (mut content, mut bytes) = (Vec::new(), 0);
        while let Some(line) = lines.next_into(&mut content)? {
            place.line += 1;
            bytes += line.length + 1;
            at(bytes);
            self.line(place, line, &content);
        }
        Ok(())
    }

    fn line(&mut self, place: Place, line: Line, content: &[u8]) {
        let digest = line
            .too_long
            .unwrap_or_else(|| Sha256::digest(content).into());
        let parsed = match line.too_long {
            Some(_) => Err((
                Kind::Gigantic,
                format!("{} bytes without an end", line.length),
            )),
            None => Session::parse(content).map_err(|fault| told(fault, content)),
        };
        match parsed {
            Ok(session) => {
                self.lines += 1;
                self.count_dropped(place, &session);
                let needs_prev = session.v.is_some();
                self.chain.push(place, digest, session.prev, needs_prev);
                if !line.ended {
                    let why = "its end is missing; the next append adds it".into();
                    self.findings.add(place, Kind::Torn, why);
                }
            }
            Err((kind, why)) => {
                self.skipped += 1;
                let kind = if line.ended { kind } else { Kind::Torn };
                self.findings.add(place, kind, why);
                self.chain.pass(digest);
            }
        }
    }

    /// The count stands in the first line of a file, and only grows.
    fn count_dropped(&mut self, place: Place, session: &Session) {
        let Some(dropped) = session.dropped_runs else {
            return;
        };
        if dropped < self.dropped_runs {
            let why = format!("{dropped} dropped runs after {}", self.dropped_runs);
            self.findings.add(place, Kind::Count, why);
        }
        self.dropped_runs = self.dropped_runs.max(dropped);
    }

    /// The line that was written last must be there. Others may follow it, of writers that leave no
    /// mark.
    fn check_end(&mut self, mark: &str) {
        if self.chain.after(mark).is_none() {
            let place = self
                .chain
                .last()
                .map_or_else(Place::default, |last| last.place);
            let why = format!("the line that was written last, {mark}, is not in the log");
            self.findings.add(place, Kind::Truncated, why);
        }
    }
}

fn told(fault: NoSession, content: &[u8]) -> (Kind, String) {
    let size = content.len();
    if content.iter().all(u8::is_ascii_whitespace) {
        return (Kind::Foreign, "a blank line".into());
    }
    match fault {
        NoSession::Half => (Kind::Half, format!("it breaks off after {size} bytes")),
        NoSession::Corrupt => (Kind::Corrupt, format!("{size} bytes that are no JSON")),
        NoSession::Foreign => (Kind::Foreign, "JSON, but not of a run".into()),
    }
}

/// The files as they were at one moment, oldest first.
struct Snapshot {
    files: Vec<(Place, Forwards)>,
    mark: Option<String>,
    half_dropped: u64,
}

impl Snapshot {
    /// Under the lock, for as long as opening takes, so that no rotation comes between. A lock that
    /// is not given up in time is done without.
    fn of(dir: &Path) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let mut lock = Lock::share(dir);
        while lock.is_none() && Lock::is_there(dir) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
            lock = Lock::share(dir);
        }
        let open = |generation| {
            let file = File::open(generations::file(dir, generation)).ok()?;
            let place = Place {
                generation,
                line: 0,
            };
            Some((place, Forwards::of(file).ok()?))
        };
        let pending = generations::half_dropped(dir);
        Self {
            files: (0..=generations::KEPT).rev().filter_map(open).collect(),
            mark: mark::mark(dir),
            half_dropped: pending.iter().map(|(_, count)| *count).max().unwrap_or(0),
        }
    }
}

/// A lock is held for as long as a flush takes.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::log::{Limits, Log};

    /// A log of `runs` lines with `per_file` lines in each file.
    struct Written {
        dir: tempfile::TempDir,
    }

    impl Written {
        fn new(runs: usize, limit: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), Limits { file: limit }).unwrap();
            for n in 0..runs {
                let session = Session {
                    v: Some(2),
                    run_id: Some(format!("run-{n:03}")),
                    ..Session::default()
                };
                log.append(&session).unwrap();
            }
            Self { dir }
        }

        fn file(&self, generation: usize) -> PathBuf {
            generations::file(self.dir.path(), generation)
        }

        fn edit(&self, generation: usize, edit: impl FnOnce(&mut Vec<String>)) {
            let text = fs::read_to_string(self.file(generation)).unwrap();
            let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
            edit(&mut lines);
            let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
            fs::write(self.file(generation), text).unwrap();
        }

        fn report(&self) -> Report {
            verify(self.dir.path(), &mut |_, _| {})
        }

        fn found(&self) -> Vec<(usize, u64, Kind)> {
            let report = self.report();
            let places = report.findings.shown().iter();
            places
                .map(|finding| (finding.place.generation, finding.place.line, finding.kind))
                .collect()
        }
    }

    #[test]
    fn a_log_as_it_was_written_is_sound_over_all_generations() {
        for (runs, limit) in [(0, 1), (1, 1), (20, 1_000_000), (20, 900), (100, 900)] {
            let written = Written::new(runs, limit);
            let report = written.report();
            assert_eq!(written.found(), [], "{runs} runs of {limit} bytes a file");
            assert_eq!(report.lines + report.dropped_runs, runs as u64);
        }
    }

    #[test]
    fn an_edit_is_found_behind_the_line_that_was_edited() {
        let log = Written::new(9, 1_000_000);
        log.edit(0, |lines| lines[3] = lines[3].replace("run-003", "run-xxx"));
        assert_eq!(log.found(), [(0, 5, Kind::Chain)]);
    }

    #[test]
    fn a_removed_line_is_found_wherever_it_stood() {
        for (at, place) in [
            (0, (0, 1, Kind::Beginning)),
            (4, (0, 5, Kind::Chain)),
            (8, (0, 8, Kind::Truncated)),
        ] {
            let log = Written::new(9, 1_000_000);
            log.edit(0, |lines| drop(lines.remove(at)));
            assert_eq!(log.found(), [place], "line {at}");
        }
    }

    #[test]
    fn lines_that_changed_places_are_named_with_where_they_belong() {
        let log = Written::new(9, 1_000_000);
        log.edit(0, |lines| lines.swap(3, 4));
        let report = log.report();
        let said: Vec<_> = report.findings.shown().iter().collect();
        assert!(
            said.iter().all(|finding| finding.kind == Kind::Order),
            "{said:?}"
        );
        assert_eq!(said.len(), 3);
        assert!(
            said[0].why.contains("sessions.jsonl line 5"),
            "{}",
            said[0].why
        );
    }

    #[test]
    fn a_line_that_was_written_twice_is_out_of_order() {
        let log = Written::new(9, 1_000_000);
        log.edit(0, |lines| lines.insert(5, lines[2].clone()));
        assert_eq!(log.found(), [(0, 6, Kind::Order), (0, 7, Kind::Order)]);
    }

    #[test]
    fn edits_removals_and_lost_files_are_found_across_generations() {
        for generation in 1..=4 {
            let log = Written::new(100, 900);
            let lines = fs::read_to_string(log.file(generation))
                .unwrap()
                .lines()
                .count();
            log.edit(generation, |lines| drop(lines.pop()));
            assert_eq!(log.found(), [(generation - 1, 1, Kind::Chain)], "{lines}");
            fs::remove_file(log.file(generation)).unwrap();
            assert_eq!(log.found(), [(generation - 1, 1, Kind::Chain)]);
        }
    }

    #[test]
    fn a_log_without_its_newest_or_all_its_files_is_truncated() {
        let log = Written::new(100, 900);
        fs::remove_file(log.file(0)).unwrap();
        assert!(matches!(log.found()[..], [(1, _, Kind::Truncated)]));
        for generation in 1..=5 {
            fs::remove_file(log.file(generation)).unwrap();
        }
        assert_eq!(log.found(), [(0, 0, Kind::Truncated)]);
    }

    #[test]
    fn what_is_no_line_is_named_and_hides_no_neighbour_in_any_generation() {
        for generation in [0, 2, 5] {
            for (foreign, kind) in [
                ("{\"run_id\":\"half".to_owned(), Kind::Half),
                ("{\"run_id\":::}".into(), Kind::Corrupt),
                ("[1,2]".into(), Kind::Foreign),
                (String::new(), Kind::Foreign),
                ("x".repeat(3_000_000), Kind::Gigantic),
            ] {
                let log = Written::new(100, 900);
                let before = log.report().lines;
                log.edit(generation, |lines| lines.insert(1, foreign));
                let report = log.report();
                assert_eq!((report.lines, report.skipped), (before, 1));
                assert_eq!(log.found(), [(generation, 2, kind)]);
            }
        }
    }

    #[test]
    fn a_fragment_that_was_repaired_is_a_finding_and_no_break() {
        let log = Written::new(3, 1_000_000);
        let whole = fs::read(log.file(0)).unwrap();
        fs::write(log.file(0), &whole[..whole.len() - 9]).unwrap();
        assert_eq!(
            log.found(),
            [(0, 3, Kind::Torn), (0, 2, Kind::Truncated)],
            "before the repair"
        );
        let session = Session {
            v: Some(2),
            time: "2026-01-01T00:00:00Z".into(),
            ..Session::default()
        };
        Log::open(log.dir.path(), Limits::default())
            .unwrap()
            .append(&session)
            .unwrap();
        assert_eq!(log.found(), [(0, 3, Kind::Half)]);
    }

    #[test]
    fn lines_of_the_first_writer_need_no_chain_and_are_part_of_it() {
        let log = Written::new(3, 1_000_000);
        log.edit(0, |lines| {
            lines.push("{\"time\":\"2024-05-01T10:00:00Z\",\"image\":\"i\"}".into());
        });
        assert_eq!(log.found(), []);
        let session = Session {
            v: Some(2),
            run_id: Some("a".into()),
            ..Session::default()
        };
        Log::open(log.dir.path(), Limits::default())
            .unwrap()
            .append(&session)
            .unwrap();
        assert_eq!(log.found(), []);
        log.edit(0, |lines| lines[3] = lines[3].replace("\"i\"", "\"j\""));
        assert_eq!(log.found(), [(0, 5, Kind::Chain)]);
    }

    #[test]
    fn a_count_of_dropped_runs_that_shrinks_is_found() {
        let log = Written::new(100, 900);
        let first = fs::read_to_string(log.file(0)).unwrap();
        let dropped = log.report().dropped_runs;
        let forged = first.replacen(
            &format!("\"dropped_runs\":{dropped}"),
            "\"dropped_runs\":1",
            1,
        );
        assert_ne!(first, forged);
        fs::write(log.file(0), forged).unwrap();
        assert!(log.found().contains(&(0, 1, Kind::Count)));
    }

    #[test]
    fn a_lock_that_is_not_given_up_does_not_keep_anybody_from_checking() {
        let log = Written::new(3, 1_000_000);
        let _held = Lock::take(log.dir.path()).unwrap();
        assert_eq!(log.report().lines, 3);
    }

    #[test]
    fn progress_comes_to_its_end() {
        let log = Written::new(100, 900);
        let mut seen = Vec::new();
        let _report = verify(log.dir.path(), &mut |done, total| seen.push((done, total)));
        assert!(seen.is_sorted());
        let (done, total) = *seen.last().unwrap();
        assert_eq!(done, total);
    }
}
