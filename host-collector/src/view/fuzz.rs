//! What holds whatever is in the session log.
//!
//! Property tests run it here, and `tests/fuzz` on what a fuzzer finds. No program has it.
#![expect(clippy::panic, reason = "what does not hold fails")]

use jiff::{Timestamp, tz::TimeZone};

use super::{list::as_table, show::describe, terminal::Terminal};
use crate::{
    log::{Entries, Entry},
    session::{MAX_LINE, Session, fit},
};

/// Whatever stands between two lines of the log hides neither; what is read of it is written back
/// the same; and nothing of it acts on the terminal that it is shown on.
///
/// # Panics
/// Where it does not hold.
pub fn session_lines(bytes: &[u8]) {
    let content = [BEFORE, bytes, b"\n", AFTER].concat();
    let mut read = Entries::of(&content);
    let entries: Vec<Entry> = read.by_ref().collect();
    let ids: Vec<_> = entries
        .iter()
        .map(|entry| entry.session.run_id.as_deref())
        .collect();
    assert_eq!(
        (ids.first(), ids.last()),
        (Some(&Some("after")), Some(&Some("before")))
    );
    let lines = bytes.split(|&b| b == b'\n');
    let lines = lines
        .filter(|line| !line.iter().all(u8::is_ascii_whitespace))
        .count();
    let skipped = usize::try_from(read.skipped()).unwrap_or(usize::MAX);
    assert_eq!(
        entries.len() - 2 + skipped,
        lines,
        "a line is neither read nor skipped"
    );
    for Entry { line, session } in &entries {
        assert!(!line.contains('\n'));
        kept(session);
    }
    shown(&entries);
}

/// Written again, a line says what it said.
fn kept(session: &Session) {
    let line = match fit(session, MAX_LINE) {
        Ok(line) => line,
        Err(error) => panic!("{session:?} cannot be written: {error}"),
    };
    assert_eq!(line.iter().position(|&b| b == b'\n'), Some(line.len() - 1));
    if line.len() < MAX_LINE / 2 {
        let again: Option<Session> = serde_json::from_slice(&line).ok();
        assert_eq!(again.as_ref(), Some(session));
    }
}

fn shown(entries: &[Entry]) {
    let plain = Terminal {
        width: Some(80),
        color: false,
    };
    let mut table = Vec::new();
    let written = as_table(entries, plain, &mut table);
    assert!(
        written.is_ok() && harmless(&table),
        "{:?}",
        String::from_utf8_lossy(&table)
    );
    for entry in entries {
        let mut text = String::new();
        let written = describe(
            &entry.session,
            Timestamp::UNIX_EPOCH,
            &TimeZone::UTC,
            &mut text,
        );
        assert!(written.is_ok() && harmless(text.as_bytes()), "{text:?}");
    }
}

/// Lines of text, without anything that a terminal obeys.
fn harmless(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| {
        let obeyed = |c: char| {
            (c.is_control() && c != '\n')
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        !text.contains(obeyed)
    })
}

const BEFORE: &[u8] = b"{\"run_id\":\"before\"}\n";
const AFTER: &[u8] = b"{\"run_id\":\"after\"}\n";

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{replay::replay, *};

    /// A line as a version of this crate might have written it, with text that was not escaped.
    fn line() -> impl Strategy<Value = String> {
        let text = || ".{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap());
        (text(), text(), text(), any::<u64>(), any::<i32>()).prop_map(|(time, image, host, count, code)| {
            format!(
                r#"{{"v":2,"time":{time},"run_id":{image},"image":{image},"command":[{host},{image}],"network":"allowlist","exit_code":{code},
                "egress_denied":{count},"egress_denied_hosts":[{{"host":{host},"port":443,"proto":"tcp","reason":{host},"count":{count},"first_ms":1,"last_ms":2}}],
                "egress_channel":{{"state":"gap","reason":{host},"gaps":[{{"kind":"outage","from_ms":1,"to_ms":null,"detail":{time}}}]}},
                "agent":{host},"evidence":{time},"env_names":[{host}],"ended":{time},"duration_ms":{count}}}"#
            )
            .replace("\n                ", "")
        })
    }

    proptest! {
        #[test]
        fn lines_with_any_text_are_read_and_shown_harmlessly(lines in proptest::collection::vec(line(), 1..4)) {
            for line in &lines {
                prop_assert!(serde_json::from_str::<Session>(line).is_ok(), "{}", line);
            }
            session_lines(lines.join("\n").as_bytes());
        }

        #[test]
        fn a_torn_or_damaged_line_hides_no_other(
            line in line(),
            cut in any::<prop::sample::Index>(),
            damage in (any::<prop::sample::Index>(), any::<u8>()),
        ) {
            let mut bytes = line.into_bytes();
            let place = damage.0.index(bytes.len());
            bytes[place] = damage.1;
            bytes.truncate(cut.index(bytes.len()));
            session_lines(&bytes);
        }

        #[test]
        fn any_bytes_hide_no_line(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            session_lines(&bytes);
        }
    }

    #[test]
    fn everything_that_fuzzers_have_found_holds() {
        replay("session_lines", session_lines);
    }
}
