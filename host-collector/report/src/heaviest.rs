//! The most frequent of more things than can be counted one by one.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements
//! in Data Streams, ICDT 2005). What made up more than 1/capacity of everything is kept, whatever
//! order it came in, so inventing names first keeps no real one out.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use crate::Weight;

/// At most `capacity` keys with their numbers.
#[derive(Debug)]
pub(crate) struct Heaviest<K, W> {
    capacity: usize,
    places: HashMap<K, Place<W>>,
    by_rank: BTreeSet<(u64, K)>,
}

#[derive(Debug)]
struct Place<W> {
    /// What was seen since the key got its place.
    seen: W,
    /// What the key may have had before: the rank of the one it drove out.
    before: u64,
}

impl<W: Weight> Place<W> {
    fn rank(&self) -> u64 {
        self.before.saturating_add(self.seen.weight())
    }
}

impl<K: Hash + Ord + Clone, W: Weight> Heaviest<K, W> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: HashMap::new(),
            by_rank: BTreeSet::new(),
        }
    }

    pub(crate) fn add(&mut self, key: &K, more: &W) {
        let before = if let Some(place) = self.places.get_mut(key) {
            let old = (place.rank(), key.clone());
            self.by_rank.remove(&old);
            place.seen.absorb(more);
            self.by_rank.insert((place.rank(), old.1));
            return;
        } else if self.places.len() < self.capacity {
            0
        } else {
            self.drive_out_the_lightest()
        };
        let place = Place {
            seen: more.clone(),
            before,
        };
        self.by_rank.insert((place.rank(), key.clone()));
        self.places.insert(key.clone(), place);
    }

    /// What was certainly seen of a key.
    pub(crate) fn seen(&self, key: &K) -> Option<&W> {
        self.places.get(key).map(|place| &place.seen)
    }

    /// Takes a key out, whose place is free for another then.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(place) = self.places.remove(key) {
            self.by_rank.remove(&(place.rank(), key.clone()));
        }
    }

    fn drive_out_the_lightest(&mut self) -> u64 {
        let Some((rank, key)) = self.by_rank.pop_first() else {
            return 0;
        };
        self.places.remove(&key);
        rank
    }

    /// Every key with what was certainly seen of it, and whether that is all there was.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &W, bool)> {
        self.places
            .iter()
            .map(|(key, place)| (key, &place.seen, place.before == 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Refusals;

    fn once(count: u64) -> Refusals {
        Refusals {
            count,
            first_ms: 0,
            last_ms: 0,
        }
    }

    fn of(keys: impl IntoIterator<Item = u32>, capacity: usize) -> Heaviest<u32, Refusals> {
        let mut heaviest = Heaviest::new(capacity);
        for key in keys {
            heaviest.add(&key, &once(1));
        }
        heaviest
    }

    #[test]
    fn below_its_capacity_every_number_is_exact() {
        let heaviest = of([1, 2, 2, 3, 3, 3], 3);
        for (key, seen, exact) in heaviest.iter() {
            assert!(exact, "{key}");
            assert_eq!(seen.count, u64::from(*key));
        }
    }

    #[test]
    fn names_invented_first_keep_no_frequent_one_out() {
        let invented = 1000..3000;
        let frequent = std::iter::repeat_n(7, 200);
        let heaviest = of(invented.chain(frequent), 16);
        let (_, seen, exact) = heaviest.iter().find(|(key, ..)| **key == 7).unwrap();
        assert_eq!((seen.count, exact), (200, false));
    }

    #[test]
    fn what_was_taken_out_leaves_its_place_and_nothing_else_behind() {
        let mut heaviest = of([1, 1, 2, 3], 3);
        assert_eq!(heaviest.seen(&1).unwrap().count, 2);
        heaviest.remove(&1);
        heaviest.remove(&1);
        assert!(heaviest.seen(&1).is_none());
        heaviest.add(&4, &once(1));
        for key in [2, 3, 4] {
            assert_eq!(heaviest.seen(&key).unwrap().count, 1, "{key}");
        }
        assert_eq!(heaviest.by_rank.len(), 3);
    }

    proptest! {
        #[test]
        fn no_number_is_greater_than_the_truth(keys in proptest::collection::vec(0u32..60, 0..600)) {
            let heaviest = of(keys.iter().copied(), 8);
            prop_assert!(heaviest.places.len() <= 8);
            prop_assert_eq!(heaviest.places.len(), heaviest.by_rank.len());
            for (key, seen, exact) in heaviest.iter() {
                let truth = keys.iter().filter(|k| *k == key).count() as u64;
                prop_assert!(seen.count <= truth && (!exact || seen.count == truth), "{} {} {}", key, seen.count, truth);
            }
        }

        #[test]
        fn what_is_more_than_a_capacity_share_is_kept(keys in proptest::collection::vec(0u32..20, 1..600)) {
            let heaviest = of(keys.iter().copied(), 8);
            for key in 0..20 {
                let truth = keys.iter().filter(|k| **k == key).count();
                if truth * 8 > keys.len() {
                    prop_assert!(heaviest.iter().any(|(k, ..)| *k == key), "{} of {}", truth, keys.len());
                }
            }
        }
    }
}
