//! The numbers of a run, told twice: as increments that add up, and as totals.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Allowed, Denied, Reason, Totals, Traffic};

/// Sums of the increments, and the greatest totals seen. The truth is whichever is greater: counters
/// only grow, and any later totals repair what was lost before them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    summed: Totals<Reason>,
    greatest: Totals<Reason>,
    newer: BTreeSet<Reason>,
    unnamed: BTreeSet<Reason>,
}

impl Tally {
    pub(crate) fn deny(&mut self, more: &Denied<Reason>) {
        let reason = self.admit(&more.reason);
        if more.is_unnamed() {
            self.unnamed.insert(reason.clone());
        }
        add(&mut self.summed.denied, reason, more.count);
    }

    pub(crate) fn allow(&mut self, more: &Allowed) {
        self.summed.allow(more);
    }

    pub(crate) fn totals(&mut self, totals: &Totals<Reason>) {
        let totals = self.admitted(totals);
        self.greatest = greater(&self.greatest, &totals);
    }

    /// Whether attempts were refused for this reason of which only the number was told.
    pub(crate) fn has_unnamed(&self, reason: &Reason) -> bool {
        // What is no word of its own stands for any.
        self.unnamed.contains(reason) || self.unnamed.contains(&Reason::unnamed())
    }

    /// Whether the increments add up to exactly these totals.
    pub(crate) fn adds_up_to(&mut self, totals: &Totals<Reason>) -> bool {
        let mut totals = self.admitted(totals);
        // Increments do not tell that nothing was found from that nobody looked.
        totals.ech_offered = totals.ech_offered.filter(|count| *count > 0);
        // What was counted without a sample of it is no increment of its own.
        let summed = Totals {
            unsampled: totals.unsampled,
            ..self.summed.clone()
        };
        without_zeros(summed) == without_zeros(totals)
    }

    /// The best number for everything.
    pub(crate) fn best(&self) -> Totals<Reason> {
        without_zeros(greater(&self.summed, &self.greatest))
    }

    fn admitted(&mut self, totals: &Totals<Reason>) -> Totals<Reason> {
        let mut denied = BTreeMap::new();
        for (reason, &count) in &totals.denied {
            add(&mut denied, self.admit(reason), count);
        }
        Totals {
            denied,
            ..totals.clone()
        }
    }

    /// The key under which a reason is counted. A newer word that was admitted once always is, and
    /// one that was not never is, so that sums and totals are folded alike.
    fn admit(&mut self, reason: &Reason) -> Reason {
        if !reason.is_newer() || self.newer.contains(reason) {
            return reason.clone();
        }
        if self.newer.len() >= MAX_NEWER {
            return Reason::unnamed();
        }
        self.newer.insert(reason.clone());
        reason.clone()
    }
}

/// The traffic among totals.
impl From<&Totals<Reason>> for Traffic {
    fn from(totals: &Totals<Reason>) -> Self {
        Self {
            connections: totals.connections,
            failures: totals.failures,
            bytes_up: totals.bytes_up,
            bytes_down: totals.bytes_down,
        }
    }
}

fn add(denied: &mut BTreeMap<Reason, u64>, reason: Reason, count: u64) {
    let sum = denied.entry(reason).or_default();
    *sum = sum.saturating_add(count);
}

fn greater(a: &Totals<Reason>, b: &Totals<Reason>) -> Totals<Reason> {
    let mut denied = a.denied.clone();
    for (reason, &count) in &b.denied {
        let most = denied.entry(reason.clone()).or_default();
        *most = count.max(*most);
    }
    Totals {
        denied,
        connections: a.connections.max(b.connections),
        failures: a.failures.max(b.failures),
        bytes_up: a.bytes_up.max(b.bytes_up),
        bytes_down: a.bytes_down.max(b.bytes_down),
        unsampled: a.unsampled.max(b.unsampled),
        ech_offered: a.ech_offered.max(b.ech_offered),
    }
}

fn without_zeros(mut totals: Totals<Reason>) -> Totals<Reason> {
    totals.denied.retain(|_, count| *count > 0);
    totals
}

/// Newer words kept apart: a version that knows more reasons knows a few more.
const MAX_NEWER: usize = 8;

#[cfg(test)]
mod tests {
    use policy::DenyReason;
    use proptest::prelude::*;

    use super::*;
    use crate::{Target, Transport};

    fn denied(reason: &str, count: u64) -> Denied<Reason> {
        let reason = Reason::from(reason.to_owned());
        Denied {
            target: Target::default(),
            proto: Transport::Tcp,
            reason,
            count,
            first: 0,
            last: 0,
            uid: None,
        }
    }

    fn totals(counts: &[(&str, u64)]) -> Totals<Reason> {
        let denied = counts
            .iter()
            .map(|(word, n)| (Reason::from((*word).to_owned()), *n))
            .collect();
        Totals {
            denied,
            ..Totals::default()
        }
    }

    fn sum(tally: &Tally) -> u64 {
        tally.best().denied.values().sum()
    }

    #[test]
    fn later_totals_repair_a_lost_increment() {
        let mut tally = Tally::default();
        tally.deny(&denied("packet", 2));
        tally.totals(&totals(&[("packet", 5), ("quic", 1)]));
        tally.totals(&totals(&[("packet", 4)]));
        assert_eq!(sum(&tally), 6);
        assert!(!tally.adds_up_to(&totals(&[("packet", 5), ("quic", 1)])));
    }

    #[test]
    fn increments_after_the_last_totals_count() {
        let mut tally = Tally::default();
        tally.totals(&totals(&[("packet", 2)]));
        tally.deny(&denied("packet", 3));
        assert_eq!(
            tally.best().denied.get(&Reason::Known(DenyReason::Packet)),
            Some(&3)
        );
    }

    #[test]
    fn a_zero_is_no_difference() {
        let mut tally = Tally::default();
        tally.deny(&denied("packet", 2));
        assert!(tally.adds_up_to(&totals(&[("packet", 2), ("quic", 0)])));
    }

    #[test]
    fn traffic_must_add_up_too() {
        let mut tally = Tally::default();
        tally.allow(&Allowed {
            target: Target::default(),
            connections: 1,
            failures: 1,
            bytes_up: 2,
            bytes_down: 3,
            ech_offered: 1,
        });
        let mut told = Totals {
            connections: 1,
            failures: 1,
            bytes_up: 2,
            bytes_down: 3,
            unsampled: 9,
            ech_offered: Some(1),
            ..Totals::default()
        };
        assert!(tally.adds_up_to(&told));
        told.bytes_up += 1;
        assert!(!tally.adds_up_to(&told));
    }

    #[test]
    fn a_zero_that_was_told_is_no_difference_and_is_kept() {
        let mut tally = Tally::default();
        let told = Totals {
            ech_offered: Some(0),
            ..Totals::default()
        };
        tally.totals(&told);
        assert!(tally.adds_up_to(&told));
        assert_eq!(tally.best().ech_offered, Some(0));
        tally.allow(&Allowed {
            target: Target::default(),
            connections: 0,
            failures: 0,
            bytes_up: 0,
            bytes_down: 0,
            ech_offered: 2,
        });
        assert!(!tally.adds_up_to(&told));
        assert_eq!(tally.best().ech_offered, Some(2));
    }

    #[test]
    fn it_is_known_of_which_reasons_only_a_number_was_told() {
        let mut tally = Tally::default();
        tally.deny(&denied("packet", 2));
        let mut unnamed = denied("quic", 2);
        unnamed.proto = Transport::Other;
        tally.deny(&unnamed);
        let [packet, quic] = ["packet", "quic"].map(|word| Reason::from(word.to_owned()));
        assert!(!tally.has_unnamed(&packet) && tally.has_unnamed(&quic));
        unnamed.reason = Reason::unnamed();
        tally.deny(&unnamed);
        assert!(tally.has_unnamed(&packet));
    }

    proptest! {
        #[test]
        fn any_number_of_newer_reasons_is_counted_in_bounded_memory(words in proptest::collection::vec("[a-z]{1,3}", 0..100)) {
            let mut tally = Tally::default();
            let mut told = Totals::default();
            for word in &words {
                tally.deny(&denied(word, 1));
                told.deny(&denied(word, 1));
                tally.totals(&told);
            }
            prop_assert!(tally.best().denied.len() <= MAX_NEWER + 1 + DenyReason::ALL.len());
            prop_assert_eq!(sum(&tally), words.len() as u64);
            prop_assert!(tally.adds_up_to(&told));
        }
    }
}
