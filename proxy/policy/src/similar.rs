//! Finds the one name that a misspelt name was probably meant to be, in bounded time.
//!
//! It runs on the path of a denial, which a guest can take as often as it likes, so the work may
//! not grow with the list: names are grouped by length, told apart by the letters they have, and
//! where too many remain there is no suggestion.

use crate::entry::Effect;
use crate::rule::{RuleId, Scope};
use crate::rules::Rules;

/// The names that some rule allows, by their length; `None` where there are too many of a length
/// for any of them to be looked at.
#[derive(Debug)]
pub(crate) struct Similar {
    by_length: Vec<Option<Vec<Candidate>>>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    letters: u32,
    rule: RuleId,
}

impl Similar {
    /// Groups the names of these rules; [`Similar::nearest`] is to be asked about the same ones.
    pub(crate) fn new(rules: &Rules) -> Self {
        let mut by_length = Vec::new();
        for (rule, packed) in rules.iter() {
            let Scope::Exact(length) = packed.scope else {
                continue;
            };
            let length = usize::from(length);
            if by_length.len() <= length {
                by_length.resize_with(length + 1, || Some(Vec::new()));
            }
            if let Some(group) = by_length.get_mut(length) {
                add(group, rules, rule);
            }
        }
        Self { by_length }
    }

    /// The rule whose name is nearest to `name`, if that is one or two edits away and no other is as
    /// near.
    pub(crate) fn nearest(&self, rules: &Rules, name: &str) -> Option<RuleId> {
        let own = letters(name);
        // An edit takes away at most one letter and adds one.
        let alike = |candidate: &&Candidate| (candidate.letters ^ own).count_ones() <= 2 * FARTHEST;
        let mut compared = 0;
        let mut nearest = None;
        let mut farthest = FARTHEST + 1;
        for candidate in self.near_length(name.len())?.filter(alike) {
            compared += 1;
            if compared > MOST_COMPARED {
                return None;
            }
            let Some(distance) = distance(name, rules.name(candidate.rule)) else {
                continue;
            };
            if distance < farthest {
                (nearest, farthest) = (Some(candidate.rule), distance);
            } else if distance == farthest {
                // Two that are equally near: which was meant is a guess.
                nearest = None;
            }
        }
        nearest
    }

    /// The names whose length does not rule them out; `None` if there are too many.
    fn near_length(&self, length: usize) -> Option<impl Iterator<Item = &Candidate>> {
        let reach = FARTHEST as usize;
        let groups = self
            .by_length
            .iter()
            .take(length + reach + 1)
            .skip(length.saturating_sub(reach));
        let mut count = 0;
        for group in groups.clone() {
            count += group.as_ref()?.len();
        }
        (count <= MOST_SCANNED).then(|| groups.flatten().flatten())
    }
}

/// Adds the rule to the names of its length, unless another one stands for its name already.
fn add(group: &mut Option<Vec<Candidate>>, rules: &Rules, rule: RuleId) {
    let Some(names) = group else { return };
    let name = rules.name(rule);
    if first_allow(rules, name) != Some(rule) {
        return;
    }
    names.push(Candidate {
        letters: letters(name),
        rule,
    });
    if names.len() > MOST_SCANNED {
        *group = None;
    }
}

/// The rule that stands for a name, of which there may be several rules.
fn first_allow(rules: &Rules, name: &str) -> Option<RuleId> {
    rules
        .exact(name)
        .find(|(_, rule)| rule.terms.effect == Effect::Allow)
        .map(|(id, _)| id)
}

/// The edits from one name to the other, swapping neighbours counted as one; `None` if they are too
/// many, or so many for so short a name that the two have little in common.
fn distance(a: &str, b: &str) -> Option<u32> {
    let shorter = a.len().min(b.len());
    let (a, b) = without_common_ends(a, b);
    if a.len().max(b.len()) > LONGEST_COMPARED {
        return None;
    }
    let edits = u32::try_from(strsim::osa_distance(a, b)).ok()?;
    (edits <= FARTHEST && shorter > 3 * edits as usize).then_some(edits)
}

/// What is left to compare, for two names that differ in little.
fn without_common_ends<'a>(a: &'a str, b: &'a str) -> (&'a str, &'a str) {
    let same = |(x, y): &(u8, u8)| x == y;
    let prefix = a.bytes().zip(b.bytes()).take_while(same).count();
    let (a, b) = (
        a.get(prefix..).unwrap_or_default(),
        b.get(prefix..).unwrap_or_default(),
    );
    let suffix = a
        .bytes()
        .rev()
        .zip(b.bytes().rev())
        .take_while(same)
        .count();
    (
        a.get(..a.len() - suffix).unwrap_or_default(),
        b.get(..b.len() - suffix).unwrap_or_default(),
    )
}

/// A bit for each letter that occurs; a few digits share theirs with letters, which only lets a
/// candidate pass that is then compared.
fn letters(name: &str) -> u32 {
    name.bytes().fold(0, |set, byte| set | 1 << (byte % 32))
}

/// How many edits a slip of the finger makes.
const FARTHEST: u32 = 2;
/// How many names are looked at: a quarter of a microsecond.
const MOST_SCANNED: usize = 256;
/// How many of them are compared letter by letter: a microsecond or two.
const MOST_COMPARED: usize = 8;
/// The longest stretch that is compared, in bytes: the cost is its square.
const LONGEST_COMPARED: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(entries: &[&str], name: &str) -> Option<String> {
        let rules = Rules::of(entries);
        let found = Similar::new(&rules).nearest(&rules, name)?;
        Some(rules.name(found).to_owned())
    }

    #[test]
    fn one_or_two_edits_are_a_slip() {
        let list = [
            "api.github.com",
            "pypi.example",
            "*.example.net",
            "10.0.0.0/8",
        ];
        for (name, meant) in [
            ("api.githb.com", Some("api.github.com")),
            ("apii.github.com", Some("api.github.com")),
            ("api.gihtub.com", Some("api.github.com")),
            ("api.guthob.com", Some("api.github.com")),
            ("api.gathob.con", None),
            ("pypy.example", Some("pypi.example")),
            ("example.org", None),
            ("evilapi.github.com", None),
        ] {
            assert_eq!(nearest(&list, name).as_deref(), meant, "{name}");
        }
    }

    #[test]
    fn two_names_equally_near_are_no_suggestion() {
        assert_eq!(
            nearest(
                &["host1.example.com", "host2.example.com"],
                "host3.example.com"
            ),
            None
        );
        // The nearer one wins, whichever comes first.
        for list in [
            ["host12.example.com", "host3.example.com"],
            ["host3.example.com", "aost34.example.com"],
        ] {
            assert_eq!(
                nearest(&list, "host33.example.com").as_deref(),
                Some("host3.example.com"),
                "{list:?}"
            );
        }
    }

    #[test]
    fn two_rules_of_one_name_are_one_suggestion() {
        let list = ["github.com", "github.com:22", "!github.com:25"];
        assert_eq!(nearest(&list, "githib.com").as_deref(), Some("github.com"));
    }

    #[test]
    fn a_denied_name_is_not_suggested() {
        assert_eq!(nearest(&["!github.com", "example.com"], "githib.com"), None);
    }

    #[test]
    fn short_names_have_too_little_in_common() {
        assert_eq!(nearest(&["a.io"], "b.io").as_deref(), Some("a.io"));
        assert_eq!(nearest(&["ab.io"], "cd.io"), None);
        assert_eq!(nearest(&["db"], "da"), None);
    }

    #[test]
    fn a_crowd_of_alike_names_is_not_searched() {
        let alike: Vec<String> = (100..=100 + MOST_COMPARED)
            .map(|i| format!("node{i}.example.com"))
            .collect();
        let mut list: Vec<&str> = alike.iter().map(String::as_str).collect();
        assert_eq!(nearest(&list, "nodes100.example.com"), None);
        list.truncate(1);
        assert_eq!(
            nearest(&list, "nodes100.example.com").as_deref(),
            Some("node100.example.com")
        );
        let many: Vec<String> = (0..=MOST_SCANNED).map(|i| format!("{i:03}.zzz")).collect();
        let mut list: Vec<&str> = many.iter().map(String::as_str).collect();
        list.push("abcdefg");
        assert_eq!(nearest(&list, "abcdefh"), None);
    }

    #[test]
    fn a_long_name_costs_no_more_than_a_short_one() {
        let long = format!("{}.example.com", "ab".repeat(30));
        let swapped = format!("{}.example.com", "ba".repeat(30));
        assert_eq!(nearest(&[&long], &swapped), None);
    }
}
