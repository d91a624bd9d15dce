//! `allow` and `deny`: another allowlist for a run that goes on.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use report::Printable;
use serde_json::json;

use super::{
    error::{ConfigError, RunError, SetUpError},
    finish::line_of,
    named, say,
    steer_error::SteerError,
};
use crate::{
    allow::allowlist,
    attend::{Attender, Held, Launcher, Registration, hold},
    cli::{AuditArgs, ChangeArgs},
    environment::Environment,
    run_dir,
    run_id::RunId,
    steer::{AskError, Change, Direction, Reply, Request, ask},
};

/// Has a run follow another list, and says which it is once the container has confirmed it.
pub(super) async fn change(
    direction: Direction,
    args: &ChangeArgs,
    environment: &Environment,
) -> Result<i32, RunError> {
    let denial = args
        .entries
        .iter()
        .find(|entry| entry.trim_start().starts_with('!'));
    if let Some(denial) = denial {
        return Err(SetUpError::from(SteerError::Denial(Printable::new(denial))).into());
    }
    // Looked for first: a mistake in the name should not cost a question to every tool.
    let run = find(&args.run, &args.audit, environment)?;
    let policy = allowlist(&args.entries, environment).await;
    let entries = policy.map_err(ConfigError::from)?.entries();
    let request = Request::Change { direction, entries };
    let reply = request_of(&run, &request, environment).await?;
    let (change, is_new) = match reply {
        Reply::InForce(change) => (change, true),
        Reply::Unchanged(change) => (change, false),
        reply @ (Reply::Unconfirmed { .. } | Reply::Refused { .. } | Reply::Stopping) => {
            return Err(SetUpError::from(unwelcome(run, reply)).into());
        }
    };
    let text = if args.json {
        as_json(&run, &change, is_new)
    } else {
        as_text(&change, is_new)
    };
    write!(io::stdout(), "{text}").map_err(SetUpError::Output)?;
    for warning in &change.warnings {
        say(&format!("warning: {}", Printable::new(warning)));
    }
    Ok(0)
}

/// The run of this name, which goes on.
pub(super) fn find(
    name: &str,
    audit: &AuditArgs,
    environment: &Environment,
) -> Result<RunId, SetUpError> {
    if let Some(run_id) = named(&environment.runtime_dir(), name)? {
        return Ok(run_id);
    }
    let audit_dir = audit.audit_dir.clone().or_else(|| environment.audit_dir());
    let line = audit_dir.and_then(|dir| line_of(&dir, name));
    let shown = Printable::new(name);
    Err(match line {
        Some(_) if !name.is_empty() => SteerError::Ended(shown).into(),
        Some(_) | None => SetUpError::NoSuchRun(shown),
    })
}

/// Asks whoever attends to the run. Where somebody was killed who did, another takes his place and is
/// waited for.
pub(super) async fn request_of(
    run: &RunId,
    request: &Request,
    environment: &Environment,
) -> Result<Reply, SetUpError> {
    let runtime_dir = environment.runtime_dir();
    let path = run_dir::path(&runtime_dir, run);
    let ended = || SteerError::Ended(Printable::new(run.as_str()));
    let registration = Registration::read(&path)?.ok_or_else(ended)?;
    if registration.terms.is_none() {
        return Err(SteerError::NoAllowlist(run.clone()).into());
    }
    let asking = async {
        loop {
            match ask(&path, request).await {
                Ok(reply) => return Ok(reply),
                Err(AskError::Nobody) => take_up(&runtime_dir, run, &registration)?,
                Err(AskError::Ended) => return Err(ended().into()),
                Err(error @ (AskError::Foreign | AskError::Io(_))) => {
                    return Err(SteerError::Unasked(run.clone(), error.to_string()).into());
                }
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| Err(SteerError::Deaf(run.clone()).into()))
}

/// Sees to it that somebody attends, if nobody does.
fn take_up(runtime_dir: &Path, run: &RunId, registration: &Registration) -> Result<(), SetUpError> {
    match hold(runtime_dir, run)? {
        Held::Nowhere => Err(SteerError::Ended(Printable::new(run.as_str())).into()),
        Held::Elsewhere => Ok(()),
        Held::Here(run_dir) if registration.launcher == Launcher::AnotherWhoAttends => {
            run_dir.leave();
            Err(SteerError::Nobody(run.clone()).into())
        }
        Held::Here(run_dir) => {
            Attender::start(run_dir, registration)?;
            Ok(())
        }
    }
}

/// What to say of a reply that is not what was asked for.
pub(super) fn unwelcome(run: RunId, reply: Reply) -> SteerError {
    match reply {
        Reply::Unconfirmed { generation } => SteerError::Unconfirmed { run, generation },
        Reply::Refused { reason } => SteerError::Refused {
            run,
            reason: Printable::new(&reason),
        },
        Reply::InForce(_) | Reply::Unchanged(_) | Reply::Stopping => SteerError::Deaf(run),
    }
}

/// What `--json` prints.
fn as_json(run: &RunId, change: &Change, is_new: bool) -> String {
    let object = json!({
        "run_id": run.as_str(),
        "generation": change.generation,
        "digest": change.digest,
        "changed": is_new,
        "entries": change.entries,
        "added": change.added,
        "removed": change.removed,
        "warnings": change.warnings,
    });
    format!("{object}\n")
}

/// The list in force, and below it what is new about it.
fn as_text(change: &Change, is_new: bool) -> String {
    let word = if is_new {
        "is in force"
    } else {
        "says that already"
    };
    let entries = if change.entries == 1 {
        "entry"
    } else {
        "entries"
    };
    let mut text = format!(
        "generation {} {word}: {} {entries}, digest {}\n",
        change.generation, change.entries, change.digest
    );
    for (sign, entries) in [('+', &change.added), ('-', &change.removed)] {
        for entry in entries {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{sign} {}", Printable::new(entry));
        }
    }
    text
}

/// Longer than whoever attends waits for the container, twice.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two looks for whoever is about to attend.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::random().unwrap()
    }

    #[test]
    fn a_reply_that_answers_something_else_is_none() {
        for (reply, word) in [
            (Reply::Stopping, "does not listen"),
            (Reply::Unconfirmed { generation: 7 }, "generation 7"),
            (
                Reply::Refused {
                    reason: "full".into(),
                },
                "full",
            ),
        ] {
            let line = unwelcome(run(), reply).to_string();
            assert!(line.contains(word), "{line}");
        }
    }

    fn changed() -> Change {
        Change {
            generation: 2,
            digest: "ab".into(),
            entries: 1,
            added: vec!["!a.example".into()],
            removed: vec!["a.example".into()],
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_person_reads_which_list_is_in_force_and_what_is_new_about_it() {
        assert_eq!(
            as_text(&changed(), true),
            "generation 2 is in force: 1 entry, digest ab\n+ !a.example\n- a.example\n"
        );
        let same = Change {
            entries: 2,
            added: Vec::new(),
            removed: Vec::new(),
            ..changed()
        };
        assert_eq!(
            as_text(&same, false),
            "generation 2 says that already: 2 entries, digest ab\n"
        );
    }

    #[test]
    fn a_program_reads_the_same() {
        let run = run();
        let object: serde_json::Value =
            serde_json::from_str(&as_json(&run, &changed(), true)).unwrap();
        assert_eq!(object["run_id"], run.as_str());
        assert_eq!(
            (&object["changed"], &object["entries"]),
            (&true.into(), &1.into())
        );
        assert_eq!(object["added"], json!(["!a.example"]));
    }
}
