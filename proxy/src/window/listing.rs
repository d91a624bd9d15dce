//! The entries that decide, a part at a time: a list may have a hundred thousand, and a client that
//! asks for it and does not read must not cost the proxy megabytes.

use std::fmt;

use policy::WINDOW;
use serde::Serialize;

use super::page::NOTE;
use crate::ruling::Ruling;

/// A part of the list in force.
#[derive(Debug, Serialize)]
pub(super) struct Listing<'p> {
    /// 1 for the list of the launch, more for those that took its place.
    generation: u64,
    digest: String,
    /// All of them, not those of this part.
    count: usize,
    from: usize,
    entries: Vec<&'p str>,
    /// Where the next part begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
    warnings: Vec<String>,
    note: &'static str,
}

/// The entries behind the first `from`.
pub(super) fn of(ruling: &Ruling, from: usize) -> Listing<'_> {
    let policy = &ruling.policy;
    let count = policy.len();
    let entries: Vec<_> = policy.spellings().skip(from).take(PART).collect();
    let next = from.saturating_add(entries.len());
    Listing {
        generation: ruling.generation,
        digest: policy.digest().to_string(),
        count,
        from,
        entries,
        next: (next < count).then_some(next),
        warnings: policy.warnings().iter().map(ToString::to_string).collect(),
        note: NOTE,
    }
}

/// A list that could be used as one: what is no entry is a comment.
impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {NOTE}")?;
        writeln!(
            f,
            "# entries: {}, generation: {}, digest: {}",
            self.count, self.generation, self.digest
        )?;
        for warning in &self.warnings {
            writeln!(f, "# warning: {warning}")?;
        }
        for entry in &self.entries {
            writeln!(f, "{entry}")?;
        }
        match self.next {
            Some(next) => writeln!(f, "# more: http://{WINDOW}/policy?from={next}"),
            None => Ok(()),
        }
    }
}

/// Entries that are shown at once: at most about 300 KiB.
const PART: usize = 1000;

#[cfg(test)]
mod tests {
    use policy::Policy;

    use super::*;

    #[test]
    fn the_text_is_a_list_of_the_same_policy() {
        let list = "b.example:22, a.example, !x.a.example, *.c.example@10.0.0.0/8, b.example:22";
        let ruling = Ruling::new(1, Policy::parse(list).unwrap());
        let text = of(&ruling, 0).to_string();
        assert_eq!(
            Policy::parse(&text).unwrap().digest(),
            ruling.policy.digest()
        );
        assert!(text.contains(&ruling.policy.digest().to_string()), "{text}");
        assert!(text.contains("# entries: 4, "), "{text}");
    }

    #[test]
    fn a_long_list_is_shown_in_parts_that_make_the_whole() {
        let names: Vec<_> = (0..2500).map(|n| format!("n{n}.example")).collect();
        let ruling = Ruling::new(1, Policy::from_entries(&names).unwrap());
        let (mut from, mut all) = (0, Vec::new());
        loop {
            let part = of(&ruling, from);
            assert!(part.entries.len() <= PART && part.count == 2500);
            all.extend(part.entries.iter().copied());
            let text = part.to_string();
            match part.next {
                Some(next) => {
                    assert!(text.ends_with(&format!("/policy?from={next}\n")), "{next}");
                    from = next;
                }
                None => break,
            }
        }
        assert_eq!(all, ruling.policy.entries());
    }

    #[test]
    fn behind_the_last_entry_there_is_nothing() {
        let ruling = Ruling::new(1, Policy::parse("a.example").unwrap());
        let part = of(&ruling, usize::MAX);
        assert_eq!((part.entries.len(), part.next, part.count), (0, None, 1));
    }

    #[test]
    fn what_is_odd_about_the_list_is_told() {
        let ruling = Ruling::new(1, Policy::parse("a.invalid, b.example").unwrap());
        let text = of(&ruling, 0).to_string();
        assert!(
            text.contains("# warning: `a.invalid` can never match"),
            "{text}"
        );
    }
}
