//! Which refused targets are told by their names, where there are too many to name them all.
//!
//! A guest can invent names faster than anybody can be told of them. So whoever sees them tells of
//! those that a record could show, and of all others how many there were. What a record could show
//! is decided here as it is there: the first in a secret order ([`Seed`]), which are a fair sample of
//! all that ever occur, and those that occur most often.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use crate::{Sample, Seed, heaviest::Heaviest};

/// How many targets are named whatever else there is: as many as a record counts exactly, and a few
/// more, so that it learns that there are more.
pub const NAMED: usize = Sample::<u32, u64>::KEYS + 64;

/// How long whoever has told of a refused target tells of no other, so that no guest has more told in
/// a second than a collector of many runs can hear. What comes meanwhile is added up.
pub const REST: Duration = Duration::from_millis(1);

/// Remembers as much of the targets of one run as it takes to choose.
///
/// The choice is the union of two. A target falls out of the first in order when others come before
/// it, and never comes back: what is among them at the end was chosen from its first occurrence on. It
/// falls out of the most frequent when others certainly are more so, and then starts over.
#[derive(Debug)]
pub(crate) struct Naming {
    seed: Seed,
    /// By its place, how often each of the first in order occurred.
    first: BTreeMap<u64, u64>,
    /// The same of those that are the most frequent besides.
    frequent: HashMap<u64, u64>,
    /// Those that may become so.
    others: Heaviest<u64, u64>,
}

/// What was decided about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Whether it is named.
    pub(crate) named: bool,
    /// Another that is named no longer.
    pub(crate) displaced: Option<u64>,
}

impl Naming {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            seed,
            first: BTreeMap::new(),
            frequent: HashMap::new(),
            others: Heaviest::new(OTHERS),
        }
    }

    /// The order in which it chooses.
    pub(crate) const fn seed(&self) -> Seed {
        self.seed
    }

    /// Decides about a target that occurred `count` times more.
    pub(crate) fn choose(&mut self, place: u64, count: u64) -> Choice {
        let known = match self.first.get_mut(&place) {
            Some(sum) => Some(sum),
            None => self.frequent.get_mut(&place),
        };
        if let Some(sum) = known {
            *sum = sum.saturating_add(count);
            return Choice::named(None);
        }
        let is_first = self.first.len() < NAMED
            || self
                .first
                .last_key_value()
                .is_some_and(|(&last, _)| place < last);
        if is_first {
            self.first.insert(place, count);
            return Choice::named(self.displace_last());
        }
        self.others.add(&place, &count);
        let certain = self.others.seen(&place).copied().unwrap_or_default();
        match self.promote(place, certain) {
            Promotion::Made { displaced } => {
                self.others.remove(&place);
                Choice::named(displaced)
            }
            Promotion::Refused => Choice {
                named: false,
                displaced: None,
            },
        }
    }

    /// What others came before may still be frequent.
    fn displace_last(&mut self) -> Option<u64> {
        if self.first.len() <= NAMED {
            return None;
        }
        let (place, count) = self.first.pop_last()?;
        match self.promote(place, count) {
            Promotion::Made { displaced } => displaced,
            Promotion::Refused => Some(place),
        }
    }

    /// Only what certainly occurred more often takes another's place: whoever repeats each name as
    /// often as the one before gets no more of them named.
    fn promote(&mut self, place: u64, count: u64) -> Promotion {
        if count < 2 {
            return Promotion::Refused;
        }
        let mut displaced = None;
        if self.frequent.len() >= FREQUENT {
            let least = self
                .frequent
                .iter()
                .map(|(&place, &count)| (count, place))
                .min();
            let Some((_, rarest)) = least.filter(|&(rarest, _)| rarest < count) else {
                return Promotion::Refused;
            };
            self.frequent.remove(&rarest);
            displaced = Some(rarest);
        }
        self.frequent.insert(place, count);
        Promotion::Made { displaced }
    }
}

impl Choice {
    const fn named(displaced: Option<u64>) -> Self {
        Self {
            named: true,
            displaced,
        }
    }
}

enum Promotion {
    Made { displaced: Option<u64> },
    Refused,
}

/// Four times what a record shows as the most frequent.
const FREQUENT: usize = 64;
/// What occurs as often as once in so many is found to be frequent, whatever comes between.
const OTHERS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SEED: Seed = Seed([3; 16]);

    /// What is named at the end, and how often each was named.
    fn of(seed: Seed, asked: impl IntoIterator<Item = u32>) -> (Naming, BTreeMap<u32, u64>) {
        let mut naming = Naming::new(seed);
        let mut named = BTreeMap::new();
        for name in asked {
            if naming.choose(seed.place(&name), 1).named {
                *named.entry(name).or_default() += 1;
            }
        }
        (naming, named)
    }

    fn first(seed: Seed, asked: impl IntoIterator<Item = u32>, count: usize) -> BTreeSet<u32> {
        let places: BTreeMap<u64, u32> = asked.into_iter().map(|n| (seed.place(&n), n)).collect();
        places.into_values().take(count).collect()
    }

    #[test]
    fn as_many_as_are_always_named_are_named_each_time() {
        let all = u32::try_from(NAMED).unwrap();
        let (_, named) = of(SEED, (0..all).chain(0..all));
        assert_eq!(named.len(), NAMED);
        assert!(named.values().all(|&count| count == 2));
    }

    #[test]
    fn the_first_in_order_are_named_whenever_they_come() {
        let (_, named) = of(SEED, 0..20_000);
        let first = first(SEED, 0..20_000, NAMED);
        assert!(first.iter().all(|name| named.contains_key(name)));
        let late = first.range(10_000..).count();
        assert!((NAMED * 2 / 5..NAMED * 3 / 5).contains(&late), "{late}");
    }

    #[test]
    fn of_ever_more_names_ever_fewer_are_named() {
        let (_, named) = of(SEED, 0..50_000);
        // NAMED · (1 + ln(50 000 / NAMED)), and what chance makes of it.
        assert!((5_000..5_600).contains(&named.len()), "{}", named.len());
    }

    #[test]
    fn what_is_repeated_is_named_however_many_names_came_before() {
        let late = 7_000_000..7_000_016;
        let repeated = late.clone().flat_map(|name| std::iter::repeat_n(name, 50));
        let (_, named) = of(SEED, (0..50_000).chain(repeated).chain(200_000..210_000));
        for name in late {
            assert!(named.get(&name).is_some_and(|&n| n >= 49), "{name}");
        }
    }

    #[test]
    fn what_comes_again_between_invented_names_is_named() {
        let asked =
            (0..100_000).flat_map(|n| [n, if n % 20 == 0 { 7_000_000 } else { n + 200_000 }]);
        let (_, named) = of(SEED, asked);
        assert!(named[&7_000_000] >= 990, "{}", named[&7_000_000]);
    }

    #[test]
    fn who_repeats_every_name_gets_no_more_of_them_named() {
        let (_, once) = of(SEED, 0..10_000);
        let (_, thrice) = of(SEED, (0..10_000).flat_map(|name| [name; 3]));
        assert!(thrice.len() <= once.len() + FREQUENT, "{}", thrice.len());
    }

    #[test]
    fn what_is_frequent_stays_named_when_others_come_before_it() {
        // In the order, the last of those that are named at first.
        let asked: BTreeMap<u64, u32> = (0..1_100).map(|n| (SEED.place(&n), n)).collect();
        let last = *asked.values().nth(NAMED - 1).unwrap();
        let often = std::iter::repeat_n(last, 30);
        let (_, named) = of(
            SEED,
            (0..1_088).chain(often).chain(2_000..60_000).chain([last]),
        );
        let expected = 31 + u64::from(last < 1_088);
        assert_eq!(named[&last], expected);
    }

    #[test]
    fn a_number_near_its_end_is_no_beginning() {
        let mut naming = Naming::new(SEED);
        for _ in 0..3 {
            assert!(naming.choose(1, u64::MAX).named);
        }
        assert_eq!(naming.first[&1], u64::MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn whoever_is_first_in_order_at_the_end_was_named_each_time(asked in proptest::collection::vec(0u32..3_000, 0..6_000)) {
            let (naming, named) = of(SEED, asked.iter().copied());
            for name in first(SEED, asked.iter().copied(), NAMED) {
                let truth = asked.iter().filter(|n| **n == name).count() as u64;
                prop_assert_eq!(named[&name], truth);
            }
            prop_assert!(naming.first.len() <= NAMED && naming.frequent.len() <= FREQUENT);
        }

        #[test]
        fn what_is_displaced_is_named_no_longer(asked in proptest::collection::vec(0u32..4_000, 0..8_000)) {
            let mut naming = Naming::new(SEED);
            let mut current = BTreeSet::new();
            for name in asked {
                let place = SEED.place(&name);
                let Choice { named, displaced } = naming.choose(place, 1);
                if named {
                    current.insert(place);
                }
                if let Some(displaced) = displaced {
                    prop_assert!(current.remove(&displaced) && displaced != place || !named);
                }
                prop_assert!(current.len() <= NAMED + FREQUENT);
            }
        }
    }
}
