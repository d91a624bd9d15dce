//! `doctor`: what this host can deliver, each thing as soon as it was tried.

use std::io::{self, Write};

use serde::Serialize;
use tokio::runtime::Builder;

use super::{
    ViewError,
    terminal::{Terminal, Tone},
    unless_gone,
};
use crate::{
    cli::DoctorArgs,
    doctor::{Check, Status, Subject, examine},
    environment::Environment,
};

/// Tries everything and prints how it went. True if runs can have what they are promised.
///
/// # Errors
/// When nobody takes the output.
pub fn doctor(args: &DoctorArgs, environment: &Environment) -> Result<bool, ViewError> {
    let subject = Subject {
        engine: args.engine,
        runtime: args.runtime.clone(),
        image: args.image.clone(),
        audit_dir: args
            .audit
            .audit_dir
            .clone()
            .or_else(|| environment.audit_dir()),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let terminal = Terminal::of_stdout(environment);
    let mut checks = Vec::new();
    let mut printed = Ok(());
    runtime.block_on(examine(&subject, environment, |check| {
        if !args.json && printed.is_ok() {
            // A trial takes seconds: each result is progress.
            printed = print(&check, terminal, &mut io::stdout());
        }
        checks.push(check);
    }));
    unless_gone(printed)?;
    let able = checks.iter().all(|check| check.status != Status::Fail);
    if args.json {
        let answer = Answer { able, checks };
        let mut text = serde_json::to_string(&answer).unwrap_or_default();
        text.push('\n');
        unless_gone(io::stdout().write_all(text.as_bytes()))?;
    }
    Ok(able)
}

/// What is printed as JSON; its fields are stable.
#[derive(Debug, Serialize)]
struct Answer {
    able: bool,
    checks: Vec<Check>,
}

fn print(check: &Check, terminal: Terminal, out: &mut impl Write) -> io::Result<()> {
    let (word, tone) = match check.status {
        Status::Ok => ("ok  ", Tone::Plain),
        Status::Warn => ("warn", Tone::Notable),
        Status::Fail => ("fail", Tone::Bad),
    };
    let word = terminal.paint(word, tone);
    writeln!(out, "{word}  {:13}  {}", check.name, check.detail)?;
    if let Some(remedy) = check.remedy {
        writeln!(out, "{:21}{remedy}", "")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use report::Printable;

    use super::*;

    #[test]
    fn each_check_is_a_line_and_its_remedy_another() {
        let check = |status, remedy| Check {
            name: "log directory",
            status,
            detail: Printable::new("/a\u{1b}"),
            remedy,
        };
        let mut out = Vec::new();
        print(&check(Status::Ok, None), Terminal::default(), &mut out).unwrap();
        print(
            &check(Status::Fail, Some("do this")),
            Terminal::default(),
            &mut out,
        )
        .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok    log directory  /a\\u{1b}\nfail  log directory  /a\\u{1b}\n                     do this\n"
        );
    }
}
