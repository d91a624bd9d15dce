//! How many different things there were, and a fair sample of them.
//!
//! Each thing has a place in an order that a secret of the host makes, and those with the first
//! places are kept (bottom-k: Bar-Yossef et al., Counting Distinct Elements in a Data Stream, RANDOM
//! 2002). A thing that is in the sample at the end was in it from its first occurrence, so its
//! numbers are exact.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Placed, Seed, Weight};

/// A number of different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistinctCount {
    /// The number, within about 6 % in 19 of 20 runs where it is an estimate.
    pub count: u64,
    /// Whether it is one.
    pub estimated: bool,
}

/// Counts different keys and keeps some.
pub(crate) struct Distinct<K, W> {
    seed: Seed,
    hashes: BTreeSet<u64>,
    counted: usize,
    more: bool,
    sample: BTreeMap<u64, (K, W)>,
    sampled: usize,
}

impl<K: Placed + Clone, W: Weight> Distinct<K, W> {
    /// Counts exactly up to `counted` keys, and samples `sampled` of them.
    pub(crate) const fn new(seed: Seed, counted: usize, sampled: usize) -> Self {
        Self {
            seed,
            hashes: BTreeSet::new(),
            counted,
            more: false,
            sample: BTreeMap::new(),
            sampled,
        }
    }

    pub(crate) fn add(&mut self, key: &K, more: &W) {
        let hash = self.seed.place(key);
        self.hashes.insert(hash);
        if self.hashes.len() > self.counted {
            self.hashes.pop_last();
            self.more = true;
        }
        if let Some((_, seen)) = self.sample.get_mut(&hash) {
            seen.absorb(more);
            return;
        }
        let full = self.sample.len() >= self.sampled;
        if full
            && self
                .sample
                .last_key_value()
                .is_some_and(|(&greatest, _)| hash > greatest)
        {
            return;
        }
        self.sample.insert(hash, (key.clone(), more.clone()));
        if full {
            self.sample.pop_last();
        }
    }

    pub(crate) fn count(&self) -> DistinctCount {
        let kept = self.hashes.len() as u64;
        match self.hashes.last() {
            Some(&greatest) if self.more => DistinctCount {
                count: estimate(kept, greatest),
                estimated: true,
            },
            _ => DistinctCount {
                count: kept,
                estimated: false,
            },
        }
    }

    /// The sample in random order: every prefix of it is a fair sample too.
    pub(crate) fn sample(&self) -> impl Iterator<Item = (&K, &W)> {
        self.sample.values().map(|(key, seen)| (key, seen))
    }

    /// Whether a key is among the first that are counted: where the sender names at least as many,
    /// it has named this one each time.
    pub(crate) fn counts(&self, key: &K) -> bool {
        self.hashes.contains(&self.seed.place(key))
    }
}

/// `kept` hashes lie below `greatest`, evenly spread: so many lie in the whole range.
fn estimate(kept: u64, greatest: u64) -> u64 {
    let spread = u128::from(kept.saturating_sub(1)) << 64;
    u64::try_from(spread / u128::from(greatest.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Refusals;

    const ONE: Refusals = Refusals {
        count: 1,
        first_ms: 0,
        last_ms: 0,
    };

    fn of(
        seed: u8,
        keys: impl IntoIterator<Item = u32>,
        counted: usize,
        sampled: usize,
    ) -> Distinct<u32, Refusals> {
        let mut distinct = Distinct::new(Seed([seed; 16]), counted, sampled);
        for key in keys {
            distinct.add(&key, &ONE);
        }
        distinct
    }

    #[test]
    fn beyond_its_bound_the_count_is_a_near_estimate_and_says_so() {
        let DistinctCount { count, estimated } = of(1, 0..50_000, 1024, 64).count();
        assert!(estimated);
        assert!(count.abs_diff(50_000) < 7_500, "{count}");
    }

    #[test]
    fn repeating_what_was_seen_changes_no_estimate() {
        let once = of(1, 0..3000, 256, 8).count();
        assert_eq!(of(1, (0..3000).chain(0..3000), 256, 8).count(), once);
    }

    #[test]
    fn late_things_are_sampled_as_often_as_early_ones() {
        // 40 runs of 1 000 keys, 32 sampled: half of the samples come from each half.
        let late: usize = (0..40)
            .map(|seed| {
                of(seed, 0..1000, 64, 32)
                    .sample()
                    .filter(|(k, _)| **k >= 500)
                    .count()
            })
            .sum();
        assert!((540..740).contains(&late), "{late} of 1280");
    }

    #[test]
    fn a_small_sample_is_the_beginning_of_a_larger_one() {
        let keys = |sampled| {
            let distinct = of(7, 0..1000, 64, sampled);
            distinct.sample().map(|(key, _)| *key).collect::<Vec<_>>()
        };
        assert_eq!(keys(64)[..8], keys(8)[..]);
    }

    #[test]
    fn another_seed_samples_other_things() {
        let keys = |seed| {
            of(seed, 0..1000, 64, 8)
                .sample()
                .map(|(k, _)| *k)
                .collect::<HashSet<_>>()
        };
        assert_ne!(keys(1), keys(2));
        assert_eq!(keys(1), keys(1));
    }

    proptest! {
        #[test]
        fn up_to_its_bound_the_count_is_exact(keys in proptest::collection::vec(0u32..50, 0..300)) {
            let truth = keys.iter().collect::<HashSet<_>>().len() as u64;
            let expected = DistinctCount { count: truth, estimated: false };
            prop_assert_eq!(of(3, keys, 50, 8).count(), expected);
        }

        #[test]
        fn the_numbers_of_the_sample_are_exact(keys in proptest::collection::vec(0u32..500, 0..900)) {
            let distinct = of(5, keys.iter().copied(), 64, 8);
            prop_assert!(distinct.sample().count() <= 8);
            for (key, seen) in distinct.sample() {
                prop_assert_eq!(seen.count, keys.iter().filter(|k| *k == key).count() as u64);
            }
        }
    }
}
