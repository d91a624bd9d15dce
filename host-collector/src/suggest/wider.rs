//! Wildcards that would replace several entries: offered with what they let through besides, and
//! only where policy takes them, which is never over names that belong to different people.

use std::collections::BTreeMap;

use policy::Policy;
use serde::Serialize;

use super::Addition;

/// A wider entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wider {
    /// As the list takes it.
    pub entry: String,
    /// The entries that it would replace.
    pub instead_of: Vec<String>,
    /// What it lets through besides.
    pub widens: String,
}

/// Those that would replace at least [`SIBLINGS`] entries each.
pub(super) fn wider(add: &[Addition]) -> Vec<Wider> {
    let mut siblings: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for addition in add {
        // A wildcard without ports covers what was refused on the usual ones.
        let is_plain = addition.name.as_deref() == Some(&addition.entry);
        if let Some((_, parent)) = addition.entry.split_once('.').filter(|_| is_plain) {
            siblings
                .entry(parent)
                .or_default()
                .push(addition.entry.clone());
        }
    }
    let wide = siblings.into_iter().filter_map(|(parent, instead_of)| {
        let entry = format!("*.{parent}");
        let is_sound = instead_of.len() >= SIBLINGS && Policy::from_entries([&entry]).is_ok();
        is_sound.then(|| Wider {
            entry,
            instead_of,
            widens: format!(
                "every name below {parent}, also such as a guest makes up to say something to its \
                 name server"
            ),
        })
    });
    wide.collect()
}

/// Two of a kind are no pattern.
const SIBLINGS: usize = 3;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn additions(entries: &[&str]) -> Vec<Addition> {
        let addition = |entry: &&str| Addition {
            entry: (*entry).to_owned(),
            attempts: 1,
            runs: 1,
            targets: BTreeSet::new(),
            hint: None,
            name: Some(entry.split(':').next().unwrap().to_owned()),
            is_question: false,
        };
        entries.iter().map(addition).collect()
    }

    fn entries(names: &[&str]) -> Vec<String> {
        let wider = wider(&additions(names)).into_iter();
        wider.map(|wider| wider.entry).collect()
    }

    #[test]
    fn siblings_have_a_wildcard_as_an_alternative() {
        let wider = wider(&additions(&[
            "a.cdn.example",
            "b.cdn.example",
            "c.cdn.example",
            "x.example",
        ]));
        assert_eq!(wider.len(), 1);
        assert_eq!(
            (wider[0].entry.as_str(), wider[0].instead_of.len()),
            ("*.cdn.example", 3)
        );
        assert!(wider[0].widens.starts_with("every name below cdn.example"));
    }

    #[test]
    fn two_are_no_pattern_and_other_ports_are_none_of_it() {
        assert_eq!(entries(&["a.cdn.example", "b.cdn.example"]), [""; 0]);
        assert_eq!(
            entries(&["a.cdn.example:22", "b.cdn.example", "c.cdn.example"]),
            [""; 0]
        );
    }

    #[test]
    fn names_of_different_people_have_no_wildcard() {
        for suffix in ["com", "co.uk", "github.io", "example"] {
            let names = ["a", "b", "c", "d"].map(|name| format!("{name}.{suffix}"));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(entries(&names), [""; 0], "{suffix}");
        }
    }
}
