//! The lists that a run is held to, one after the other: who changes them, and what is known of them.

use std::{io, path::Path};

use report::Answers;

use super::{driven::Driven, registration::Registration};
use crate::{
    channel::{Channel, ChannelError, answers_so_far},
    session::PolicyIdentity,
    steer::{Control, History},
};

/// Has the channel hand on what verbs ask for.
///
/// Where another collector has left what cannot be gone on with, the run is attended all the same:
/// its record is worth more than that it can be changed.
pub(super) fn steered(
    channel: Channel,
    run_dir: &Path,
    registration: &Registration,
) -> Result<(Channel, Option<Control>), ChannelError> {
    let opened = history(run_dir, registration).and_then(|history| {
        let answers = channel.answers().clone();
        Control::open(run_dir, history, answers)
    });
    match opened {
        Ok((control, orders)) => Ok((channel.with_orders(orders), Some(control))),
        Err(_) if channel.was_launched() => Ok((channel, None)),
        Err(source) => Err(ChannelError::Make {
            directory: run_dir.to_owned(),
            source,
        }),
    }
}

/// What the record says of the lists, if there were several or the container says so.
pub(super) fn at_end(
    run_dir: &Path,
    registration: &Registration,
    driven: &Driven,
) -> Option<PolicyIdentity> {
    let history = history(run_dir, registration).ok()?;
    let reports = driven.attendance.as_ref()?.reports.as_ref();
    let nothing = Answers::default();
    let answers = reports.map_or(&nothing, |reports| reports.account.answers());
    let identity = history.identity(answers);
    (!history.is_empty() || identity.unasked > 0).then_some(identity)
}

/// What is known of the lists of a run that goes on, if there were several.
pub(super) fn so_far(run_dir: &Path, registration: &Registration) -> Option<PolicyIdentity> {
    let history = history(run_dir, registration).ok()?;
    let seed = registration.terms.as_ref()?.seed;
    if history.is_empty() {
        return None;
    }
    let answers = answers_so_far(run_dir, seed).ok()?;
    Some(history.identity(&answers))
}

fn history(run_dir: &Path, registration: &Registration) -> io::Result<History> {
    let record = &registration.record;
    let launched = record.egress_allow.as_deref().unwrap_or_default();
    let policy = record.egress_policy.as_ref();
    let digest = policy.map(|policy| policy.digest.as_str());
    History::read(run_dir, launched, digest.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{attend::registration::tests::registration, session::PolicyState};

    const ASKED: &str =
        r#"{"generation":2,"digest":"bb","time_ms":1,"added":["b.example"],"removed":[]}"#;
    const ANSWERED: &str =
        r#"{"type":"policy","generation":2,"digest":"bb","outcome":"in_force","seq":3,"t":9}"#;
    const ENFORCING: &str = r#"{"type":"enforcing","enforcement":"name","backend":"b","ruleset_digest":"r","self_test":[],"ipv6":"absent","seq":2,"t":1}"#;

    fn left(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("channel")).unwrap();
        for (name, line) in files {
            fs::write(dir.path().join(name), format!("{line}\n")).unwrap();
        }
        dir
    }

    fn opened(dir: &Path, registration: &Registration) -> Channel {
        Channel::open(dir, registration.terms.clone().unwrap()).unwrap()
    }

    #[test]
    fn a_run_that_goes_on_is_known_by_what_was_asked_and_what_is_journalled() {
        let registration = registration(true);
        let dir = left(&[]);
        assert_eq!(so_far(dir.path(), &registration), None);
        let dir = left(&[("policy.jsonl", ASKED)]);
        let state = |dir: &Path| {
            let identity = so_far(dir, &registration).unwrap();
            (
                identity.generation,
                identity.changes.unwrap().first().unwrap().state,
            )
        };
        assert_eq!(state(dir.path()), (1, PolicyState::Unconfirmed));
        let dir = left(&[("policy.jsonl", ASKED), ("journal.jsonl", ANSWERED)]);
        assert_eq!(state(dir.path()), (2, PolicyState::InForce));
    }

    #[tokio::test]
    async fn a_history_that_cannot_be_read_keeps_a_launch_from_going_on_and_no_record_from_being_kept()
     {
        let registration = registration(true);
        let dir = left(&[("policy.jsonl", "rubbish")]);
        let channel = opened(dir.path(), &registration);
        assert!(steered(channel, dir.path(), &registration).is_err());
        let dir = left(&[("policy.jsonl", "rubbish"), ("journal.jsonl", ENFORCING)]);
        let channel = opened(dir.path(), &registration);
        let (_, control) = steered(channel, dir.path(), &registration).unwrap();
        assert!(control.is_none());
    }

    #[tokio::test]
    async fn whoever_attends_can_be_asked() {
        let registration = registration(true);
        let dir = left(&[]);
        let channel = opened(dir.path(), &registration);
        let (_, control) = steered(channel, dir.path(), &registration).unwrap();
        assert!(control.is_some() && dir.path().join("control.sock").exists());
    }
}
