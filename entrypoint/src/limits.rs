//! What enforcement by address does not do, in sentences for the record.

use std::net::IpAddr;

use policy::{HostName, Policy};
use report::Printable;

/// The limits under this list, with these resolvers, where so many names did not resolve at first.
pub(crate) fn of(policy: &Policy, resolvers: &[IpAddr], unresolved: usize) -> Vec<Printable> {
    let mut limits = vec![SHARED.to_owned(), QUESTIONS.to_owned(), UNKNOWN.to_owned()];
    if resolvers.is_empty() {
        limits.push("no name is reached: /etc/resolv.conf has no resolver".to_owned());
    } else if unresolved > 0 {
        limits.push(format!(
            "{unresolved} of the list's names had not resolved when the guest started"
        ));
    }
    let mut wildcards = policy.wildcards();
    let named = wildcards.by_ref().take(MOST_NAMED);
    limits
        .extend(named.map(|entry| format!("not enforced by address, and allows nothing: {entry}")));
    let more = wildcards.count();
    if more > 0 {
        limits.push(format!("not enforced by address: {more} more wildcards"));
    }
    limits.iter().map(|limit| Printable::new(limit)).collect()
}

/// What of another list is not enforced, or leads nowhere yet, where there is such a thing.
pub(crate) fn of_another<'a>(
    policy: &Policy,
    unresolved: impl Iterator<Item = &'a HostName>,
) -> Option<Printable> {
    let unresolved = some_of(unresolved.map(HostName::as_str));
    let unresolved = unresolved.map(|names| format!("not resolved yet: {names}"));
    let wildcards = some_of(policy.wildcards());
    let wildcards = wildcards
        .map(|entries| format!("not enforced by address, and allowing nothing: {entries}"));
    let said: Vec<_> = unresolved.into_iter().chain(wildcards).collect();
    (!said.is_empty()).then(|| Printable::new(&said.join("; ")))
}

/// The line that whoever launches such a list should see; none where nothing of it is lost.
pub(crate) fn notice(policy: &Policy) -> Option<String> {
    some_of(policy.wildcards()).map(|named| {
        format!(
            "not enforced by address, and so allowing nothing: {named}; list names, or enforce by \
             `name`"
        )
    })
}

/// The first of them, and how many more there are.
fn some_of<'a>(mut all: impl Iterator<Item = &'a str>) -> Option<String> {
    let named: Vec<&str> = all.by_ref().take(MOST_SHOWN).collect();
    let more = all.count();
    let more = (more > 0).then(|| format!(" and {more} more"));
    (!named.is_empty()).then(|| named.join(", ") + &more.unwrap_or_default())
}

const SHARED: &str =
    "addresses decide: whoever shares one with a listed name is reachable on the same ports";
const QUESTIONS: &str = "DNS questions reach the container's resolvers, whatever name they are for, and so does what a name spells";
const UNKNOWN: &str =
    "connections that were let through are not known, neither by name nor by number";
/// Of entries that are spelled out: a report has room for so much.
const MOST_NAMED: usize = 16;

/// And of those on the terminal.
const MOST_SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(list: &str, resolvers: &[&str], unresolved: usize) -> Vec<String> {
        let resolvers: Vec<_> = resolvers.iter().map(|text| text.parse().unwrap()).collect();
        let policy = Policy::parse(list).unwrap();
        let all = of(&policy, &resolvers, unresolved);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_addresses_cannot_tell_is_always_said() {
        assert_eq!(
            limits("a.example", &["10.0.0.53"], 0),
            [SHARED, QUESTIONS, UNKNOWN]
        );
    }

    #[test]
    fn wildcards_are_named_and_many_of_them_are_counted() {
        let one = limits("*.a.example:22,b.example", &["10.0.0.53"], 0);
        assert_eq!(
            one[3],
            "not enforced by address, and allows nothing: *.a.example:22"
        );
        let many: Vec<String> = (0..100).map(|n| format!("*.n{n}.example")).collect();
        let told = limits(&many.join(","), &["10.0.0.53"], 0);
        assert_eq!(told.len(), 3 + MOST_NAMED + 1);
        assert_eq!(
            told.last().unwrap(),
            "not enforced by address: 84 more wildcards"
        );
    }

    #[test]
    fn whoever_launches_is_told_of_wildcards_in_one_line_and_else_of_nothing() {
        let told = |list| notice(&Policy::parse(list).unwrap());
        assert_eq!(told("a.example,10.0.0.0/8,!*.b.example"), None);
        assert!(
            told("*.a.example")
                .unwrap()
                .contains(": *.a.example; list names")
        );
        let many: Vec<String> = (0..9).map(|n| format!("*.n{n}.example")).collect();
        let line = told(&many.join(",")).unwrap();
        assert!(
            line.contains("*.n3.example and 5 more;") && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn of_another_list_it_is_told_what_leads_nowhere_and_else_nothing() {
        let told = |list: &str, unresolved: &[&str]| {
            let names: Vec<_> = unresolved
                .iter()
                .map(|name| HostName::parse(name))
                .collect();
            let names = names.iter().flatten();
            of_another(&Policy::parse(list).unwrap(), names).map(|said| said.to_string())
        };
        assert_eq!(told("a.example,!*.b.example", &[]), None);
        assert_eq!(
            told("a.example", &["a.example"]).unwrap(),
            "not resolved yet: a.example"
        );
        assert_eq!(
            told("*.a.example:22", &["b.example", "c.example"]).unwrap(),
            "not resolved yet: b.example, c.example; \
             not enforced by address, and allowing nothing: *.a.example:22"
        );
        let many: Vec<String> = (0..9).map(|n| format!("n{n}.example")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let line = told("a.example", &many).unwrap();
        assert!(line.ends_with("n3.example and 5 more"), "{line}");
    }

    #[test]
    fn names_that_lead_nowhere_yet_are_counted() {
        let told = limits("a.example", &["10.0.0.53"], 1);
        assert!(told[3].starts_with("1 of the list's names"), "{told:?}");
        let told = limits("a.example", &[], 1);
        assert!(told[3].contains("resolv.conf"), "{told:?}");
    }

    #[test]
    fn all_of_it_fits_a_report() {
        let long = "n".repeat(60);
        let entry = |n: usize| format!("*.{long}.{long}.{long}.n{n}.example:1000-2000/tcp");
        let list: Vec<String> = (0..100).map(entry).collect();
        let told = limits(&list.join(","), &["10.0.0.53"], 100);
        let length: usize = told.iter().map(String::len).sum();
        assert!(length < report::MAX_FRAME / 2, "{length}");
    }
}
