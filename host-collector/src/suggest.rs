//! The smallest change of an allowlist that would have let refused attempts pass, for a person to
//! read and to paste. Nothing here is ever applied by itself: the names come from a guest.

mod entry;
mod wider;

use std::collections::{BTreeMap, BTreeSet};

use policy::{Decision, Denial, DenyReason, Destination, Policy};
use report::Printable;
use serde::Serialize;

use crate::session::{DeniedHost, Session};
pub(crate) use entry::{entry, is_question};
pub use wider::Wider;

/// What to add, and what no addition helps. As JSON its fields are stable.
#[derive(Debug, Default, Serialize)]
pub struct Suggestion {
    /// Runs that were looked at.
    pub runs: u64,
    /// What to give to `run`; empty where nothing helps.
    pub flags: Vec<String>,
    /// Entries to add, those of the most attempts first.
    pub add: Vec<Addition>,
    /// Wider entries that would replace several of these, each with what it lets through besides.
    pub alternatives: Vec<Wider>,
    /// What no entry would have helped.
    pub not_helped: Vec<Unhelped>,
    /// Entries and targets that there is no room for.
    pub left_out: u64,
    /// Runs of which the record holds only a sample of the refused targets.
    pub sampled_runs: u64,
    /// Runs whose list was cut in the record: what the rest of it says is not known.
    pub cut_lists: u64,
}

/// An entry to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Addition {
    /// As the list takes it.
    pub entry: String,
    /// Refused attempts that it would have let pass.
    pub attempts: u64,
    /// In how many runs.
    pub runs: u64,
    /// What was asked for, some of it if it is much.
    pub targets: BTreeSet<String>,
    /// What the list says of it already: a near miss.
    pub hint: Option<String>,
    #[serde(skip)]
    name: Option<String>,
    /// Whether nobody has said on which port: the name was only asked for.
    #[serde(skip)]
    is_question: bool,
}

/// Attempts that no entry helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unhelped {
    /// What was asked for.
    pub target: String,
    /// Why it was refused.
    pub reason: String,
    /// How often.
    pub attempts: u64,
    /// Why no entry helps, and what does.
    pub why: String,
}

/// Draws the suggestion from the lines of some runs.
#[must_use]
pub fn suggest<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> Suggestion {
    let mut drawn = Drawn::default();
    for session in sessions {
        drawn.run(session);
    }
    drawn.finish()
}

#[derive(Default)]
struct Drawn {
    suggestion: Suggestion,
    add: BTreeMap<String, Addition>,
    unhelped: BTreeMap<(String, String), Unhelped>,
}

impl Drawn {
    fn run(&mut self, session: &Session) {
        let Some(denied) = &session.network.egress_denied_hosts else {
            return;
        };
        self.suggestion.runs += 1;
        self.suggestion.sampled_runs += u64::from(is_sample(session, denied));
        self.suggestion.cut_lists += u64::from(session.launch.egress_allow_truncated);
        let list = session.launch.egress_allow.as_deref().unwrap_or_default();
        let before = Policy::from_entries(list).ok();
        let mut seen = BTreeSet::new();
        for host in denied {
            match remedy(host, list, before.as_ref()) {
                Ok((entry, hint)) => {
                    let is_new = seen.insert(entry.clone());
                    self.add(entry, host, hint, is_new);
                }
                Err(why) => self.no_help(host, why),
            }
        }
    }

    fn add(&mut self, entry: String, host: &DeniedHost, hint: Option<String>, is_new: bool) {
        let addition = self.add.entry(entry.clone()).or_insert_with(|| Addition {
            entry,
            attempts: 0,
            runs: 0,
            targets: BTreeSet::new(),
            hint: None,
            name: host.host.clone(),
            is_question: is_question(host),
        });
        addition.attempts = addition.attempts.saturating_add(host.count);
        addition.runs += u64::from(is_new);
        addition.is_question &= is_question(host);
        addition.hint = addition.hint.take().or(hint);
        if addition.targets.len() < TARGETS {
            addition.targets.insert(host.target());
        }
    }

    fn no_help(&mut self, host: &DeniedHost, why: String) {
        let reason = Printable::new(&host.reason).to_string();
        let unhelped = self
            .unhelped
            .entry((host.target(), reason.clone()))
            .or_insert_with(|| Unhelped {
                target: host.target(),
                reason,
                attempts: 0,
                why,
            });
        unhelped.attempts = unhelped.attempts.saturating_add(host.count);
    }

    fn finish(mut self) -> Suggestion {
        fold_questions(&mut self.add);
        let mut suggestion = self.suggestion;
        suggestion.add = self.add.into_values().collect();
        suggestion
            .add
            .sort_by_key(|addition| u64::MAX - addition.attempts);
        suggestion.not_helped = self.unhelped.into_values().collect();
        suggestion
            .not_helped
            .sort_by_key(|unhelped| u64::MAX - unhelped.attempts);
        for length in [suggestion.add.len(), suggestion.not_helped.len()] {
            suggestion.left_out += length.saturating_sub(SHOWN) as u64;
        }
        suggestion.add.truncate(SHOWN);
        suggestion.not_helped.truncate(SHOWN);
        suggestion.alternatives = wider::wider(&suggestion.add);
        if !suggestion.add.is_empty() {
            let entries: Vec<&str> = suggestion
                .add
                .iter()
                .map(|add| add.entry.as_str())
                .collect();
            suggestion.flags = vec!["--allow".to_owned(), entries.join(",")];
        }
        suggestion
    }
}

/// The entry that lets an attempt pass beside those there are, with what these say of it; or why
/// there is none.
fn remedy(
    host: &DeniedHost,
    list: &[String],
    before: Option<&Policy>,
) -> Result<(String, Option<String>), String> {
    let to = destination(host);
    let near = before
        .zip(to.as_ref())
        .map(|(policy, to)| policy.decide(to));
    let mut hint = None;
    match &near {
        Some(Decision::Deny(denial)) => {
            hint.clone_from(&denial.hint);
            if let Some(meant) = denial.hint.as_ref().filter(|_| is_misspelt(host, denial)) {
                return Err(format!(
                    "{meant} The name is a slip of that, or made to look like it"
                ));
            }
        }
        Some(Decision::Allow(permit)) if entry::is_of_the_list(host) => {
            return Err(format!("`{}` allows it by now", permit.rule()));
        }
        Some(Decision::Allow(_)) | None => {}
    }
    let entry = entry(host).map_err(|why| match (why.is_explained_by_rule, &hint) {
        (true, Some(hint)) => hint.clone(),
        _ => why.text.to_owned(),
    })?;
    // Names come from a guest: only what the grammar takes is put into somebody's shell, and only
    // what then decides as it should is suggested.
    let entries = list.iter().chain([&entry]);
    let after = Policy::from_entries(entries).map_err(|error| error.to_string())?;
    match to.map(|to| after.decide(&to)) {
        Some(Decision::Deny(denial)) => Err(denial
            .hint
            .unwrap_or_else(|| format!("`{entry}` would not be enough"))),
        Some(Decision::Allow(_)) | None => Ok((entry, hint)),
    }
}

/// Whether the nearest entry is near in its letters only, and not in the tree of names. To allow such
/// a name is what those who register misspelt names wait for.
fn is_misspelt(host: &DeniedHost, denial: &Denial) -> bool {
    let (Some(name), Some(nearest)) = (&host.host, &denial.nearest) else {
        return false;
    };
    let nearest = nearest.strip_prefix("*.").unwrap_or(nearest);
    let nearest = nearest.split([':', '/', '@']).next().unwrap_or(nearest);
    let below = |name: &str, parent: &str| {
        name.strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    // Beside each other below somebody's domain they are that somebody's.
    let siblings = name.split_once('.').is_some_and(|(_, parent)| {
        below(nearest, parent) && Policy::from_entries([format!("*.{parent}")]).is_ok()
    });
    let apart = !siblings && !below(name, nearest) && !below(nearest, name);
    denial.reason == DenyReason::NotAllowed && entry::is_of_the_list(host) && apart
}

/// Where it wanted to go, as policy is asked. Of a name that was only asked for, the port that it
/// most likely wanted.
fn destination(host: &DeniedHost) -> Option<Destination> {
    let name = host.host.as_deref().or(host.address.as_deref())?;
    let port = host.port.filter(|_| !is_question(host));
    Destination::parse(name, port.unwrap_or(443)).ok()
}

/// A name that was asked for and then connected to needs one entry, that of the connection.
fn fold_questions(add: &mut BTreeMap<String, Addition>) {
    let mut connected = BTreeMap::new();
    for addition in add.values().filter(|addition| !addition.is_question) {
        if let Some(name) = &addition.name {
            connected.insert(name.clone(), addition.entry.clone());
        }
    }
    let folded: Vec<(String, String)> = add
        .values()
        .filter(|addition| addition.is_question)
        .filter_map(|addition| {
            let into = connected.get(addition.name.as_ref()?)?;
            Some((addition.entry.clone(), into.clone()))
        })
        .collect();
    for (question, into) in folded {
        let Some(question) = add.remove(&question) else {
            continue;
        };
        if let Some(addition) = add.get_mut(&into) {
            addition.attempts = addition.attempts.saturating_add(question.attempts);
            addition.targets.extend(question.targets);
        }
    }
}

fn is_sample(session: &Session, denied: &[DeniedHost]) -> bool {
    let network = &session.network;
    let distinct = network.egress_denied_hosts_distinct.unwrap_or(0);
    network.egress_denied_hosts_truncated || distinct > denied.len() as u64
}

/// Entries that anybody reads before pasting.
const SHOWN: usize = 100;
const TARGETS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Launched, Network};

    pub(super) fn denied(target: &str, reason: &str, count: u64) -> DeniedHost {
        let (name, port) = match target.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().unwrap())),
            None => (target, None),
        };
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        DeniedHost {
            host: (!is_address).then(|| name.to_owned()),
            address: is_address.then(|| name.to_owned()),
            port,
            proto: report::Transport::Tcp,
            reason: reason.into(),
            count,
            first_ms: 0,
            last_ms: 0,
            at_least: false,
        }
    }

    fn session(list: &[&str], denied: Vec<DeniedHost>) -> Session {
        let list = list.iter().map(|entry| (*entry).to_owned()).collect();
        Session {
            launch: Launched {
                egress_allow: Some(list),
                ..Launched::default()
            },
            network: Network {
                egress_denied_hosts_distinct: Some(denied.len() as u64),
                egress_denied_hosts: Some(denied),
                ..Network::default()
            },
            ..Session::default()
        }
    }

    fn flags(list: &[&str], hosts: Vec<DeniedHost>) -> String {
        suggest([&session(list, hosts)]).flags.join(" ")
    }

    #[test]
    fn the_smallest_change_is_one_entry_for_each_name_and_odd_port() {
        let hosts = vec![
            denied("a.example:443", "not_allowed", 5),
            denied("a.example:80", "not_allowed", 1),
            denied("b.example:22", "not_allowed", 4),
            denied("b.example:53", "dns_not_allowed", 9),
            denied("c.example:53", "dns_not_allowed", 2),
        ];
        assert_eq!(
            flags(&["listed.test"], hosts),
            "--allow b.example:22,a.example,c.example"
        );
    }

    #[test]
    fn every_suggestion_lets_the_attempt_pass_beside_the_list_there_is() {
        let list = [
            "listed.test",
            "*.y.example",
            "!evil.y.example",
            "git.example:22",
        ];
        let hosts = vec![
            denied("y.example:443", "not_allowed", 1),
            denied("listed.test:8443", "port_not_allowed", 1),
            denied("198.51.100.7:5432", "address_literal", 1),
            denied("git.example:443", "port_not_allowed", 1),
        ];
        let suggestion = suggest([&session(&list, hosts.clone())]);
        assert_eq!(suggestion.not_helped, []);
        let entries = list.iter().copied();
        let policy =
            Policy::from_entries(entries.chain(suggestion.add.iter().map(|a| a.entry.as_str())));
        for host in hosts {
            let decision = policy
                .as_ref()
                .unwrap()
                .decide(&destination(&host).unwrap());
            assert!(matches!(decision, Decision::Allow(_)), "{host:?}");
        }
    }

    #[test]
    fn a_near_miss_is_explained_by_the_code_that_enforces() {
        let hosts = vec![denied("y.example:443", "not_allowed", 2)];
        let suggestion = suggest([&session(&["*.y.example", "github.com"], hosts)]);
        let hint = suggestion.add[0].hint.as_deref();
        assert_eq!(
            hint,
            Some("`*.y.example` does not cover `y.example`; add `y.example`")
        );
    }

    #[test]
    fn a_name_that_is_a_slip_of_another_is_told_and_not_added() {
        for (name, list) in [
            ("gihub.com:443", "github.com"),
            ("api.githab.com:443", "api.github.com:443"),
        ] {
            let hosts = vec![denied(name, "not_allowed", 1)];
            let suggestion = suggest([&session(&[list], hosts)]);
            assert_eq!(suggestion.flags, [""; 0], "{name}");
            let why = &suggestion.not_helped[0].why;
            assert!(why.starts_with("did you mean `"), "{why}");
        }
        for (name, list) in [
            ("gist.github.com:443", "github.com"),
            ("eu.api.example:443", "us.api.example"),
        ] {
            let hosts = vec![denied(name, "not_allowed", 1)];
            let suggestion = suggest([&session(&[list], hosts)]);
            assert_eq!(format!("{}:443", suggestion.add[0].entry), name);
        }
    }

    #[test]
    fn what_a_rule_denies_or_allows_by_now_is_not_added() {
        let hosts = vec![
            denied("evil.example:443", "denied_by_rule", 3),
            denied("sub.bad.example:443", "not_allowed", 2),
            denied("a.example:443", "not_allowed", 1),
        ];
        let list = ["a.example", "!evil.example", "!*.bad.example"];
        let suggestion = suggest([&session(&list, hosts)]);
        assert_eq!((suggestion.add, suggestion.flags), (vec![], vec![]));
        let whys: Vec<_> = suggestion
            .not_helped
            .iter()
            .map(|no| no.why.as_str())
            .collect();
        assert_eq!(
            whys,
            [
                "`!evil.example` denies it, and no other entry can overrule that",
                "`!*.bad.example` denies it, and no other entry can overrule that",
                "`a.example` allows it by now"
            ]
        );
    }

    #[test]
    fn what_a_guest_made_up_does_not_get_into_anybody_s_shell() {
        let hosts = [
            "a; rm -rf /",
            "$(x)",
            "*",
            "*.com",
            "a\n--engine-arg",
            "a,b.example",
            "@github",
            "!x.example",
        ]
        .map(|name| DeniedHost {
            host: Some(name.into()),
            ..denied("x:443", "not_allowed", 1)
        });
        let suggestion = suggest([&session(&["listed.test"], hosts.to_vec())]);
        assert_eq!(suggestion.flags, [""; 0], "{:?}", suggestion.add);
        assert_eq!(suggestion.not_helped.len(), hosts.len());
        for no in suggestion.not_helped {
            assert!(
                !format!("{}{}", no.target, no.why).contains(char::is_control),
                "{no:?}"
            );
        }
    }

    #[test]
    fn attempts_add_up_over_runs_and_each_run_counts_once() {
        let one = session(
            &["listed.test"],
            vec![
                denied("a.example:443", "not_allowed", 2),
                denied("a.example:80", "not_allowed", 1),
            ],
        );
        let other = session(
            &["other.test"],
            vec![denied("a.example:443", "not_allowed", 4)],
        );
        let suggestion = suggest([&one, &other]);
        let add = &suggestion.add[0];
        assert_eq!(
            (suggestion.runs, add.runs, add.attempts, add.targets.len()),
            (2, 2, 7, 2)
        );
    }

    #[test]
    fn a_sample_and_a_cut_list_are_said_to_be_that() {
        let mut sampled = session(
            &["listed.test"],
            vec![denied("a.example:443", "not_allowed", 2)],
        );
        sampled.network.egress_denied_hosts_distinct = Some(5000);
        sampled.launch.egress_allow_truncated = true;
        let suggestion = suggest([&sampled]);
        assert_eq!((suggestion.sampled_runs, suggestion.cut_lists), (1, 1));
        let unwatched = Session::default();
        assert_eq!(suggest([&unwatched]).runs, 0);
    }

    #[test]
    fn more_than_anybody_reads_is_left_out_and_counted() {
        let hosts = (0..150).map(|n| denied(&format!("h{n}.a{n}.example:443"), "not_allowed", n));
        let suggestion = suggest([&session(&["listed.test"], hosts.collect())]);
        assert_eq!((suggestion.add.len(), suggestion.left_out), (SHOWN, 50));
        assert_eq!(suggestion.add[0].entry, "h149.a149.example");
    }

    #[test]
    fn a_list_that_cannot_be_read_any_more_does_not_keep_names_from_being_suggested() {
        let hosts = vec![denied("a.example:443", "not_allowed", 2)];
        let mut broken = session(&["not a list"], hosts.clone());
        assert!(suggest([&broken]).flags.is_empty());
        broken.launch.egress_allow = None;
        assert_eq!(suggest([&broken]).flags, ["--allow", "a.example"]);
    }
}
