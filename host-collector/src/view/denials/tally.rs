//! Adds refused attempts up, by whatever was asked.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::{
    cli::{About, By, Selection},
    session::{Glance, GlanceHost},
};

/// What is counted, and by what.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) by: By,
    pub(super) host: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) selection: Selection,
}

/// The counts.
#[derive(Debug)]
pub(super) struct Tally {
    question: Question,
    keys: HashMap<String, Counted>,
    /// What has no agent, no branch, no workspace.
    without: Option<Counted>,
    pub(super) runs: u64,
    pub(super) denied: u64,
    pub(super) at_least: bool,
    pub(super) not_attributed: u64,
    pub(super) unreported_runs: u64,
    pub(super) forgeable_runs: u64,
}

/// A row of the answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) key: Option<String>,
    pub(super) count: u64,
    pub(super) at_least: bool,
    pub(super) runs: u64,
    pub(super) last: String,
    pub(super) reasons: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Counted {
    count: u64,
    at_least: bool,
    runs: u64,
    /// Number of the run that was counted last.
    run: u64,
    last: String,
    reasons: BTreeMap<String, u64>,
}

/// Some refused attempts of one run.
struct Part<'a> {
    key: Option<&'a str>,
    reason: &'a str,
    count: u64,
    at_least: bool,
}

impl Tally {
    pub(super) fn new(question: Question) -> Self {
        Self {
            question,
            keys: HashMap::new(),
            without: None,
            runs: 0,
            denied: 0,
            at_least: false,
            not_attributed: 0,
            unreported_runs: 0,
            forgeable_runs: 0,
        }
    }

    /// Adds a line. Of a detached run only that of its end counts.
    pub(super) fn add(&mut self, glance: &Glance<'_>) {
        let denied = glance.egress_denied.or(glance.egress_denied_at_least);
        if glance.is_launch() || !self.question.selection.admits(&about(glance, denied)) {
            return;
        }
        let Some(denied) = denied else {
            let watched = glance.network.as_str() == Some("allowlist");
            match glance.egress_denied_reported {
                Some(_) => self.forgeable_runs += 1,
                None if watched => self.unreported_runs += 1,
                None => {}
            }
            return;
        };
        self.runs += 1;
        self.at_least |= glance.egress_denied.is_none();
        if self.question.host.is_some() || self.question.by == By::Host {
            self.add_hosts(glance, denied);
        } else {
            self.add_reasons(glance);
        }
    }

    fn add_hosts(&mut self, glance: &Glance<'_>, denied: u64) {
        let lower_bound = glance.egress_denied.is_none();
        let mut attributed = 0_u64;
        for host in glance.egress_denied_hosts.iter().flatten() {
            let Some(name) = name(host) else {
                continue;
            };
            attributed = attributed.saturating_add(host.count);
            let reason = host.reason.or_empty();
            let wanted = &self.question;
            if !wanted.asks_for_host(name) || !wanted.asks_for_reason(reason) {
                continue;
            }
            let key = match wanted.by {
                By::Host => Some(name),
                By::Reason => Some(reason),
                by @ (By::Agent | By::Branch | By::Image | By::Workspace) => of_run(by, glance),
            };
            let part = Part {
                key,
                reason,
                count: host.count,
                at_least: host.at_least || lower_bound,
            };
            self.add_part(&part, glance.time.or_empty());
        }
        let left = denied.saturating_sub(attributed);
        self.not_attributed = self.not_attributed.saturating_add(left);
        // Whether those were to the host that is asked for, nobody knows.
        if self.question.host.is_none() && self.question.reason.is_none() {
            self.denied = self.denied.saturating_add(left);
        }
    }

    fn add_reasons(&mut self, glance: &Glance<'_>) {
        for (reason, count) in glance.egress_denied_by_reason.iter().flatten() {
            let reason = reason.or_empty();
            if !self.question.asks_for_reason(reason) {
                continue;
            }
            let key = match self.question.by {
                By::Host | By::Reason => Some(reason),
                by @ (By::Agent | By::Branch | By::Image | By::Workspace) => of_run(by, glance),
            };
            let part = Part {
                key,
                reason,
                count: *count,
                at_least: glance.egress_denied.is_none(),
            };
            self.add_part(&part, glance.time.or_empty());
        }
    }

    fn add_part(&mut self, part: &Part<'_>, time: &str) {
        self.denied = self.denied.saturating_add(part.count);
        let counted = match part.key {
            None => self.without.get_or_insert_default(),
            Some(key) => {
                // Most keys are there already, and need no string of their own.
                if !self.keys.contains_key(key) {
                    self.keys.insert(key.to_owned(), Counted::default());
                }
                match self.keys.get_mut(key) {
                    Some(counted) => counted,
                    None => return,
                }
            }
        };
        counted.add(part, self.runs, time);
    }

    /// The most frequent first.
    pub(super) fn rows(self) -> Vec<Row> {
        let keyed = self
            .keys
            .into_iter()
            .map(|(key, counted)| (Some(key), counted));
        let all = keyed.chain(self.without.map(|counted| (None, counted)));
        let mut rows: Vec<Row> = all.map(|(key, counted)| counted.row(key)).collect();
        rows.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        rows
    }
}

impl Question {
    #[cfg(test)]
    pub(super) fn by(by: By) -> Self {
        Self {
            by,
            host: None,
            reason: None,
            selection: Selection::default(),
        }
    }

    fn asks_for_host(&self, name: &str) -> bool {
        self.host
            .as_deref()
            .is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    }

    fn asks_for_reason(&self, reason: &str) -> bool {
        self.reason.as_deref().is_none_or(|wanted| wanted == reason)
    }
}

impl Counted {
    fn add(&mut self, part: &Part<'_>, run: u64, time: &str) {
        self.count = self.count.saturating_add(part.count);
        self.at_least |= part.at_least;
        if self.run != run {
            self.run = run;
            self.runs += 1;
        }
        // RFC 3339 in UTC with a fixed number of digits, as the log has it, is ordered as text.
        if *self.last < *time {
            time.clone_into(&mut self.last);
        }
        match self.reasons.get_mut(part.reason) {
            Some(count) => *count = count.saturating_add(part.count),
            None => drop(self.reasons.insert(part.reason.to_owned(), part.count)),
        }
    }

    fn row(self, key: Option<String>) -> Row {
        Row {
            key,
            count: self.count,
            at_least: self.at_least,
            runs: self.runs,
            last: self.last,
            reasons: self.reasons,
        }
    }
}

fn about<'a>(glance: &'a Glance<'_>, denied: Option<u64>) -> About<'a> {
    About {
        time: glance.time.or_empty(),
        agent: glance.agent.as_str(),
        branch: glance.branch.as_str(),
        image: glance.image.or_empty(),
        workspace: glance.workspace.as_str(),
        refused: denied.unwrap_or(0),
    }
}

fn name<'a>(host: &'a GlanceHost<'_>) -> Option<&'a str> {
    host.host.as_str().or_else(|| host.address.as_str())
}

fn of_run<'a>(by: By, glance: &'a Glance<'_>) -> Option<&'a str> {
    match by {
        By::Agent => glance.agent.as_str(),
        By::Branch => glance.branch.as_str(),
        By::Image => glance.image.as_str(),
        By::Workspace => glance.workspace.as_str(),
        By::Host | By::Reason => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [&str; 4] = [
        r#"{"time":"2026-01-01T00:00:00.000Z","agent":"me","image":"i:1","egress_denied":5,"egress_denied_by_reason":{"not_allowed":4,"packet":1},
            "egress_denied_hosts":[{"host":"a","reason":"not_allowed","count":3},{"address":"192.0.2.1","reason":"packet","count":1}]}"#,
        r#"{"time":"2026-01-03T00:00:00.000Z","image":"i:2","egress_denied_at_least":2,"egress_denied_by_reason":{"not_allowed":2},
            "egress_denied_hosts":[{"host":"a","reason":"not_allowed","count":2}]}"#,
        r#"{"time":"2026-01-02T00:00:00.000Z","agent":"me","image":"i:1","detached":true}"#,
        r#"{"time":"2026-01-02T00:00:00.000Z","agent":"me","image":"i:1","network":"allowlist"}"#,
    ];

    fn tally(question: Question) -> Tally {
        let mut tally = Tally::new(question);
        for line in RUNS {
            tally.add(&serde_json::from_str(line).unwrap());
        }
        tally
    }

    fn rows(question: Question) -> Vec<(Option<String>, u64, bool, u64)> {
        let rows = tally(question).rows().into_iter();
        rows.map(|row| (row.key, row.count, row.at_least, row.runs))
            .collect()
    }

    #[test]
    fn each_kind_of_key_has_its_counts() {
        for (by, expected) in [
            (
                By::Host,
                vec![
                    (Some("a".to_owned()), 5, true, 2),
                    (Some("192.0.2.1".to_owned()), 1, false, 1),
                ],
            ),
            (
                By::Reason,
                vec![
                    (Some("not_allowed".to_owned()), 6, true, 2),
                    (Some("packet".to_owned()), 1, false, 1),
                ],
            ),
            (
                By::Agent,
                vec![(Some("me".to_owned()), 5, false, 1), (None, 2, true, 1)],
            ),
            (
                By::Image,
                vec![
                    (Some("i:1".to_owned()), 5, false, 1),
                    (Some("i:2".to_owned()), 2, true, 1),
                ],
            ),
            (By::Branch, vec![(None, 7, true, 2)]),
            (By::Workspace, vec![(None, 7, true, 2)]),
        ] {
            assert_eq!(rows(Question::by(by)), expected, "{by:?}");
        }
    }

    #[test]
    fn a_host_or_a_reason_narrows_what_is_counted() {
        let of_host = |host: &str, by| Question {
            host: Some(host.to_owned()),
            ..Question::by(by)
        };
        assert_eq!(
            rows(of_host("A", By::Agent)),
            [(Some("me".to_owned()), 3, false, 1), (None, 2, true, 1)]
        );
        assert_eq!(
            rows(of_host("192.0.2.1", By::Reason)),
            [(Some("packet".to_owned()), 1, false, 1)]
        );
        assert_eq!(rows(of_host("b", By::Host)), []);
        let of_reason = Question {
            reason: Some("packet".to_owned()),
            ..Question::by(By::Agent)
        };
        assert_eq!(rows(of_reason), [(Some("me".to_owned()), 1, false, 1)]);
    }

    #[test]
    fn what_no_host_accounts_for_is_counted_apart() {
        let by_host = tally(Question::by(By::Host));
        assert_eq!((by_host.denied, by_host.not_attributed), (7, 1));
        let by_reason = tally(Question::by(By::Reason));
        assert_eq!((by_reason.denied, by_reason.not_attributed), (7, 0));
    }

    #[test]
    fn launches_do_not_count_and_runs_that_nobody_reported_are_counted_apart() {
        let tally = tally(Question::by(By::Host));
        assert_eq!(
            (tally.runs, tally.unreported_runs, tally.forgeable_runs),
            (2, 1, 0)
        );
        assert!(tally.at_least);
    }

    #[test]
    fn the_last_time_is_the_latest_and_not_that_of_the_last_line() {
        let mut tally = Tally::new(Question::by(By::Host));
        for line in RUNS.iter().rev() {
            tally.add(&serde_json::from_str(line).unwrap());
        }
        assert_eq!(tally.rows()[0].last, "2026-01-03T00:00:00.000Z");
    }

    #[test]
    fn counts_that_a_guest_could_drive_up_do_not_overflow() {
        let mut tally = Tally::new(Question::by(By::Host));
        let huge = format!(
            r#"{{"time":"t","egress_denied":{0},"egress_denied_hosts":[{{"host":"a","count":{0}}},{{"host":"a","count":{0}}}]}}"#,
            u64::MAX
        );
        tally.add(&serde_json::from_str(&huge).unwrap());
        assert_eq!((tally.denied, tally.rows()[0].count), (u64::MAX, u64::MAX));
    }
}
