//! `tail`: the newest runs, and those that come.

use std::{
    io::{self, Write},
    path::Path,
    time::Duration,
};

use jiff::tz::TimeZone;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    stdio::stdout,
};

use super::{ViewError, ago::local, log_dir, skipped_lines, unless_gone};
use crate::{
    cli::TailArgs,
    environment::Environment,
    log::{Entries, Entry, Follower, News},
    run::{say, summary},
};

/// Prints the newest runs, oldest first, and with `--follow` every one that comes.
///
/// # Errors
/// When there is no log to look for, or nobody to print to.
pub fn tail(args: &TailArgs, environment: &Environment) -> Result<(), ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    // Before the lines that are there are read, so that none comes between.
    let mut follower = args.follow.then(|| Follower::from_end(&dir));
    let printed = newest(args, &dir).and_then(|()| {
        while let Some(follower) = &mut follower {
            news(args, &dir, follower.look())?;
            if reader_is_gone()? {
                break;
            }
        }
        Ok(())
    });
    unless_gone(printed)
}

fn newest(args: &TailArgs, dir: &Path) -> io::Result<()> {
    let mut entries = Entries::open(dir);
    let mut newest: Vec<Entry> = entries
        .by_ref()
        .filter(|entry| args.selection.admits_session(&entry.session))
        .take(args.limit)
        .collect();
    newest.reverse();
    print(args, &newest)?;
    skipped_lines(entries.skipped(), dir);
    Ok(())
}

fn news(args: &TailArgs, dir: &Path, mut news: News) -> io::Result<()> {
    if news.missed {
        say("the log was rotated out of sight or cut: runs may be missing here");
    }
    news.entries
        .retain(|entry| args.selection.admits_session(&entry.session));
    print(args, &news.entries)?;
    skipped_lines(news.skipped, dir);
    Ok(())
}

fn print(args: &TailArgs, entries: &[Entry]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for entry in entries {
        if args.json {
            writeln!(out, "{}", entry.line)?;
        } else {
            writeln!(out, "{}", line(entry, &TimeZone::system()))?;
        }
    }
    out.flush()
}

/// One line, whatever a guest has named.
fn line(entry: &Entry, zone: &TimeZone) -> String {
    let session = &entry.session;
    let time = session.ended.as_deref().unwrap_or(&session.time);
    format!("{}  {}", local(time, zone), summary(session))
}

/// Waits until it is time to look again, or until nobody reads what is printed.
fn reader_is_gone() -> io::Result<bool> {
    let stdout = stdout();
    // Nothing is asked for: an error or a hang-up is told all the same.
    let mut output = [PollFd::from_borrowed_fd(stdout, PollFlags::empty())];
    let pause = Timespec::try_from(PAUSE).ok();
    match poll(&mut output, pause.as_ref()) {
        Ok(found) => Ok(found > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Soon enough for a person, and a look costs six `stat(2)`. Asking the kernel instead would not work
/// on every file system that a home may be on.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;

    fn entry(line: &str) -> Entry {
        Entry {
            line: line.to_owned(),
            session: serde_json::from_str::<Session>(line).unwrap(),
        }
    }

    #[test]
    fn a_run_is_one_line_with_the_time_of_its_end() {
        for (recorded, expected) in [
            (
                r#"{"time":"2026-01-31T12:00:00Z","ended":"2026-01-31T12:30:00Z","run_id":"0123456789abcdef","finished":true,"exit_code":3,"egress_denied":0}"#,
                "2026-01-31 12:30:00 UTC  run 0123456789ab exited 3; refused nothing",
            ),
            (
                r#"{"time":"2026-01-31T12:00:00Z","run_id":"ab","detached":true,"exit_code":null}"#,
                "2026-01-31 12:00:00 UTC  run ab was launched",
            ),
        ] {
            assert_eq!(line(&entry(recorded), &TimeZone::UTC), expected);
        }
    }

    #[test]
    fn nothing_that_a_guest_named_makes_a_second_line() {
        let recorded = r#"{"time":"\u001b[2J\nx","run_id":"\n","exit_code":0,"egress_denied":1,
            "egress_denied_hosts":[{"host":"a\n\u001b","proto":"tcp","reason":"\n","count":1,"first_ms":0,"last_ms":0}]}"#;
        let line = line(&entry(recorded), &TimeZone::UTC);
        assert!(!line.contains(char::is_control), "{line}");
    }
}
