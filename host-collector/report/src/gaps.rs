//! The intervals in which an account has a hole, as the container told them.

use crate::Gap;

/// A bounded list of gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gaps {
    list: Vec<Gap>,
    more: u64,
}

impl Gaps {
    /// The greatest number of gaps that are told one by one.
    pub const MAX: usize = 64;

    /// Adds a gap. One that was open and is told again with its end takes the place of the first.
    pub fn add(&mut self, gap: &Gap) {
        let same = |g: &&mut Gap| g.kind == gap.kind && g.from == gap.from;
        if let Some(open) = self.list.iter_mut().rev().find(same) {
            *open = gap.clone();
        } else if self.list.len() < Self::MAX {
            self.list.push(gap.clone());
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Those that are told one by one, oldest first.
    #[must_use]
    pub fn list(&self) -> &[Gap] {
        &self.list
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.list.len() as u64).saturating_add(self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GapKind, Printable};

    fn gap(kind: GapKind, from: u64, to: Option<u64>) -> Gap {
        Gap {
            kind,
            from,
            to,
            detail: Printable::new(""),
        }
    }

    #[test]
    fn the_end_of_an_open_gap_is_no_second_gap() {
        let mut gaps = Gaps::default();
        gaps.add(&gap(GapKind::Outage, 5, None));
        gaps.add(&gap(GapKind::Tamper, 5, Some(6)));
        gaps.add(&gap(GapKind::Outage, 5, Some(9)));
        assert_eq!(
            gaps.list(),
            [
                gap(GapKind::Outage, 5, Some(9)),
                gap(GapKind::Tamper, 5, Some(6))
            ]
        );
    }

    #[test]
    fn gaps_beyond_the_bound_are_counted() {
        let mut gaps = Gaps::default();
        for from in 0..100 {
            gaps.add(&gap(GapKind::Overflow, from, Some(from)));
        }
        assert_eq!((gaps.list().len(), gaps.count()), (Gaps::MAX, 100));
    }
}
