//! `list`: past runs, newest first.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use jiff::Timestamp;
use report::Printable;

use super::{
    ViewError,
    ago::ago,
    going_on::{going_on, is_unfinished},
    log_dir, skipped_lines,
    table::{Cell, layout},
    terminal::{Terminal, Tone},
    unless_gone,
};
use crate::{
    cli::{ListArgs, Selection},
    environment::Environment,
    log::{Entries, Entry},
    run::{SHOWN_ID, doubt},
    session::Session,
};

/// Prints the newest runs.
///
/// # Errors
/// When there is no log to look for, or nobody to print to.
pub fn list(args: &ListArgs, environment: &Environment) -> Result<(), ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    let mut entries = Entries::open(&dir);
    let all = going_on(environment, &dir).chain(entries.by_ref());
    let newest = newest(all, &args.selection, args.limit);
    let terminal = Terminal::of_stdout(environment);
    let mut out = io::stdout().lock();
    unless_gone(if args.json {
        as_json(&newest, &mut out)
    } else {
        as_table(&newest, terminal, &mut out)
    })?;
    skipped_lines(entries.skipped(), &dir);
    Ok(())
}

/// The newest runs. Of a detached one the line of its end says all that the other does.
fn newest(entries: impl Iterator<Item = Entry>, selection: &Selection, limit: usize) -> Vec<Entry> {
    let mut seen = HashSet::new();
    let is_new = |entry: &Entry| match &entry.session.run_id {
        Some(run_id) => seen.insert(run_id.clone()),
        None => true,
    };
    entries
        .filter(is_new)
        .filter(|entry| selection.admits_session(&entry.session))
        .take(limit)
        .collect()
}

fn as_json(entries: &[Entry], out: &mut impl Write) -> io::Result<()> {
    for entry in entries {
        writeln!(out, "{}", entry.line)?;
    }
    out.flush()
}

pub(super) fn as_table(
    entries: &[Entry],
    terminal: Terminal,
    out: &mut impl Write,
) -> io::Result<()> {
    if entries.is_empty() {
        return writeln!(out, "no such runs");
    }
    let now = Timestamp::now();
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| row(&entry.session, now))
        .collect();
    let headings = [
        "RUN", "LAUNCHED", "EXIT", "NETWORK", "REFUSED", "AGENT", "IMAGE", "COMMAND",
    ];
    out.write_all(layout(headings, &rows, terminal).as_bytes())?;
    out.flush()
}

fn row(session: &Session, now: Timestamp) -> [Cell; 8] {
    let launch = &session.launch;
    let text = |text: &Option<String>| Cell::plain(text.as_deref().map_or("-".into(), shown));
    [
        Cell::plain(
            session
                .run_id
                .as_deref()
                .map_or("-".into(), |id| shown(id.get(..SHOWN_ID).unwrap_or(id))),
        ),
        Cell::plain(ago(&session.time, now)),
        exit(session),
        text(&launch.network),
        refused(session),
        text(&launch.agent),
        Cell::plain(shown(&launch.image)),
        Cell::plain(shown(&launch.command.join(" "))),
    ]
}

fn exit(session: &Session) -> Cell {
    match session.exit_code {
        Some(0) => Cell::plain("0"),
        Some(code) => Cell::toned(code.to_string(), Tone::Bad),
        None if is_unfinished(session) => Cell::toned("unfinished".to_owned(), Tone::Notable),
        None => Cell::plain("-"),
    }
}

/// `3`, `≥3` for a lower bound, `4?` for what a guest could have forged, `?` where nobody reported,
/// `-` where nobody looked.
fn refused(session: &Session) -> Cell {
    let network = &session.network;
    let in_doubt = network
        .egress_channel
        .as_ref()
        .and_then(|channel| doubt(channel.state))
        .is_some();
    let numbers = (
        network.egress_denied,
        network.egress_denied_at_least,
        network.egress_denied_reported,
    );
    let text = match numbers {
        (Some(count), ..) if in_doubt => format!("{count} (gap)"),
        (Some(count), ..) => count.to_string(),
        (None, Some(count), _) => format!("≥{count}"),
        (None, None, Some(count)) => format!("{count}?"),
        (None, None, None) => if in_doubt { "?" } else { "-" }.to_owned(),
    };
    let tone = if text == "0" || text == "-" {
        Tone::Plain
    } else {
        Tone::Notable
    };
    Cell::toned(text, tone)
}

/// The log holds what guests and users named: nothing of it may act on a terminal.
fn shown(text: &str) -> String {
    Printable::new(text).to_string()
}

#[cfg(test)]
mod tests {
    use report::ChannelState;

    use super::*;
    use crate::session::{ChannelRecord, Launched, Network};

    fn entry(session: Session) -> Entry {
        Entry {
            line: serde_json::to_string(&session).unwrap(),
            session,
        }
    }

    fn printed(entries: &[Entry]) -> String {
        let mut out = Vec::new();
        as_table(entries, Terminal::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_run_is_one_row_and_cannot_be_two() {
        let launch = Launched {
            image: "img".into(),
            command: vec!["a\nb".into(), "\u{1b}[2J".into()],
            ..Launched::default()
        };
        let session = Session {
            run_id: Some("0123456789abcdef".into()),
            exit_code: Some(3),
            launch,
            ..Session::default()
        };
        let text = printed(&[entry(session)]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains("0123456789ab  ?         3") && text.contains("a\\u{a}b \\u{1b}[2J"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_log_says_so() {
        assert_eq!(printed(&[]), "no such runs\n");
    }

    #[test]
    fn a_detached_run_is_one_row_that_of_its_end() {
        let line = |run: &str, finished| {
            entry(Session {
                run_id: Some(run.into()),
                detached: true,
                finished,
                ..Session::default()
            })
        };
        // Newest first, as the log is read.
        let entries = [line("b", None), line("a", Some(true)), line("a", None)];
        let found = newest(entries.into_iter(), &Selection::default(), 9);
        let found: Vec<_> = found
            .iter()
            .map(|entry| {
                (
                    entry.session.run_id.as_deref().unwrap(),
                    entry.session.finished,
                )
            })
            .collect();
        assert_eq!(found, [("b", None), ("a", Some(true))]);
    }

    #[test]
    fn the_kind_of_each_number_shows() {
        let of = |state: Option<ChannelState>, network: Network| {
            let record = |state| ChannelRecord {
                state,
                transport: None,
                gaps: Vec::new(),
                reason: None,
                resumed: 0,
            };
            let network = Network {
                egress_channel: state.map(record),
                ..network
            };
            refused(&Session {
                network,
                ..Session::default()
            })
            .clone()
        };
        let denied = Network {
            egress_denied: Some(3),
            ..Network::default()
        };
        let bound = Network {
            egress_denied_at_least: Some(3),
            ..Network::default()
        };
        let forgeable = Network {
            egress_denied_reported: Some(4),
            ..Network::default()
        };
        for (cell, text) in [
            (of(Some(ChannelState::Complete), denied.clone()), "3"),
            (of(Some(ChannelState::Gap), denied), "3 (gap)"),
            (of(Some(ChannelState::Interrupted), bound), "≥3"),
            (
                of(Some(ChannelState::NeverConnected), Network::default()),
                "?",
            ),
            (
                of(Some(ChannelState::NotApplicable), Network::default()),
                "-",
            ),
            (of(None, forgeable), "4?"),
        ] {
            assert_eq!(
                cell,
                Cell::toned(
                    text,
                    if text == "-" {
                        Tone::Plain
                    } else {
                        Tone::Notable
                    }
                )
            );
        }
    }

    #[test]
    fn json_is_the_lines_as_they_were_recorded() {
        let line = r#"{"z":1,"a":[1.50]}"#.to_owned();
        let entries = [Entry {
            line: line.clone(),
            session: Session::default(),
        }];
        let mut out = Vec::new();
        as_json(&entries, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{line}\n"));
    }
}
