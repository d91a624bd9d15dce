//! What a record shows of more things than it can hold: the weightiest, and a fair share of the rest.

use std::{cmp::Reverse, collections::HashMap, hash::Hash};

use crate::{DistinctCount, Placed, Seed, Weight, distinct::Distinct, heaviest::Heaviest};

/// A bounded account of how often each thing occurred.
pub struct Sample<K, W> {
    heaviest: Heaviest<K, W>,
    distinct: Distinct<K, W>,
}

/// One thing of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picked<K, W> {
    /// What it is.
    pub key: K,
    /// Its numbers.
    pub seen: W,
    /// Whether the numbers are all there was of it; otherwise they are lower bounds.
    pub exact: bool,
}

/// What of a thing's occurrences was told by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Each of them.
    Always,
    /// Each of them if the thing is one of the first [`Sample::KEYS`] in order, and else perhaps not.
    IfFirst,
    /// Perhaps not each of them.
    Sometimes,
}

impl<K, W> Sample<K, W> {
    /// The greatest number of keys that are counted apart, and up to which their number is exact.
    pub const KEYS: usize = 1024;
    /// The size of the fair sample.
    pub const FAIR: usize = 64;
}

impl<K: Placed + Hash + Ord + Clone, W: Weight> Sample<K, W> {
    /// An empty sample.
    #[must_use]
    pub fn new(seed: Seed) -> Self {
        Self {
            heaviest: Heaviest::new(Self::KEYS),
            distinct: Distinct::new(seed, Self::KEYS, Self::FAIR),
        }
    }

    /// Counts an increment.
    pub fn add(&mut self, key: &K, more: &W) {
        self.heaviest.add(key, more);
        self.distinct.add(key, more);
    }

    /// How many different things there were.
    #[must_use]
    pub fn distinct(&self) -> DistinctCount {
        self.distinct.count()
    }

    /// Up to `limit` things: first the weightiest, which take half of the places, then a uniform
    /// random sample of all others. Where there are no more than `limit`, that is all of them.
    #[must_use]
    pub fn pick(&self, limit: usize) -> Vec<Picked<K, W>> {
        self.pick_told(limit, |_| Told::Always)
    }

    /// The same, of things of which the sender may have told some by their number only.
    pub fn pick_told(&self, limit: usize, told: impl Fn(&K) -> Told) -> Vec<Picked<K, W>> {
        let fair: HashMap<&K, &W> = self.distinct.sample().collect();
        let mut ranked: Vec<_> = self.heaviest.iter().collect();
        ranked.sort_by_key(|(key, seen, _)| (Reverse(seen.weight()), *key));

        let half = limit.div_ceil(2);
        let weightiest = ranked
            .iter()
            .take(half)
            .map(|(key, seen, exact)| match fair.get(key) {
                Some(all) => (*key, *all, true),
                None => (*key, *seen, *exact),
            });
        let mut picked: Vec<_> = weightiest.collect();
        for (key, seen) in self.distinct.sample() {
            if picked.len() >= limit {
                break;
            }
            if !picked.iter().any(|(other, ..)| *other == key) {
                picked.push((key, seen, true));
            }
        }
        let whole = |key: &K| match told(key) {
            Told::Always => true,
            Told::IfFirst => self.distinct.counts(key),
            Told::Sometimes => false,
        };
        let picked = picked.into_iter().map(|(key, seen, exact)| Picked {
            key: key.clone(),
            seen: seen.clone(),
            exact: exact && whole(key),
        });
        picked.collect()
    }
}

impl<K, W> std::fmt::Debug for Sample<K, W> {
    /// Without its contents: the seed must not end up in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Refusals;

    fn of(keys: impl IntoIterator<Item = u32>) -> Sample<u32, Refusals> {
        let mut sample = Sample::new(Seed([9; 16]));
        for key in keys {
            sample.add(
                &key,
                &Refusals {
                    count: 1,
                    first_ms: 0,
                    last_ms: 0,
                },
            );
        }
        sample
    }

    #[test]
    fn a_flood_of_invented_names_hides_neither_the_frequent_nor_the_rare() {
        let invented = 1_000_000..1_020_000;
        let frequent = (0..16).flat_map(|key| std::iter::repeat_n(key, 100));
        let rare = 100_000..120_000;
        let picked = of(invented.chain(frequent).chain(rare)).pick(32);
        assert_eq!(picked.len(), 32);
        let frequent: BTreeSet<u32> = picked.iter().take(16).map(|p| p.key).collect();
        assert_eq!(frequent, (0..16).collect());
        let rare = picked
            .iter()
            .filter(|p| (100_000..120_000).contains(&p.key))
            .count();
        assert!((2..=14).contains(&rare), "{rare} of 16");
    }

    #[test]
    fn numbers_are_exact_or_said_not_to_be() {
        let sample = of((0..5000)
            .chain(std::iter::repeat_n(4_999, 50))
            .chain(std::iter::repeat_n(0, 60)));
        for picked in sample.pick(32) {
            let truth = match picked.key {
                0 => 61,
                4_999 => 51,
                _ => 1,
            };
            assert!(
                picked.seen.count <= truth && (!picked.exact || picked.seen.count == truth),
                "{picked:?}"
            );
        }
    }

    #[test]
    fn numbers_of_what_was_not_always_told_by_name_are_lower_bounds() {
        let sample = of(0..1_100);
        let exact = |told: fn(&u32) -> Told| {
            let picked = sample.pick_told(1_000, told);
            let exact = picked.into_iter().filter(|p| p.exact).map(|p| p.key);
            exact.collect::<BTreeSet<_>>()
        };
        assert_eq!(exact(|_| Told::Sometimes), BTreeSet::new());
        let places: BTreeSet<_> = (0..1_100)
            .map(|key| (Seed([9; 16]).place(&key), key))
            .collect();
        let others: BTreeSet<_> = places.iter().skip(1_024).map(|(_, key)| *key).collect();
        let always = exact(|_| Told::Always);
        let first: BTreeSet<_> = always.difference(&others).copied().collect();
        assert!(first.len() < always.len());
        assert_eq!(exact(|_| Told::IfFirst), first);
    }

    #[test]
    fn a_sample_does_not_print_its_seed() {
        assert_eq!(format!("{:?}", of([1])), "Sample { .. }");
    }

    proptest! {
        #[test]
        fn what_fits_is_shown_whole(keys in proptest::collection::vec(0u32..32, 0..200)) {
            let picked = of(keys.iter().copied()).pick(32);
            let shown: BTreeSet<u32> = picked.iter().map(|p| p.key).collect();
            prop_assert_eq!(shown.len(), picked.len());
            prop_assert_eq!(shown, keys.iter().copied().collect::<BTreeSet<_>>());
            for one in picked {
                prop_assert!(one.exact);
                prop_assert_eq!(one.seen.count, keys.iter().filter(|k| **k == one.key).count() as u64);
            }
        }
    }
}
