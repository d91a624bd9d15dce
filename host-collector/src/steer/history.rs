//! The lists that a run was asked to follow, in a file of its directory: a collector that is started
//! again must know them, and what a container says of others is no truth.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use report::{Answers, FIRST_GENERATION, PolicyOutcome};
use serde::{Deserialize, Serialize};

use super::amend::Amendment;
use crate::session::{PolicyChange, PolicyIdentity, PolicyState};

/// All lists of a run.
#[derive(Debug, Clone)]
pub(crate) struct History {
    path: PathBuf,
    launched: BTreeSet<String>,
    launched_digest: String,
    asked: Vec<Asked>,
    bytes: u64,
}

/// A list that the container was asked to follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) generation: u64,
    pub(crate) digest: String,
    /// In milliseconds since the epoch.
    pub(crate) time_ms: i64,
    /// Compared with the list that was in force then.
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl History {
    /// The greatest number of changes of a run.
    pub(crate) const MOST: usize = 512;

    /// Reads what another collector has left, if there is any. A last line without its end was not
    /// sent.
    pub(crate) fn read(
        run_dir: &Path,
        launched: &[String],
        launched_digest: &str,
    ) -> io::Result<Self> {
        let path = run_dir.join("policy.jsonl");
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => drop(file.take(LARGEST).read_to_string(&mut text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text.get(..whole).unwrap_or_default().lines();
        let asked = lines.map(|line| serde_json::from_str(line).map_err(io::Error::from));
        Ok(Self {
            asked: asked.collect::<io::Result<_>>()?,
            path,
            launched: launched.iter().cloned().collect(),
            launched_digest: launched_digest.to_owned(),
            bytes: whole as u64,
        })
    }

    /// Whether there was no change.
    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Writes down that the container is about to be asked; returns what is to be asked.
    pub(crate) fn append(&mut self, amendment: &Amendment) -> io::Result<&Asked> {
        if self.asked.len() >= Self::MOST {
            let most = Self::MOST;
            return Err(io::Error::other(format!(
                "a run has {most} changes at most"
            )));
        }
        let last = self
            .asked
            .last()
            .map_or(FIRST_GENERATION, |last| last.generation);
        let asked = Asked {
            generation: last + 1,
            digest: amendment.policy.digest().to_string(),
            time_ms: Timestamp::now().as_millisecond(),
            added: amendment.added.clone(),
            removed: amendment.removed.clone(),
        };
        let mut line = serde_json::to_vec(&asked)?;
        line.push(b'\n');
        let bytes = self.bytes + line.len() as u64;
        if bytes > LARGEST {
            return Err(io::Error::other(
                "the changes of this run are too large to keep",
            ));
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)?;
        // Over what another collector may have left half written.
        file.set_len(self.bytes)?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        file.write_all(&line)?;
        self.bytes = bytes;
        self.asked.push(asked);
        self.asked.last().ok_or(io::ErrorKind::NotFound.into())
    }

    /// The list in force, as far as it is known.
    pub(crate) fn list(&self, answers: &Answers) -> BTreeSet<String> {
        let mut list = self.launched.clone();
        for asked in self.asked.iter().filter(|asked| asked.is_in_force(answers)) {
            asked.apply(&mut list);
        }
        list
    }

    /// The list that the container has yet to answer for, and all that is in it.
    pub(crate) fn outstanding(&self, answers: &Answers) -> Option<(&Asked, BTreeSet<String>)> {
        let latest = self.asked.last()?;
        if answers.on(latest.generation, &latest.digest).is_some() {
            return None;
        }
        let mut list = self.list(answers);
        latest.apply(&mut list);
        Some((latest, list))
    }

    /// Generation and digest of the list in force.
    pub(crate) fn in_force(&self, answers: &Answers) -> (u64, &str) {
        let changes = self.asked.iter().rev();
        changes
            .filter(|asked| asked.is_in_force(answers))
            .map(|asked| (asked.generation, asked.digest.as_str()))
            .next()
            .unwrap_or((FIRST_GENERATION, &self.launched_digest))
    }

    /// What the record says of all this.
    pub(crate) fn identity(&self, answers: &Answers) -> PolicyIdentity {
        let (generation, digest) = self.in_force(answers);
        let shown = self.asked.len().saturating_sub(SHOWN);
        let changes = self.asked.iter().skip(shown);
        let changes: Vec<_> = changes.map(|asked| asked.recorded(answers)).collect();
        PolicyIdentity {
            digest: digest.to_owned(),
            generation,
            launch_digest: (!changes.is_empty()).then(|| self.launched_digest.clone()),
            changes: (!changes.is_empty()).then_some(changes),
            changes_truncated: shown > 0,
            unasked: self.unasked(answers),
        }
    }

    /// How many lists the container spoke of that it was never given.
    fn unasked(&self, answers: &Answers) -> u64 {
        let spoken = answers.spoken_of();
        let invented = spoken.filter(|(generation, digest)| {
            let is_it =
                |asked: &Asked| asked.generation == *generation && asked.digest == digest.as_str();
            !self.asked.iter().any(is_it)
        });
        (invented.count() as u64).saturating_add(answers.dropped())
    }
}

impl Asked {
    fn is_in_force(&self, answers: &Answers) -> bool {
        let answer = answers.on(self.generation, &self.digest);
        answer.is_some_and(|answer| answer.outcome == PolicyOutcome::InForce)
    }

    fn apply(&self, list: &mut BTreeSet<String>) {
        for entry in &self.removed {
            list.remove(entry);
        }
        list.extend(self.added.iter().cloned());
    }

    fn recorded(&self, answers: &Answers) -> PolicyChange {
        let answer = answers.on(self.generation, &self.digest);
        let state = match answer.map(|answer| answer.outcome) {
            Some(PolicyOutcome::InForce) => PolicyState::InForce,
            Some(PolicyOutcome::Refused) => PolicyState::Refused,
            Some(PolicyOutcome::Unknown) | None => PolicyState::Unconfirmed,
        };
        let at_ms = answer.map(|answer| answer.at);
        let time = Timestamp::from_millisecond(self.time_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        let shown = |entries: &[String]| entries.iter().take(SHOWN_ENTRIES).cloned().collect();
        PolicyChange {
            generation: self.generation,
            digest: self.digest.clone(),
            state,
            time: format!("{time:.3}"),
            at_ms: at_ms.filter(|_| state == PolicyState::InForce),
            added: shown(&self.added),
            removed: shown(&self.removed),
            entries_truncated: self.added.len().max(self.removed.len()) > SHOWN_ENTRIES,
            detail: answer
                .and_then(|answer| answer.detail.as_ref())
                .map(ToString::to_string),
        }
    }
}

/// Of a file that only this program writes.
const LARGEST: u64 = 64 * 1024 * 1024;
/// How many changes a line shows, the latest.
const SHOWN: usize = 64;
/// How many entries of a change.
const SHOWN_ENTRIES: usize = 32;

#[cfg(test)]
mod tests {
    use report::{PolicyReport, Printable};

    use super::*;
    use crate::steer::amend::{Direction, amend};

    fn history(dir: &Path) -> History {
        History::read(dir, &["a.example".into()], "d1").unwrap()
    }

    fn ask(history: &mut History, answers: &Answers, direction: Direction, entry: &str) -> Asked {
        let entries = [entry.to_owned()];
        let list = history.list(answers);
        let amendment = amend(&list, direction, &entries).unwrap().unwrap();
        history.append(&amendment).unwrap().clone()
    }

    fn answer(answers: &mut Answers, asked: &Asked, outcome: PolicyOutcome) {
        let report = PolicyReport {
            generation: asked.generation,
            digest: Printable::new(&asked.digest),
            outcome,
            detail: None,
        };
        answers.add(&report, 7);
    }

    fn listed(history: &History, answers: &Answers) -> Vec<String> {
        history.list(answers).into_iter().collect()
    }

    #[test]
    fn a_list_is_in_force_once_the_container_has_said_so_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let (mut history, mut answers) = (history(dir.path()), Answers::default());
        let asked = ask(&mut history, &answers, Direction::Allow, "b.example");
        assert_eq!(asked.generation, 2);
        assert_eq!(listed(&history, &answers), ["a.example"]);
        assert_eq!(history.in_force(&answers), (1, "d1"));
        let (outstanding, list) = history.outstanding(&answers).unwrap();
        assert_eq!((outstanding, list.len()), (&asked, 2));
        answer(&mut answers, &asked, PolicyOutcome::InForce);
        assert_eq!(listed(&history, &answers), ["a.example", "b.example"]);
        assert_eq!(history.in_force(&answers), (2, asked.digest.as_str()));
        assert!(history.outstanding(&answers).is_none());
    }

    #[test]
    fn another_collector_knows_what_was_asked_and_what_was_refused_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, mut answers) = (history(dir.path()), Answers::default());
        let refused = ask(&mut first, &answers, Direction::Allow, "b.example");
        answer(&mut answers, &refused, PolicyOutcome::Refused);
        let taken = ask(&mut first, &answers, Direction::Deny, "a.example");
        answer(&mut answers, &taken, PolicyOutcome::InForce);
        ask(&mut first, &answers, Direction::Allow, "c.example");
        let mut file = OpenOptions::new().append(true).open(&first.path).unwrap();
        file.write_all(b"{\"generation\":5,\"half").unwrap();
        let mut second = history(dir.path());
        assert_eq!(listed(&second, &answers), ["!a.example"]);
        assert_eq!(second.outstanding(&answers).unwrap().0.generation, 4);
        assert_eq!(
            ask(&mut second, &answers, Direction::Allow, "d.example").generation,
            5
        );
        assert_eq!(history(dir.path()).asked, second.asked);
    }

    #[test]
    fn what_the_container_says_of_lists_that_it_was_never_given_is_marked_and_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (mut history, mut answers) = (history(dir.path()), Answers::default());
        let asked = ask(&mut history, &answers, Direction::Allow, "b.example");
        for (generation, digest) in [(2, "another"), (9, "invented")] {
            let invented = Asked {
                generation,
                digest: digest.into(),
                ..asked.clone()
            };
            answer(&mut answers, &invented, PolicyOutcome::InForce);
        }
        let identity = history.identity(&answers);
        assert_eq!((identity.generation, identity.digest.as_str()), (1, "d1"));
        assert_eq!(identity.unasked, 2);
        let state = identity.changes.unwrap().first().unwrap().state;
        assert_eq!(state, PolicyState::Unconfirmed);
    }

    #[test]
    fn the_record_has_every_change_with_what_came_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut history, mut answers) = (history(dir.path()), Answers::default());
        assert_eq!(history.identity(&answers).changes, None);
        let asked = ask(&mut history, &answers, Direction::Deny, "a.example");
        answer(&mut answers, &asked, PolicyOutcome::InForce);
        let identity = history.identity(&answers);
        assert_eq!(identity.launch_digest.as_deref(), Some("d1"));
        let changes = identity.changes.unwrap();
        let change = changes.first().unwrap();
        assert_eq!((change.generation, change.at_ms), (2, Some(7)));
        assert_eq!(
            (&change.added[..], &change.removed[..]),
            (
                &["!a.example".to_owned()][..],
                &["a.example".to_owned()][..]
            )
        );
    }

    #[test]
    fn changes_have_an_end_and_the_record_shows_the_latest() {
        let dir = tempfile::tempdir().unwrap();
        let (mut history, mut answers) = (history(dir.path()), Answers::default());
        for n in 0..History::MOST {
            let asked = ask(
                &mut history,
                &answers,
                Direction::Allow,
                &format!("n{n}.example"),
            );
            answer(&mut answers, &asked, PolicyOutcome::InForce);
        }
        let list = history.list(&answers);
        let one_more = amend(&list, Direction::Allow, &["z.example".to_owned()]);
        assert!(history.append(&one_more.unwrap().unwrap()).is_err());
        let identity = history.identity(&answers);
        let changes = identity.changes.unwrap();
        assert_eq!((changes.len(), identity.changes_truncated), (SHOWN, true));
        assert_eq!(changes.last().unwrap().generation, identity.generation);
    }

    #[test]
    fn a_file_that_this_program_did_not_write_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("policy.jsonl"), "rubbish\n").unwrap();
        assert!(History::read(dir.path(), &[], "d1").is_err());
    }

    #[test]
    fn the_file_is_this_user_s_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let mut history = history(dir.path());
        ask(
            &mut history,
            &Answers::default(),
            Direction::Allow,
            "b.example",
        );
        let mode = std::fs::metadata(&history.path)
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_change_of_many_entries_is_cut_in_the_record_and_whole_in_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let (mut history, mut answers) = (history(dir.path()), Answers::default());
        let many: Vec<_> = (0..100).map(|n| format!("n{n}.example")).collect();
        let amendment = amend(&history.list(&answers), Direction::Allow, &many);
        let asked = history
            .append(&amendment.unwrap().unwrap())
            .unwrap()
            .clone();
        answer(&mut answers, &asked, PolicyOutcome::InForce);
        let changes = history.identity(&answers).changes.unwrap();
        let change = changes.first().unwrap();
        assert_eq!(
            (change.added.len(), change.entries_truncated),
            (SHOWN_ENTRIES, true)
        );
        assert_eq!(history.list(&answers).len(), 101);
    }
}
