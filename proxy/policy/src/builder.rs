//! Collects entries, in whatever order and however often they come.

use std::fmt::Write as _;
use std::iter;

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
        let rule = Rule::new(entry, start, self.text.len()).ok_or(Full)?;
        self.rules.push(rule);
        Ok(())
    }

    /// Sorts, drops what is repeated, and builds the tables; `None` if there is nothing.
    pub(crate) fn finish(self) -> Option<Rules> {
        let Self {
            text: unsorted,
            rules,
        } = self;
        let mut text = String::with_capacity(unsorted.len() + rules.len());
        let mut moved = Vec::with_capacity(rules.len());
        let mut last = None;
        for rule in sorted(&rules, &unsorted) {
            let spelling = rule.spelling(&unsorted);
            if last.replace(spelling) == Some(spelling) {
                continue;
            }
            let start = text.len();
            text.push_str(spelling);
            text.push('\n');
            moved.push(rule.moved(start)?);
        }
        (!moved.is_empty()).then(|| Rules::new(text, moved))
    }
}

/// The rules in the order of their spelling.
fn sorted<'a>(rules: &'a [Rule], text: &str) -> impl Iterator<Item = &'a Rule> {
    let mut keyed: Vec<(u64, &Rule)> = rules
        .iter()
        .map(|rule| (head(rule.spelling(text)), rule))
        .collect();
    keyed.sort_unstable_by(|(a_head, a), (b_head, b)| {
        a_head
            .cmp(b_head)
            .then_with(|| a.spelling(text).cmp(b.spelling(text)))
    });
    keyed.into_iter().map(|(_, rule)| rule)
}

/// The first bytes as a number of the same order, so that most comparisons need not fetch the text.
fn head(spelling: &str) -> u64 {
    spelling
        .bytes()
        .chain(iter::repeat(0))
        .take(size_of::<u64>())
        .fold(0, |head, byte| head << 8 | u64::from(byte))
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

    #[test]
    fn the_head_of_a_text_has_the_order_of_the_text() {
        let texts = [
            "",
            "!a",
            "a",
            "a.b",
            "ab",
            "abcdefgh",
            "abcdefghi",
            "b",
            "é",
        ];
        for pair in texts.windows(2) {
            assert!(head(pair[0]) <= head(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn texts_with_a_long_common_head_are_sorted_to_the_end() {
        let list = [
            "abcdefgh3.example",
            "abcdefgh1.example",
            "abcdefgh2.example",
        ];
        let mut sorted = list;
        sorted.sort_unstable();
        assert_eq!(Rules::of(&list).text().lines().collect::<Vec<_>>(), sorted);
    }
}
