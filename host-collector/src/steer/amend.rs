//! The list that another list becomes by allowing or denying some entries.

use std::collections::BTreeSet;

use policy::{Policy, PolicyError};
use serde::{Deserialize, Serialize};

/// Which way a list is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// The entries are to be allowed: each is added, and the denial of it is withdrawn, since that
    /// would win.
    Allow,
    /// The entries are to be denied: each is withdrawn, and its denial, which wins over whatever
    /// else allows, is added.
    Deny,
}

/// A list, and how it differs from the one before it.
#[derive(Debug)]
pub(crate) struct Amendment {
    pub(crate) policy: Policy,
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    /// What is odd about the list and was not before.
    pub(crate) warnings: Vec<String>,
}

/// Changes `list`, which is canonical; `None` if it says all that already.
pub(super) fn amend(
    list: &BTreeSet<String>,
    direction: Direction,
    entries: &[String],
) -> Result<Option<Amendment>, PolicyError> {
    let mut next = list.clone();
    for entry in Policy::from_entries(entries)?.entries() {
        let denial = denial_of(&entry);
        let (gone, come) = match direction {
            Direction::Allow => (denial, entry),
            Direction::Deny => (entry, denial),
        };
        if gone != come {
            next.remove(&gone);
        }
        next.insert(come);
    }
    if next == *list {
        return Ok(None);
    }
    let policy = Policy::from_entries(&next)?;
    // Spelled as the policy spells it: a denial has a canonical form of its own.
    let next: BTreeSet<String> = policy.entries().into_iter().collect();
    let (before, now) = (warnings_of(list), warnings_of(&next));
    Ok((next != *list).then(|| Amendment {
        added: next.difference(list).cloned().collect(),
        removed: list.difference(&next).cloned().collect(),
        warnings: now.difference(&before).cloned().collect(),
        policy,
    }))
}

/// The entry that denies what this one allows, wherever it may resolve to; a denial denies already.
fn denial_of(entry: &str) -> String {
    if entry.starts_with('!') {
        return entry.to_owned();
    }
    let target = entry.split_once('@').map_or(entry, |(target, _)| target);
    format!("!{target}")
}

fn warnings_of(list: &BTreeSet<String>) -> BTreeSet<String> {
    let policy = Policy::from_entries(list);
    policy.map_or_else(
        |_| BTreeSet::new(),
        |policy| policy.warnings().iter().map(ToString::to_string).collect(),
    )
}

#[cfg(test)]
mod tests {
    use policy::{Decision, Destination};

    use super::*;

    fn list(entries: &str) -> BTreeSet<String> {
        let policy = Policy::parse(entries).unwrap();
        policy.entries().into_iter().collect()
    }

    fn amended(before: &str, direction: Direction, entries: &str) -> Amendment {
        let entries = [entries.to_owned()];
        amend(&list(before), direction, &entries).unwrap().unwrap()
    }

    fn allows(policy: &Policy, host: &str, port: u16) -> bool {
        let to = Destination::parse(host, port).unwrap();
        matches!(policy.decide(&to), Decision::Allow(_))
    }

    #[test]
    fn what_is_allowed_is_added_and_its_denial_withdrawn() {
        let amendment = amended("a.example, !b.example", Direction::Allow, "B.example.");
        assert_eq!(amendment.added, ["b.example"]);
        assert_eq!(amendment.removed, ["!b.example"]);
        assert!(allows(&amendment.policy, "b.example", 443));
    }

    #[test]
    fn what_is_denied_is_withdrawn_and_denied_on_every_port() {
        let before = "a.example.com, b.example.com, b.example.com:22, *.example.com";
        let amendment = amended(before, Direction::Deny, "b.example.com");
        assert_eq!(amendment.added, ["!b.example.com"]);
        assert_eq!(amendment.removed, ["b.example.com"]);
        for port in [22, 80, 443] {
            assert!(!allows(&amendment.policy, "b.example.com", port), "{port}");
        }
        assert!(allows(&amendment.policy, "c.example.com", 443));
        // The entry that has come to nothing is told of.
        assert!(
            amendment
                .warnings
                .iter()
                .any(|warning| warning.contains("b.example.com:22")),
            "{:?}",
            amendment.warnings
        );
    }

    #[test]
    fn a_port_that_is_denied_leaves_the_others() {
        let amendment = amended("b.example", Direction::Deny, "b.example:443");
        assert_eq!(amendment.added, ["!b.example:443"]);
        assert_eq!(amendment.removed, [] as [&str; 0]);
        assert!(!allows(&amendment.policy, "b.example", 443));
        assert!(allows(&amendment.policy, "b.example", 80));
    }

    #[test]
    fn a_name_that_may_resolve_into_a_range_is_denied_wherever_it_resolves_to() {
        for entry in ["b.example@10.0.0.0/8", "b.example:22@10.0.0.0/8"] {
            let denied = amended(entry, Direction::Deny, entry);
            assert_eq!(denied.removed, [entry]);
            let back = amended(&denied.policy.entries().join(","), Direction::Allow, entry);
            assert_eq!(back.policy.entries(), [entry]);
        }
    }

    #[test]
    fn addresses_and_wildcards_are_denied_like_names() {
        let before = "203.0.113.0/24, [2001:db8::/32]:22, *.b.example";
        let amendment = amended(before, Direction::Deny, before);
        assert_eq!(
            amendment.policy.entries(),
            ["!*.b.example", "!203.0.113.0/24", "![2001:db8::/32]:22"]
        );
    }

    #[test]
    fn a_list_that_says_it_already_is_not_changed() {
        for (before, direction, entry) in [
            (
                "a.example",
                Direction::Allow,
                "a.example:443/tls, a.example",
            ),
            ("a.example, !b.example", Direction::Deny, "b.example"),
        ] {
            let entries = [entry.replace("a.example:443/tls, ", "")];
            let amendment = amend(&list(before), direction, &entries).unwrap();
            assert!(amendment.is_none(), "{entry}");
        }
    }

    #[test]
    fn an_allow_that_a_denial_hides_is_warned_about() {
        let amendment = amended("!*.example.com", Direction::Allow, "a.example.com");
        assert!(!allows(&amendment.policy, "a.example.com", 443));
        assert_eq!(amendment.warnings.len(), 1, "{:?}", amendment.warnings);
    }

    #[test]
    fn a_malformed_entry_is_an_error() {
        let entries = ["https://a.example/".to_owned()];
        assert!(amend(&list("a.example"), Direction::Allow, &entries).is_err());
    }
}
