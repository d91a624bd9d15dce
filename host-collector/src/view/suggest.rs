//! `suggest`: what to add to an allowlist, to be read before it is pasted.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use report::Printable;

use super::{ViewError, counted, log_dir, shell::quoted, show::find, skipped_lines, unless_gone};
use crate::{
    cli::SuggestArgs,
    environment::Environment,
    log::{Entries, Entry},
    session::Session,
    suggest::{Addition, Suggestion, suggest as draw},
};

/// Prints the suggestion.
///
/// # Errors
/// When there is no log to look for, no such run, or nobody to print to.
pub fn suggest(args: &SuggestArgs, environment: &Environment) -> Result<(), ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    let mut entries = Entries::open(&dir);
    let sessions: Vec<Session> = if let Some(run) = &args.run {
        vec![find(entries, run)?.session]
    } else {
        let sessions = entries.by_ref().map(|Entry { session, .. }| session);
        let selected = sessions.filter(|session| args.selection.admits_session(session));
        let selected = selected.collect();
        skipped_lines(entries.skipped(), &dir);
        selected
    };
    let suggestion = draw(&sessions);
    let mut text = String::new();
    if args.json {
        text = serde_json::to_string(&suggestion).unwrap_or_default();
        text.push('\n');
    } else {
        // Writing to a String cannot fail.
        let _ = describe(&suggestion, &mut text);
    }
    let mut out = io::stdout().lock();
    unless_gone(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn describe(suggestion: &Suggestion, out: &mut String) -> fmt::Result {
    additions(suggestion, out)?;
    for wider in &suggestion.alternatives {
        let count = wider.instead_of.len();
        let entry = quoted(&wider.entry);
        writeln!(out, "\nor, instead of {count} of them: --allow {entry}")?;
        writeln!(out, "  lets through {}", wider.widens)?;
    }
    if !suggestion.not_helped.is_empty() {
        writeln!(out, "\nno entry helps")?;
    }
    for no in &suggestion.not_helped {
        let times = counted(no.attempts, "attempt");
        writeln!(
            out,
            "  {} {}, {times}: {}",
            no.target,
            no.reason,
            Printable::new(&no.why)
        )?;
    }
    remarks(suggestion, out)
}

fn additions(suggestion: &Suggestion, out: &mut String) -> fmt::Result {
    let runs = counted(suggestion.runs, "run");
    if suggestion.runs == 0 {
        return writeln!(out, "no run with an account of what was refused");
    }
    if suggestion.add.is_empty() {
        return if suggestion.not_helped.is_empty() {
            writeln!(out, "nothing to add: nothing was refused in {runs}")
        } else {
            writeln!(out, "nothing to add for {runs}")
        };
    }
    let flags: Vec<String> = suggestion
        .flags
        .iter()
        .map(|flag| quoted_whole(flag))
        .collect();
    writeln!(out, "{}\n", flags.join(" "))?;
    for Addition {
        entry,
        attempts,
        runs,
        targets,
        hint,
        ..
    } in &suggestion.add
    {
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let (attempts, runs) = (counted(*attempts, "attempt"), counted(*runs, "run"));
        writeln!(
            out,
            "  {entry}: {attempts} in {runs}, to {}",
            targets.join(", ")
        )?;
        if let Some(hint) = hint {
            writeln!(out, "    {}", Printable::new(hint))?;
        }
    }
    Ok(())
}

/// A list is longer than what is printed of a guest's word, and was checked entry by entry.
fn quoted_whole(flag: &str) -> String {
    let entries: Vec<String> = flag.split(',').map(quoted).collect();
    entries.join(",")
}

fn remarks(suggestion: &Suggestion, out: &mut String) -> fmt::Result {
    let mut remarks = Vec::new();
    if !suggestion.add.is_empty() {
        remarks
            .push("the guest chose these names: add what it needs, not what it asked for".into());
    }
    if suggestion.left_out > 0 {
        remarks.push(format!("{} more are left out", suggestion.left_out));
    }
    if suggestion.sampled_runs > 0 {
        let runs = counted(suggestion.sampled_runs, "run");
        remarks.push(format!(
            "of {runs} this is a sample: more was refused than fits a line of the log"
        ));
    }
    if suggestion.cut_lists > 0 {
        let runs = counted(suggestion.cut_lists, "run");
        remarks.push(format!(
            "the list of {runs} was cut in the log: what the rest says is unknown"
        ));
    }
    for (number, remark) in remarks.iter().enumerate() {
        writeln!(out, "{}{remark}", if number == 0 { "\n" } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(line: &str) -> String {
        let session: Session = serde_json::from_str(line).unwrap();
        let mut text = String::new();
        describe(&draw([&session]), &mut text).unwrap();
        text
    }

    fn host(name: &str, port: u16, reason: &str, count: u64) -> String {
        format!(
            r#"{{"host":"{name}","port":{port},"proto":"tcp","reason":"{reason}","count":{count},"first_ms":0,"last_ms":0}}"#
        )
    }

    #[test]
    fn what_to_paste_comes_first_and_then_why() {
        let hosts = [
            host("y.example", 443, "not_allowed", 2),
            host("x.example", 22, "port_not_allowed", 1),
            host("q.example", 443, "quic", 1),
        ];
        let text = described(&format!(
            r#"{{"egress_allow":["*.y.example","x.example"],"egress_denied_hosts_distinct":9,"egress_denied_hosts":[{}]}}"#,
            hosts.join(",")
        ));
        let expected = "\
--allow y.example,x.example:22

  y.example: 2 attempts in 1 run, to y.example:443
    `*.y.example` does not cover `y.example`; add `y.example`
  x.example:22: 1 attempt in 1 run, to x.example:22
    `x.example` is allowed on 80 and 443; add `x.example:22`

no entry helps
  q.example:443 quic, 1 attempt: QUIC is refused so that clients use TCP, where names decide

the guest chose these names: add what it needs, not what it asked for
of 1 run this is a sample: more was refused than fits a line of the log
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_wildcard_is_quoted_for_the_shell_and_says_what_it_widens() {
        let hosts =
            ["a", "b", "c"].map(|name| host(&format!("{name}.cdn.example"), 443, "not_allowed", 1));
        let text = described(&format!(
            r#"{{"egress_allow":["x.example"],"egress_denied_hosts":[{}]}}"#,
            hosts.join(",")
        ));
        assert!(
            text.contains("or, instead of 3 of them: --allow '*.cdn.example'\n"),
            "{text}"
        );
        assert!(
            text.contains("lets through every name below cdn.example"),
            "{text}"
        );
    }

    #[test]
    fn nothing_refused_and_nobody_looking_are_two_things() {
        assert_eq!(
            described(r#"{"egress_denied_hosts":[]}"#),
            "nothing to add: nothing was refused in 1 run\n"
        );
        assert_eq!(
            described("{}"),
            "no run with an account of what was refused\n"
        );
    }

    #[test]
    fn an_address_of_version_6_is_quoted_where_a_shell_would_expand_it() {
        assert_eq!(
            quoted_whole("a.example,[2001:db8::1]:22"),
            "a.example,'[2001:db8::1]:22'"
        );
    }
}
