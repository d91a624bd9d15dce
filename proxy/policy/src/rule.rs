//! One entry, packed: a hundred thousand of them are to stay small.

use std::num::NonZeroU32;

use ipnet::IpNet;

use crate::entry::{Effect, Entry, Target, Terms};

/// Which rule of a [`crate::rules::Rules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleId(NonZeroU32);

impl RuleId {
    pub(crate) fn at(index: usize) -> Option<Self> {
        u32::try_from(index + 1)
            .ok()
            .and_then(NonZeroU32::new)
            .map(Self)
    }

    pub(crate) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Whom a rule is about; the name itself is in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The name of this length and no other.
    Exact(u8),
    /// Every name below the name of this length.
    Below(u8),
    /// Addresses.
    Net,
}

/// An entry without its own text, of which it knows the place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) scope: Scope,
    pub(crate) terms: Terms,
    /// The addresses that the rule is about, or that the name may resolve into although they are
    /// guarded; either way the guard is lifted there.
    pub(crate) range: Option<IpNet>,
    /// The next rule about the same name or range, in the order of the text.
    pub(crate) next: Option<RuleId>,
    start: u32,
    end: u32,
}

impl Rule {
    /// A rule whose canonical spelling is at these bytes of the text; `None` if it cannot point
    /// there.
    pub(crate) fn new(entry: &Entry, start: usize, end: usize) -> Option<Self> {
        let length = |name: &str| u8::try_from(name.len()).ok();
        Some(Self {
            scope: match &entry.target {
                Target::Exact(name) => Scope::Exact(length(name.as_str())?),
                Target::Below(name) => Scope::Below(length(name.as_str())?),
                Target::Net(_) => Scope::Net,
            },
            terms: entry.terms,
            range: entry.range(),
            next: None,
            start: u32::try_from(start).ok()?,
            end: u32::try_from(end).ok()?,
        })
    }

    /// The same rule with its spelling elsewhere.
    pub(crate) fn moved(self, start: usize) -> Option<Self> {
        let start = u32::try_from(start).ok()?;
        let end = start.checked_add(self.end - self.start)?;
        Some(Self { start, end, ..self })
    }

    /// The canonical spelling.
    pub(crate) fn spelling<'a>(&self, text: &'a str) -> &'a str {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// The name that the rule is about, without `*.`; empty for a range.
    pub(crate) fn name<'a>(&self, text: &'a str) -> &'a str {
        let (wildcard, length) = match self.scope {
            Scope::Exact(length) => (0, length),
            Scope::Below(length) => ("*.".len(), length),
            Scope::Net => return "",
        };
        let deny = usize::from(self.terms.effect == Effect::Deny);
        let start = self.start as usize + deny + wildcard;
        text.get(start..start + usize::from(length))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    #[test]
    fn a_rule_finds_its_name_in_the_text() {
        for (text, name) in [
            ("example.com", "example.com"),
            ("!example.com:22", "example.com"),
            ("*.example.com", "example.com"),
            ("!*.example.com/tls", "example.com"),
            ("10.0.0.0/8", ""),
        ] {
            let entry = grammar::parse(text).unwrap();
            let rule = Rule::new(&entry, 2, 2 + text.len()).unwrap();
            let around = format!("a\n{text}\nb");
            assert_eq!((rule.name(&around), rule.spelling(&around)), (name, text));
            let moved = rule.moved(0).unwrap();
            assert_eq!((moved.name(text), moved.spelling(text)), (name, text));
        }
    }

    #[test]
    fn a_rule_takes_at_most_forty_bytes() {
        assert!(size_of::<Rule>() <= 40, "{}", size_of::<Rule>());
    }
}
