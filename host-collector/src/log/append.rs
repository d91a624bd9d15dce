//! Appends a line: under a lock, in one write, on the disk when it returns.

use std::{
    fs::{DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{fdatasync, fsync};
use sha2::{Digest as _, Sha256};

use super::{
    LogError, generations,
    lines::Digest,
    mark::{Lock, Written},
    rotate::{self, forgotten, rotate},
    tail::Tail,
};
use crate::{
    run_id::hex,
    session::{MAX_LINE, Session, fit_into},
};

/// A log in a directory. Any number of processes may append to it at once.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    limits: Limits,
}

/// How large the log may become.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a file before it is rotated.
    pub file: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file: 8 * 1024 * 1024,
        }
    }
}

/// Not all lines of a call are in the log.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {appended} of the lines before that are in the log")]
pub struct NotAppended {
    /// How many are, from the first.
    pub appended: usize,
    /// Why the next is not.
    #[source]
    pub error: LogError,
}

impl Log {
    /// Opens the log, and makes its directory if there is none.
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, LogError> {
        let make = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        make.map_err(LogError::io("make the log directory", dir))?;
        close_to_others(dir, 0o700).map_err(LogError::io("close to others", dir))?;
        Ok(Self {
            dir: dir.to_owned(),
            limits,
        })
    }

    /// Appends the line of a run, with the digest of the line before it.
    ///
    /// A torn tail is repaired first: the fragment gets the end that it lacks, so that it spoils
    /// nothing but itself. If this one is torn, the next append repairs it.
    pub fn append(&self, session: &Session) -> Result<(), LogError> {
        self.append_group(&mut [session.clone()])
    }

    /// Appends the lines of many runs, in groups of up to 64 that share a lock, a write and a flush:
    /// what a disk takes for one line it takes for a group. `prev` and `dropped_runs` are filled in.
    ///
    /// # Errors
    /// A group is in the log whole or not at all; the error says how many lines are.
    pub fn append_all(&self, sessions: &mut [Session]) -> Result<(), NotAppended> {
        let mut appended = 0;
        for group in sessions.chunks_mut(GROUP) {
            self.append_group(group)
                .map_err(|error| NotAppended { appended, error })?;
            appended += group.len();
        }
        Ok(())
    }

    fn append_group(&self, group: &mut [Session]) -> Result<(), LogError> {
        let lock = Lock::take(&self.dir)?;
        let path = generations::file(&self.dir, 0);
        let io = |verb| LogError::io(verb, &path);

        let mut file = open_private(&path).map_err(io("open"))?;
        let mut tail = Tail::of(&file).map_err(io("read the end of"))?;
        let before = self.digest_before(&tail);
        let mut lines = Lines::chain(group, before)?;
        let size = file.metadata().map_err(io("measure"))?.len();
        if size > 0 && size.saturating_add(lines.bytes.len() as u64) > self.limits.file {
            if tail.torn {
                write_whole(&mut file, b"\n").map_err(io("repair"))?;
            }
            rotate(&self.dir)?;
            file = open_private(&path).map_err(io("open"))?;
            tail = Tail::default();
        }
        let counted = self.count_the_dropped(group, &tail);
        if counted.is_some() {
            lines = Lines::chain(group, before)?;
        }
        if tail.torn {
            lines.bytes.insert(0, b'\n');
        }
        write_whole(&mut file, &lines.bytes).map_err(io("append to"))?;
        let Some(last) = lines.last else {
            return Ok(());
        };
        let written = Written::of(&file, last).map_err(io("measure"))?;
        // Those who wait for the lock write meanwhile, and share one flush: a crowd of collectors
        // takes the time of a few, and nobody runs out of patience.
        drop(lock);
        let flushed = fdatasync(&file).map_err(io::Error::from);
        flushed.map_err(io("flush"))?;
        self.note(&written, counted);
        Ok(())
    }

    /// The first line of a file says how many runs the log has forgotten, if it has any.
    fn count_the_dropped(&self, group: &mut [Session], tail: &Tail) -> Option<u64> {
        let first = group.first_mut().filter(|_| tail.last.is_none())?;
        first.dropped_runs = Some(forgotten(&self.dir)).filter(|&count| count > 0);
        first.dropped_runs
    }

    /// Marks the line that is on the disk now, and removes what rotation dropped if it is the line
    /// that counts that. The line is safe either way: without the lock this is left to the next.
    fn note(&self, written: &Written, forgotten: Option<u64>) {
        let Some(lock) = Lock::take_soon(&self.dir) else {
            return;
        };
        let current = generations::file(&self.dir, 0).metadata().ok();
        lock.mark(written, current.map(|meta| meta.ino()));
        let Some(forgotten) = forgotten else {
            return;
        };
        // The new file itself must be there to stay.
        let synced = File::open(&self.dir).and_then(|dir| Ok(fsync(&dir)?));
        if synced.is_ok() {
            rotate::settle(&self.dir, forgotten);
        }
    }

    /// The digest of the last line, which is in the generation before if this one is new.
    fn digest_before(&self, tail: &Tail) -> Option<Digest> {
        let before = || Tail::of(&File::open(generations::file(&self.dir, 1)).ok()?).ok();
        tail.last.or_else(|| before()?.last)
    }
}

/// A group of lines, each with the digest of the one before.
struct Lines {
    bytes: Vec<u8>,
    /// The digest of the last of them.
    last: Option<Digest>,
}

impl Lines {
    fn chain(group: &mut [Session], before: Option<Digest>) -> Result<Self, LogError> {
        let (mut bytes, mut last) = (Vec::with_capacity(USUAL * group.len()), before);
        for session in group {
            session.prev = last.as_ref().map(|last| hex(last));
            let start = bytes.len();
            fit_into(&mut bytes, session, MAX_LINE)?;
            let line = bytes.get(start..).unwrap_or_default();
            last = Some(Sha256::digest(line.trim_ascii_end()).into());
        }
        Ok(Self { bytes, last })
    }
}

/// One `write(2)`, since a second could come between the lines of others that hold no lock. What did
/// not fit is taken back: the disk is full, and half a line helps nobody.
fn write_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let written = file.write(bytes)?;
    if written == bytes.len() {
        return Ok(());
    }
    let size = file.metadata()?.len();
    // If that cannot be done either, the next append repairs the fragment.
    let _ = file.set_len(size.saturating_sub(written as u64));
    Err(io::ErrorKind::StorageFull.into())
}

fn open_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    close_to_others(path, 0o600)?;
    Ok(file)
}

/// The log names projects, commands and credentials.
pub(super) fn close_to_others(path: &Path, mode: u32) -> io::Result<()> {
    let found = path.metadata()?.permissions().mode() & 0o777;
    if found & mode == found {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// As many lines as the longest of them still fit into a file with.
const GROUP: usize = 64;
/// Bytes that most lines do with.
const USUAL: usize = 2048;

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::log::{Entries, mark::mark, verify};

    fn session(run_id: usize) -> Session {
        Session {
            run_id: Some(run_id.to_string()),
            ..Session::default()
        }
    }

    fn lines(dir: &Path) -> Vec<String> {
        let text = fs::read_to_string(generations::file(dir, 0)).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn prev(line: &str) -> Option<String> {
        serde_json::from_str::<Session>(line).unwrap().prev
    }

    #[test]
    fn each_line_carries_the_digest_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        for n in 0..3 {
            log.append(&session(n)).unwrap();
        }
        let lines = lines(dir.path());
        assert_eq!(prev(&lines[0]), None);
        for pair in lines.windows(2) {
            assert_eq!(
                prev(&pair[1]),
                Some(hex(&Sha256::digest(pair[0].as_bytes())))
            );
        }
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_one_line_and_no_other() {
        let whole = tempfile::tempdir().unwrap();
        let log = Log::open(whole.path(), Limits::default()).unwrap();
        log.append(&session(1)).unwrap();
        let first = fs::read(generations::file(whole.path(), 0)).unwrap();
        log.append(&session(2)).unwrap();
        let both = fs::read(generations::file(whole.path(), 0)).unwrap();
        for torn_at in first.len()..=both.len() {
            let dir = tempfile::tempdir().unwrap();
            fs::write(generations::file(dir.path(), 0), &both[..torn_at]).unwrap();
            Log::open(dir.path(), Limits::default())
                .unwrap()
                .append(&session(3))
                .unwrap();
            let mut entries = Entries::open(dir.path());
            let runs: Vec<_> = entries.by_ref().filter_map(|e| e.session.run_id).collect();
            // A line that lacks nothing but its end is whole again.
            let whole = torn_at >= both.len() - 1;
            let torn = torn_at > first.len() && !whole;
            assert_eq!(
                runs,
                if whole {
                    vec!["3", "2", "1"]
                } else {
                    vec!["3", "1"]
                },
                "{torn_at}"
            );
            assert_eq!(entries.skipped(), u64::from(torn), "{torn_at}");
        }
    }

    #[test]
    fn the_chain_goes_through_a_fragment_and_through_rotation() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(generations::file(dir.path(), 0), "{\"run_id\":\"torn").unwrap();
        let log = Log::open(dir.path(), Limits { file: 400 }).unwrap();
        for n in 0..20 {
            log.append(&session(n)).unwrap();
        }
        let mut all = Vec::new();
        for file in generations::newest_first(dir.path())
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            all.extend(
                fs::read_to_string(file)
                    .unwrap_or_default()
                    .lines()
                    .map(ToOwned::to_owned),
            );
        }
        for pair in all.windows(2) {
            assert_eq!(
                prev(&pair[1]),
                Some(hex(&Sha256::digest(pair[0].as_bytes()))),
                "{pair:?}"
            );
        }
        assert!(all.len() > 8, "{}", all.len());
    }

    #[test]
    fn the_chain_goes_on_where_a_crash_left_no_current_file() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        log.append(&session(1)).unwrap();
        let first = lines(dir.path()).remove(0);
        fs::rename(
            generations::file(dir.path(), 0),
            generations::file(dir.path(), 1),
        )
        .unwrap();
        log.append(&session(2)).unwrap();
        assert_eq!(
            prev(&lines(dir.path())[0]),
            Some(hex(&Sha256::digest(first.as_bytes())))
        );
    }

    #[test]
    fn what_rotation_dropped_is_counted_to_the_last_run() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits { file: 600 }).unwrap();
        for n in 0..100 {
            log.append(&session(n)).unwrap();
        }
        let kept = Entries::open(dir.path()).count() as u64;
        let first: Session = serde_json::from_str(lines(dir.path()).first().unwrap()).unwrap();
        assert_eq!(kept + first.dropped_runs.unwrap(), 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn whatever_the_lines_and_the_limit_every_run_is_kept_or_counted(
            lengths in proptest::collection::vec(0usize..600, 1..40),
            file in 1u64..3000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), Limits { file }).unwrap();
            for (n, length) in lengths.iter().enumerate() {
                let mut session = session(n);
                session.launch.image = "i".repeat(*length);
                log.append(&session).unwrap();
            }
            let mut entries = Entries::open(dir.path());
            let kept: Vec<_> = entries.by_ref().filter_map(|entry| entry.session.run_id).collect();
            let first: Session = serde_json::from_str(lines(dir.path()).first().unwrap()).unwrap();
            let dropped = usize::try_from(first.dropped_runs.unwrap_or(0)).unwrap();
            let newest: Vec<_> = (dropped..lengths.len()).rev().map(|n| n.to_string()).collect();
            prop_assert_eq!((kept, entries.skipped()), (newest, 0));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn lines_written_in_groups_are_one_chain_and_every_run_is_kept_or_counted(
            groups in proptest::collection::vec(0usize..150, 1..5),
            file in 1u64..60_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(dir.path(), Limits { file }).unwrap();
            let mut written = 0;
            for group in groups {
                let mut sessions: Vec<_> = (written..written + group).map(session).collect();
                log.append_all(&mut sessions).unwrap();
                written += group;
            }
            let kept: Vec<_> = Entries::open(dir.path()).filter_map(|entry| entry.session.run_id).collect();
            let dropped = usize::try_from(forgotten(dir.path())).unwrap();
            let newest: Vec<_> = (dropped..written).rev().map(|n| n.to_string()).collect();
            prop_assert_eq!(kept, newest);
            let report = verify(dir.path(), &mut |_, _| {});
            prop_assert_eq!(report.findings.shown(), &[][..]);
        }
    }

    #[test]
    fn a_group_repairs_a_torn_tail_and_tells_the_caller_what_it_wrote() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(generations::file(dir.path(), 0), "{\"run_id\":\"torn").unwrap();
        let mut sessions = [session(1), session(2)];
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        log.append_all(&mut sessions).unwrap();
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 3, "{lines:?}");
        for (line, session) in lines.iter().skip(1).zip(&sessions) {
            assert_eq!(prev(line), session.prev);
        }
    }

    #[test]
    fn what_is_not_in_the_log_is_told_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        let mut sessions: Vec<_> = (0..=GROUP).map(session).collect();
        fs::create_dir(generations::file(dir.path(), 0)).unwrap();
        let error = log.append_all(&mut sessions).unwrap_err();
        assert_eq!(error.appended, 0);
        assert!(error.to_string().contains("sessions.jsonl"), "{error}");
    }

    #[test]
    fn files_that_others_could_read_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = dir.path().join("audit");
        fs::create_dir(&log_dir).unwrap();
        fs::write(generations::file(&log_dir, 0), "").unwrap();
        for (path, mode) in [(&log_dir, 0o755), (&generations::file(&log_dir, 0), 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        Log::open(&log_dir, Limits::default())
            .unwrap()
            .append(&session(1))
            .unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&log_dir), 0o700);
        assert_eq!(mode(&generations::file(&log_dir, 0)), 0o600);
        assert_eq!(mode(&log_dir.join("sessions.lock")), 0o600);
    }

    #[test]
    fn a_full_disk_is_an_error_of_its_own() {
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(
            write_whole(&mut full, b"x").unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }

    /// A log of six full generations, the state before a rotation that drops one run of each.
    fn full_log(limits: Limits) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), limits).unwrap();
        for n in 0..6 {
            log.append(&session(n)).unwrap();
        }
        dir
    }

    #[test]
    fn a_crash_anywhere_in_a_rotation_costs_no_run_its_count() {
        let limits = Limits { file: 1 };
        for steps in 0..=7 {
            let dir = full_log(limits);
            let file = |n| generations::file(dir.path(), n);
            // As far as rotation came: the oldest set aside, then the others moved one by one.
            let moves = std::iter::once((file(5), generations::dropping(dir.path(), 1)))
                .chain((0..5).rev().map(|n| (file(n), file(n + 1))));
            for (from, to) in moves.take(steps) {
                fs::rename(from, to).unwrap();
            }
            let log = Log::open(dir.path(), limits).unwrap();
            log.append(&session(6)).unwrap();
            let kept = Entries::open(dir.path()).count() as u64;
            assert_eq!(kept + forgotten(dir.path()), 7, "after {steps} steps");
            assert_eq!(
                generations::half_dropped(dir.path()),
                [],
                "after {steps} steps"
            );
        }
    }

    #[test]
    fn a_crash_before_what_was_dropped_is_removed_counts_it_once() {
        let dir = full_log(Limits { file: 1 });
        let log = Log::open(dir.path(), Limits { file: 1 }).unwrap();
        log.append(&session(6)).unwrap();
        fs::write(generations::dropping(dir.path(), 1), "{\"run_id\":\"0\"}\n").unwrap();
        log.append(&session(7)).unwrap();
        assert_eq!(forgotten(dir.path()), 2);
        assert_eq!(Entries::open(dir.path()).count(), 6);
    }

    #[test]
    fn the_mark_is_the_digest_of_the_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), Limits { file: 400 }).unwrap();
        for n in 0..9 {
            log.append(&session(n)).unwrap();
            let last = lines(dir.path()).pop().unwrap();
            assert_eq!(
                mark(dir.path()),
                Some(hex(&Sha256::digest(last.as_bytes())))
            );
        }
    }

    #[test]
    fn a_line_of_any_length_that_somebody_else_left_is_part_of_the_chain() {
        let dir = tempfile::tempdir().unwrap();
        let gigantic = vec![b'x'; 20_000_000];
        fs::write(generations::file(dir.path(), 0), &gigantic).unwrap();
        Log::open(dir.path(), Limits::default())
            .unwrap()
            .append(&session(1))
            .unwrap();
        assert_eq!(
            prev(&lines(dir.path())[0]),
            Some(hex(&Sha256::digest(&gigantic)))
        );
    }
}
