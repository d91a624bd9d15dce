//! What the host has to give: disks, directories, a clock.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::{
        fs::OpenOptionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::statvfs;

use super::Check;
use crate::{
    log::{Entries, Limits, Log},
    run_dir::RunDir,
    run_id::RunId,
};

/// Writes a file beside the log as a line is written, down to the disk.
pub(super) fn log_directory(dir: Option<&Path>) -> Check {
    const NAME: &str = "log directory";
    const ELSEWHERE: &str = "set SANDBOX_AUDIT_DIR to a directory that you can write to";
    let Some(dir) = dir else {
        return Check::fail(NAME, "nobody says where it is: there is no HOME", ELSEWHERE);
    };
    let shown = dir.display();
    let took = match Log::open(dir, Limits::default()) {
        Ok(_) => write_down(dir),
        Err(error) => return Check::fail(NAME, &error.to_string(), ELSEWHERE),
    };
    let took = match took {
        Ok(took) => took,
        Err(error) => return Check::fail(NAME, &format!("write to {shown}: {error}"), ELSEWHERE),
    };
    let detail = format!(
        "{shown}: a line is on the disk within {} ms",
        took.as_millis()
    );
    if took > SLOW {
        let remedy = "keep the log on a faster disk: each run waits that long at its end";
        return Check::warn(NAME, &detail, remedy);
    }
    match free(dir) {
        Some(free) if free < ROOM => {
            let detail = format!("{shown}: {} MiB are free", free / (1024 * 1024));
            Check::warn(
                NAME,
                &detail,
                "make room: the log and its details take up to 560 MiB",
            )
        }
        _ => Check::ok(NAME, &detail),
    }
}

fn write_down(dir: &Path) -> io::Result<Duration> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let started = Instant::now();
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| {
            file.write_all(&[b' '; 4096])?;
            file.sync_data()
        });
    let took = started.elapsed();
    let removed = fs::remove_file(&path);
    written.and(removed).map(|()| took)
}

fn free(dir: &Path) -> Option<u64> {
    let found = statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Makes the directory of a run with a socket in it, and connects to that.
pub(super) fn run_directory(runtime_dir: &Path) -> Check {
    const NAME: &str = "run directory";
    const ELSEWHERE: &str =
        "set XDG_RUNTIME_DIR to a directory of yours with a short name, on a local disk";
    let run_id = match RunId::random() {
        Ok(run_id) => run_id,
        Err(error) => return Check::fail(NAME, &error.to_string(), "the kernel has no randomness"),
    };
    let dir = match RunDir::create(runtime_dir, &run_id) {
        Ok(dir) => dir,
        Err(error) => return Check::fail(NAME, &error.to_string(), ELSEWHERE),
    };
    match reachable(dir.path()) {
        Ok(()) => Check::ok(
            NAME,
            &format!("{}: holds a socket that answers", runtime_dir.display()),
        ),
        Err(error) => {
            let detail = format!("a socket in {}: {error}", runtime_dir.display());
            Check::fail(NAME, &detail, ELSEWHERE)
        }
    }
}

/// As far below as the channel of a run is.
fn reachable(dir: &Path) -> io::Result<()> {
    let channel = dir.join("channel");
    fs::create_dir(&channel)?;
    let path = channel.join("report.sock");
    let listener = UnixListener::bind(&path)?;
    UnixStream::connect(&path)?.write_all(b"x")?;
    io::Read::read_exact(&mut listener.accept()?.0, &mut [0])
}

/// Compares it with what was written earlier: this program, and the newest line of the log.
pub(super) fn clock(audit_dir: Option<&Path>) -> Check {
    let now = Timestamp::now();
    let newest = audit_dir.and_then(|dir| Entries::open(dir).next());
    let newest = newest.and_then(|entry| {
        let session = entry.session;
        session.ended.unwrap_or(session.time).parse().ok()
    });
    let built = std::env::current_exe()
        .and_then(|program| File::open(program)?.metadata()?.modified())
        .ok()
        .and_then(|time| Timestamp::try_from(time).ok());
    judge(now, built, newest)
}

fn judge(now: Timestamp, built: Option<Timestamp>, newest: Option<Timestamp>) -> Check {
    const NAME: &str = "clock";
    let earlier = |than: Timestamp| now.duration_since(than) < -SLACK;
    if built.is_some_and(earlier) {
        let remedy = "set it: times in the log would be wrong, and TLS fails inside";
        return Check::fail(
            NAME,
            &format!("{now:.0} is before this program was made"),
            remedy,
        );
    }
    match newest.filter(|newest| earlier(*newest)) {
        Some(newest) => Check::warn(
            NAME,
            &format!("{now:.0} is before {newest:.0}, when the last run ended"),
            "see which of the two is wrong: `--since` goes by the times of the log",
        ),
        None => Check::ok(NAME, &format!("{now:.0}")),
    }
}

const SLOW: Duration = Duration::from_millis(500);
const ROOM: u64 = 100 * 1024 * 1024;
const SLACK: SignedDuration = SignedDuration::from_mins(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_directory_is_tried_by_writing_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let audit = dir.path().join("a/b");
        let check = log_directory(Some(&audit));
        assert_ne!(check.status, Status::Fail, "{check:?}");
        assert_eq!(fs::read_dir(&audit).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_is_named_with_the_remedy() {
        let check = log_directory(Some(Path::new("/dev/null/audit")));
        assert_eq!(check.status, Status::Fail);
        assert!(
            check.detail.as_str().contains("/dev/null/audit"),
            "{check:?}"
        );
        assert!(check.remedy.unwrap().contains("SANDBOX_AUDIT_DIR"));
        assert_eq!(log_directory(None).status, Status::Fail);
    }

    #[test]
    fn a_run_directory_too_deep_for_a_socket_is_found_before_a_run_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(run_directory(dir.path()).status, Status::Ok);
        let deep = dir.path().join("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        let check = run_directory(&deep);
        assert_eq!(check.status, Status::Fail, "{check:?}");
        assert!(check.remedy.unwrap().contains("short name"));
        let nothing_left = fs::read_dir(deep.join("host-collector/runs"))
            .unwrap()
            .count();
        assert_eq!(nothing_left, 0);
    }

    #[test]
    fn a_clock_is_wrong_if_something_is_from_the_future() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = time("2026-01-31T12:00:00Z");
        let (before, soon, after) = (
            "2026-01-01T00:00:00Z",
            "2026-01-31T12:04:00Z",
            "2026-02-01T00:00:00Z",
        );
        for (built, newest, status) in [
            (None, None, Status::Ok),
            (Some(before), Some(soon), Status::Ok),
            (Some(before), Some(after), Status::Warn),
            (Some(after), Some(before), Status::Fail),
        ] {
            let check = judge(now, built.map(time), newest.map(time));
            assert_eq!(check.status, status, "{check:?}");
        }
    }
}
