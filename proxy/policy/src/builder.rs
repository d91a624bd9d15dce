//! Collects entries, in whatever order and however often they come.

use std::fmt::Write as _;

use crate::entry::Entry;
use crate::rule::Rule;
use crate::rules::Rules;

/// Entries on their way to become [`Rules`].
#[derive(Debug, Default)]
pub(crate) struct Builder {
    text: String,
    rules: Vec<Rule>,
}

/// A list has more entries than any real one.
#[derive(Debug)]
pub(crate) struct Full;

impl Builder {
    /// The greatest number of entries, repeated ones counted.
    pub(crate) const CAPACITY: usize = 1_000_000;

    /// Adds an entry.
    pub(crate) fn push(&mut self, entry: &Entry) -> Result<(), Full> {
        if self.rules.len() >= Self::CAPACITY {
            return Err(Full);
        }
        let start = self.text.len();
        write!(self.text, "{entry}").map_err(|_| Full)?;
        let rule = Rule::new(&entry.target, entry.terms, start, self.text.len()).ok_or(Full)?;
        self.rules.push(rule);
        Ok(())
    }

    /// Sorts, drops what is repeated, and builds the tables; `None` if there is nothing.
    pub(crate) fn finish(self) -> Option<Rules> {
        let Self {
            text: unsorted,
            mut rules,
        } = self;
        rules.sort_unstable_by(|a, b| a.spelling(&unsorted).cmp(b.spelling(&unsorted)));
        rules.dedup_by(|a, b| a.spelling(&unsorted) == b.spelling(&unsorted));
        let mut text = String::with_capacity(unsorted.len() + rules.len());
        let mut moved = Vec::with_capacity(rules.len());
        for rule in rules {
            let start = text.len();
            text.push_str(rule.spelling(&unsorted));
            text.push('\n');
            moved.push(rule.moved(start)?);
        }
        (!moved.is_empty()).then(|| Rules::new(text, moved))
    }
}

#[cfg(test)]
impl Rules {
    /// The rules of these entries.
    pub(crate) fn of(entries: &[&str]) -> Self {
        let mut builder = Builder::default();
        for entry in entries {
            builder
                .push(&crate::grammar::parse(entry).unwrap())
                .unwrap();
        }
        builder.finish().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    #[test]
    fn entries_are_sorted_and_repetition_is_dropped() {
        let list = [
            "b.example",
            "!a.example",
            "B.example.",
            "*.a.example",
            "a.example:443/tls",
            "a.example:443",
        ];
        assert_eq!(
            Rules::of(&list).text(),
            "!a.example\n*.a.example\na.example:443\nb.example\n"
        );
    }

    #[test]
    fn nothing_builds_nothing() {
        assert!(Builder::default().finish().is_none());
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let entry = grammar::parse("a.example").unwrap();
        let mut builder = Builder::default();
        let taken = (0..=Builder::CAPACITY)
            .take_while(|_| builder.push(&entry).is_ok())
            .count();
        assert_eq!(taken, Builder::CAPACITY);
    }
}
