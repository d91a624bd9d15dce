//! `denials`: what was refused, counted over many runs.

mod tally;

use std::io::{self, Write};

use jiff::Timestamp;
use report::Printable;
use serde::Serialize;

use super::{
    ViewError,
    ago::ago,
    log_dir, skipped_lines,
    table::{Cell, layout},
    terminal::{Terminal, Tone},
    unless_gone,
};
use crate::{cli::DenialsArgs, environment::Environment, log::glances};
use tally::{Question, Row, Tally};

/// Prints the counts.
///
/// # Errors
/// When there is no log to look for, or nobody to print to.
pub fn denials(args: &DenialsArgs, environment: &Environment) -> Result<(), ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    let mut tally = Tally::new(Question {
        by: args.by,
        host: args.host.clone(),
        reason: args.reason.clone(),
        selection: args.selection.clone(),
    });
    let skipped = glances(&dir, |glance| tally.add(glance));
    let answer = Answer::of(tally, args);
    let terminal = Terminal::of_stdout(environment);
    let mut out = io::stdout().lock();
    unless_gone(if args.json {
        as_json(&answer, &mut out)
    } else {
        as_table(&answer, terminal, Timestamp::now(), &mut out)
    })?;
    skipped_lines(skipped, &dir);
    Ok(())
}

/// What is printed; as JSON its fields are stable.
#[derive(Debug, Serialize)]
struct Answer {
    by: &'static str,
    since: Option<String>,
    /// Runs whose refusals are counted here.
    runs: u64,
    /// Refused attempts in these runs.
    denied: u64,
    /// Whether there may have been more.
    at_least: bool,
    /// Attempts whose host did not fit its run's line.
    not_attributed: u64,
    /// Runs under an allowlist of which nobody reported.
    unreported_runs: u64,
    /// Runs of the log's first writer, whose numbers a guest could have forged; not counted.
    forgeable_runs: u64,
    /// How many rows there are, also those beyond the limit.
    distinct: u64,
    rows: Vec<Row>,
}

impl Answer {
    fn of(tally: Tally, args: &DenialsArgs) -> Self {
        let mut answer = Self {
            by: args.by.as_str(),
            since: args.selection.since.map(|since| since.to_string()),
            runs: tally.runs,
            denied: tally.denied,
            at_least: tally.at_least,
            not_attributed: tally.not_attributed,
            unreported_runs: tally.unreported_runs,
            forgeable_runs: tally.forgeable_runs,
            distinct: 0,
            rows: tally.rows(),
        };
        answer.distinct = answer.rows.len() as u64;
        answer.rows.truncate(args.limit);
        answer
    }
}

fn as_json(answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    writeln!(out)?;
    out.flush()
}

fn as_table(
    answer: &Answer,
    terminal: Terminal,
    now: Timestamp,
    out: &mut impl Write,
) -> io::Result<()> {
    if !answer.rows.is_empty() {
        let rows: Vec<_> = answer.rows.iter().map(|row| cells(row, now)).collect();
        let by = answer.by.to_uppercase();
        let headings = ["REFUSED", "RUNS", "LAST", by.as_str(), "REASONS"];
        out.write_all(layout(headings, &rows, terminal).as_bytes())?;
    }
    for line in remarks(answer) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn cells(row: &Row, now: Timestamp) -> [Cell; 5] {
    let reasons = row.reasons.iter();
    let reasons: Vec<String> = reasons
        .map(|(reason, count)| format!("{} ×{count}", Printable::new(reason)))
        .collect();
    let bound = if row.at_least { "≥" } else { "" };
    let key = row.key.as_deref().map(Printable::new);
    [
        Cell::toned(format!("{bound}{}", row.count), Tone::Notable),
        Cell::plain(row.runs.to_string()),
        Cell::plain(ago(&row.last, now)),
        Cell::plain(key.map_or("-".to_owned(), |key| key.to_string())),
        Cell::plain(reasons.join(", ")),
    ]
}

/// What the rows do not say.
fn remarks(answer: &Answer) -> Vec<String> {
    let runs = |count: u64| if count == 1 { "run" } else { "runs" };
    let bound = if answer.at_least { "at least " } else { "" };
    let attempts = if answer.denied == 1 {
        "attempt"
    } else {
        "attempts"
    };
    let mut remarks = vec![match (answer.runs, answer.denied) {
        (0, _) => "no run with an account of what was refused".to_owned(),
        (count, 0) if !answer.at_least => format!("nothing was refused in {count} {}", runs(count)),
        (count, denied) => format!(
            "{bound}{denied} refused {attempts} in {count} {}",
            runs(count)
        ),
    }];
    let shown = answer.rows.len() as u64;
    if shown < answer.distinct {
        remarks.push(format!(
            "{shown} of {} rows are shown; see --limit",
            answer.distinct
        ));
    }
    if answer.not_attributed > 0 {
        let count = answer.not_attributed;
        remarks.push(format!(
            "{count} of them were to targets that did not fit their runs' lines"
        ));
    }
    if answer.unreported_runs > 0 {
        let count = answer.unreported_runs;
        let runs = runs(count);
        remarks.push(format!(
            "{count} {runs} under an allowlist left no account and are not counted"
        ));
    }
    if answer.forgeable_runs > 0 {
        let count = answer.forgeable_runs;
        let runs = runs(count);
        remarks.push(format!(
            "{count} {runs} with numbers that a guest could forge are not counted"
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{AuditArgs, By, Selection};

    fn args(by: By, limit: usize) -> DenialsArgs {
        DenialsArgs {
            by,
            host: None,
            reason: None,
            limit,
            selection: Selection::default(),
            json: false,
            audit: AuditArgs { audit_dir: None },
        }
    }

    fn answer(lines: &[&str], limit: usize) -> Answer {
        let mut tally = Tally::new(Question::by(By::Host));
        for line in lines {
            tally.add(&serde_json::from_str(line).unwrap());
        }
        Answer::of(tally, &args(By::Host, limit))
    }

    fn printed(answer: &Answer) -> String {
        let mut out = Vec::new();
        let now = "2026-01-31T12:00:00Z".parse().unwrap();
        as_table(answer, Terminal::default(), now, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const RUN: &str = r#"{"time":"2026-01-31T11:00:00Z","network":"allowlist","egress_denied":5,"egress_denied_by_reason":{"not_allowed":5},
        "egress_denied_hosts":[{"host":"b.example","reason":"not_allowed","count":3},{"host":"x\u001b[2J\ny","reason":"not_allowed","count":1}]}"#;

    #[test]
    fn hosts_are_counted_and_what_is_left_out_is_said() {
        let silent = r#"{"time":"t","network":"allowlist"}"#;
        let old = r#"{"time":"t","network":"allowlist","egress_denied_reported":9}"#;
        let text = printed(&answer(&[RUN, RUN, silent, old], 1));
        for part in [
            "REFUSED  RUNS  LAST     HOST       REASONS\n",
            "6        2     1 h ago  b.example  not_allowed ×6\n",
            "10 refused attempts in 2 runs\n",
            "1 of 2 rows are shown; see --limit\n",
            "2 of them were to targets that did not fit their runs' lines\n",
            "1 run under an allowlist left no account and are not counted\n",
            "1 run with numbers that a guest could forge are not counted\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn nothing_that_a_guest_named_acts_on_the_terminal() {
        let text = printed(&answer(&[RUN], 9));
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains("x\\u{1b}[2J\\u{a}y"), "{text}");
    }

    #[test]
    fn no_refusals_and_no_runs_are_two_things() {
        let nothing = r#"{"time":"t","network":"allowlist","egress_denied":0}"#;
        assert_eq!(
            printed(&answer(&[nothing], 9)),
            "nothing was refused in 1 run\n"
        );
        assert_eq!(
            printed(&answer(&[], 9)),
            "no run with an account of what was refused\n"
        );
    }

    #[test]
    fn json_has_every_field_whatever_was_found() {
        let mut out = Vec::new();
        as_json(&answer(&[], 9), &mut out).unwrap();
        let json = r#"{"by":"host","since":null,"runs":0,"denied":0,"at_least":false,"not_attributed":0,"unreported_runs":0,"forgeable_runs":0,"distinct":0,"rows":[]}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{json}\n"));
        out = Vec::new();
        as_json(&answer(&[RUN], 1), &mut out).unwrap();
        let row = r#""rows":[{"key":"b.example","count":3,"at_least":false,"runs":1,"last":"2026-01-31T11:00:00Z","reasons":{"not_allowed":3}}]"#;
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(row), "{text}");
    }
}
