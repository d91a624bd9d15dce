//! `verify`: whether the log is what was written.

use std::{
    io::{self, Write},
    path::Path,
};

use jiff::Timestamp;
use report::Printable;
use serde::Serialize;

use super::{
    ViewError, counted, log_dir,
    progress::Progress,
    terminal::{Terminal, Tone},
    unless_gone,
};
use crate::{
    cli::{KeygenArgs, VerifyArgs},
    environment::{Environment, host_name},
    log::{
        Finding,
        checkpoint::{self, Vouched},
        key, verify as check_log,
    },
};

/// Checks the log and prints what was found. True if that is nothing.
///
/// # Errors
/// When there is no log to look for, a key is none, or a checkpoint cannot be written.
pub fn verify(args: &VerifyArgs, environment: &Environment) -> Result<bool, ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    let secret = args.sign.as_deref().map(key::secret).transpose()?;
    let public = match (&args.key, &secret) {
        (Some(file), _) => Some(key::public(file)?),
        (None, Some(secret)) => Some(secret.verifying_key()),
        (None, None) => None,
    };
    let mut progress = Progress::on_stderr("checking");
    let mut report = check_log(&dir, &mut |done, total| progress.at(done, total));
    progress.end();
    let beside = checkpoint::beside(&dir);
    let checkpoints = args.checkpoints.as_deref().unwrap_or(&beside);
    let vouched = public
        .map(|key| checkpoint::check(checkpoints, &key, &mut report))
        .transpose()?;
    let is_vouched = vouched.as_ref().is_none_or(|found| found.checkpoints > 0);
    let is_sound = report.findings.count() == 0 && (is_vouched || secret.is_some());
    let signed = match &secret {
        Some(secret) if is_sound => {
            let now = format!("{:.3}", Timestamp::now());
            checkpoint::sign(checkpoints, secret, &report, now, host_name())?
        }
        _ => false,
    };
    let answer = Answer {
        sound: is_sound,
        files: report.files,
        lines: report.lines,
        skipped: report.skipped,
        dropped_runs: report.dropped_runs,
        findings_count: report.findings.count(),
        findings: report.findings.shown(),
        checkpoints: vouched,
        signed,
    };
    let mut out = io::stdout().lock();
    unless_gone(if args.json {
        as_json(&answer, &mut out)
    } else {
        as_text(&answer, &dir, Terminal::of_stdout(environment), &mut out)
    })?;
    Ok(is_sound)
}

/// Makes a pair of keys, and says what to do with each.
///
/// # Errors
/// When one of the two files cannot be made.
pub fn keygen(args: &KeygenArgs) -> Result<(), ViewError> {
    let public = key::make(&args.file)?;
    let (secret, public) = (args.file.display(), public.display());
    let mut out = io::stdout().lock();
    unless_gone(writeln!(
        out,
        "{secret} signs: host-collector verify --sign {secret}\n\
         {public} checks: host-collector verify --key {public}; keep a copy elsewhere"
    ))
}

/// What is printed; as JSON its fields are stable.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    sound: bool,
    files: u64,
    lines: u64,
    skipped: u64,
    dropped_runs: u64,
    findings_count: u64,
    findings: &'a [Finding],
    /// `null` where no key was given.
    checkpoints: Option<Vouched>,
    signed: bool,
}

fn as_json(answer: &Answer<'_>, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, answer)?;
    writeln!(out)?;
    out.flush()
}

fn as_text(
    answer: &Answer<'_>,
    dir: &Path,
    terminal: Terminal,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(
        out,
        "{}: {}, {} of runs, {} skipped, {} dropped by rotation",
        dir.display(),
        counted(answer.files, "file"),
        counted(answer.lines, "line"),
        answer.skipped,
        counted(answer.dropped_runs, "run"),
    )?;
    for Finding { place, kind, why } in answer.findings {
        let kind = terminal.paint(&super::word(kind), Tone::Bad);
        writeln!(out, "{place}: {kind}: {}", Printable::new(why))?;
    }
    let shown = answer.findings.len() as u64;
    if shown < answer.findings_count {
        writeln!(out, "and {} more", answer.findings_count - shown)?;
    }
    if let Some(vouched) = &answer.checkpoints {
        writeln!(out, "{}", told(vouched))?;
    }
    if answer.signed {
        writeln!(out, "signed a checkpoint")?;
    }
    let verdict = match (answer.sound, answer.findings_count) {
        (true, _) => "sound".to_owned(),
        (false, 0) => terminal.paint("no checkpoint of this key vouches for it", Tone::Bad),
        (false, count) => terminal.paint(&counted(count, "finding"), Tone::Bad),
    };
    writeln!(out, "{verdict}")?;
    out.flush()
}

fn told(vouched: &Vouched) -> String {
    let count = counted(vouched.checkpoints, "checkpoint");
    match (&vouched.newest, vouched.lines_since) {
        (Some(newest), Some(lines)) => {
            let newest = Printable::new(newest);
            format!(
                "{count}, the newest of {newest}; {} since",
                counted(lines, "line")
            )
        }
        _ => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Kind, Place};

    fn answer(findings: &[Finding], count: u64) -> Answer<'_> {
        Answer {
            sound: count == 0,
            files: 1,
            lines: 3,
            skipped: 0,
            dropped_runs: 0,
            findings_count: count,
            findings,
            checkpoints: None,
            signed: false,
        }
    }

    fn text(answer: &Answer<'_>) -> String {
        let mut out = Vec::new();
        as_text(answer, Path::new("/a"), Terminal::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn finding(why: &str) -> Finding {
        let place = Place {
            generation: 2,
            line: 7,
        };
        Finding {
            place,
            kind: Kind::Half,
            why: why.into(),
        }
    }

    #[test]
    fn a_sound_log_is_two_lines() {
        let expected =
            "/a: 1 file, 3 lines of runs, 0 skipped, 0 runs dropped by rotation\nsound\n";
        assert_eq!(text(&answer(&[], 0)), expected);
    }

    #[test]
    fn each_finding_names_its_place_and_the_rest_is_counted() {
        let findings = [finding("it breaks off"), finding("x\u{1b}[2J\ny")];
        let text = text(&answer(&findings, 12));
        assert!(
            text.contains("\nsessions.jsonl.2 line 7: half: it breaks off\n"),
            "{text}"
        );
        assert!(text.ends_with("\nand 10 more\n12 findings\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn what_a_checkpoint_vouches_for_is_said() {
        let vouched = Vouched {
            checkpoints: 2,
            newest: Some("t".into()),
            lines_since: Some(1),
        };
        let mut answer = answer(&[], 0);
        (answer.checkpoints, answer.signed) = (Some(vouched), true);
        assert!(text(&answer).ends_with(
            "\n2 checkpoints, the newest of t; 1 line since\nsigned a checkpoint\nsound\n"
        ));
        (answer.checkpoints, answer.sound) = (Some(Vouched::default()), false);
        assert!(text(&answer).ends_with("\nno checkpoint of this key vouches for it\n"));
    }

    #[test]
    fn json_has_every_field() {
        let mut out = Vec::new();
        as_json(&answer(&[], 0), &mut out).unwrap();
        let json = r#"{"sound":true,"files":1,"lines":3,"skipped":0,"dropped_runs":0,"findings_count":0,"findings":[],"checkpoints":null,"signed":false}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{json}\n"));
    }
}
