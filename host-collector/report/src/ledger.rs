//! Adds up increments until they can be sent: exact in its sums, bounded in what it keeps apart.
//!
//! Both the proxy and PID 1 put one before their sockets, so that a slow reader costs detail and
//! never a count, and a guest that invents targets cannot make either of them grow.

use std::collections::{BTreeMap, btree_map::Entry};

use policy::DenyReason;

use crate::{Allowed, Denied, Seed, Target, naming::Naming};

/// Increments that wait to be sent, and which of their targets are to be named.
#[derive(Debug)]
pub struct Ledger {
    naming: Naming,
    /// By the place of the target.
    named: BTreeMap<u64, Denied>,
    unnamed: BTreeMap<DenyReason, Denied>,
    max_allowed: usize,
    allowed: BTreeMap<Target, Allowed>,
}

impl Ledger {
    /// A ledger that names as many refused targets as a record can make use of, and chooses them in
    /// the order of `seed`; what goes beyond is counted under the target that names nothing, by
    /// reason. So is what was let through to more than `max_allowed` targets between two reports.
    #[must_use]
    pub fn new(seed: Seed, max_allowed: usize) -> Self {
        Self {
            naming: Naming::new(seed),
            named: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            max_allowed,
            allowed: BTreeMap::new(),
        }
    }

    /// The order in which targets are chosen.
    #[must_use]
    pub const fn seed(&self) -> Seed {
        self.naming.seed()
    }

    /// Chooses anew, in another order: what was refused before, if anything, has no part in it.
    pub fn choose_by(&mut self, seed: Seed) {
        self.naming = Naming::new(seed);
    }

    /// Adds refused attempts.
    pub fn deny(&mut self, more: Denied) {
        if more.is_unnamed() {
            return self.unname(more);
        }
        let place = self.naming.seed().place(&more);
        let choice = self.naming.choose(place, more.count);
        if let Some(displaced) = choice.displaced
            && let Some(waiting) = self.named.remove(&displaced)
        {
            self.unname(waiting);
        }
        if choice.named {
            enter(self.named.entry(place), more);
        } else {
            self.unname(more);
        }
    }

    fn unname(&mut self, mut more: Denied) {
        more.unname();
        enter(self.unnamed.entry(more.reason), more);
    }

    /// Adds attempts that were let through.
    pub fn allow(&mut self, mut more: Allowed) {
        if self.allowed.len() >= self.max_allowed && !self.allowed.contains_key(&more.target) {
            more.target = Target::default();
        }
        match self.allowed.entry(more.target.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(more);
            }
            Entry::Occupied(mut entry) => entry.get_mut().add(&more),
        }
    }

    /// How many increments of refused attempts wait.
    #[must_use]
    pub fn denied(&self) -> usize {
        self.named.len() + self.unnamed.len()
    }

    /// How many of attempts that were let through.
    #[must_use]
    pub fn allowed(&self) -> usize {
        self.allowed.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.denied() == 0 && self.allowed() == 0
    }

    /// Takes out one sum of refused attempts.
    pub fn pop_denied(&mut self) -> Option<Denied> {
        let first = self.named.pop_first().map(|(_, denied)| denied);
        first.or_else(|| self.unnamed.pop_first().map(|(_, denied)| denied))
    }

    /// Takes out one sum of attempts that were let through.
    pub fn pop_allowed(&mut self) -> Option<Allowed> {
        self.allowed.pop_first().map(|(_, allowed)| allowed)
    }
}

fn enter<K: Ord>(entry: Entry<'_, K, Denied>, more: Denied) {
    match entry {
        Entry::Vacant(entry) => {
            entry.insert(more);
        }
        Entry::Occupied(mut entry) => entry.get_mut().add(&more),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{NAMED, Printable, Transport};

    const SEED: Seed = Seed([5; 16]);

    fn denied(host: &str, count: u64, at: u64) -> Denied {
        Denied {
            target: Target {
                host: Some(Printable::new(host)),
                address: None,
                port: Some(443),
            },
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count,
            first: at,
            last: at,
            uid: None,
        }
    }

    fn invented(hosts: std::ops::Range<u32>) -> impl Iterator<Item = Denied> {
        hosts.map(|host| denied(&host.to_string(), 1, 0))
    }

    fn all(ledger: &mut Ledger) -> Vec<Denied> {
        std::iter::from_fn(|| ledger.pop_denied()).collect()
    }

    fn hand_on(from: &mut Ledger, to: &mut Ledger) {
        for denied in all(from) {
            to.deny(denied);
        }
    }

    #[test]
    fn one_target_is_one_entry_with_its_first_and_last_time() {
        let mut ledger = Ledger::new(SEED, 8);
        ledger.deny(denied("a.example", 2, 70));
        ledger.deny(denied("a.example", 3, 50));
        let sum = ledger.pop_denied().unwrap();
        assert_eq!((sum.count, sum.first, sum.last), (5, 50, 70));
        assert!(ledger.is_empty());
    }

    #[test]
    fn what_is_not_named_is_one_entry_for_each_reason() {
        let mut ledger = Ledger::new(SEED, 8);
        for mut one in invented(0..10_000) {
            ledger.deny(one.clone());
            one.reason = DenyReason::Limit;
            ledger.deny(one);
        }
        let all = all(&mut ledger);
        let unnamed: Vec<_> = all.iter().filter(|d| d.is_unnamed()).collect();
        let reasons: BTreeSet<_> = unnamed.iter().map(|d| d.reason).collect();
        assert_eq!(reasons.len(), 2);
        assert_eq!(unnamed.len(), 2);
        assert_eq!(all.len(), NAMED + 2);
        assert_eq!(all.iter().map(|d| d.count).sum::<u64>(), 20_000);
    }

    #[test]
    fn what_is_chosen_no_longer_does_not_wait_by_its_name() {
        let mut ledger = Ledger::new(SEED, 8);
        for one in invented(0..20_000) {
            ledger.deny(one);
            assert!(ledger.denied() <= NAMED + 1);
        }
    }

    #[test]
    fn what_comes_without_a_name_goes_without_one() {
        let mut ledger = Ledger::new(SEED, 8);
        let mut nobody = denied("", 7, 1);
        nobody.unname();
        ledger.deny(nobody.clone());
        assert_eq!(all(&mut ledger), [nobody]);
    }

    #[test]
    fn the_choice_outlasts_what_was_taken_out() {
        let mut ledger = Ledger::new(SEED, 8);
        for one in invented(0..20_000) {
            ledger.deny(one);
        }
        all(&mut ledger);
        for one in invented(20_000..20_500) {
            ledger.deny(one);
        }
        assert!(ledger.denied() < 100, "{}", ledger.denied());
    }

    #[test]
    fn two_in_a_row_choose_what_one_would() {
        let (mut one, mut proxy) = (Ledger::new(SEED, 8), Ledger::new(SEED, 8));
        let mut init = Ledger::new(SEED, 8);
        for denied in invented(0..20_000) {
            one.deny(denied.clone());
            proxy.deny(denied);
            if proxy.denied() > 64 {
                hand_on(&mut proxy, &mut init);
            }
        }
        hand_on(&mut proxy, &mut init);
        assert_eq!(all(&mut init), all(&mut one));
    }

    #[test]
    fn another_order_chooses_others() {
        let names = |seed| {
            let mut ledger = Ledger::new(Seed([0; 16]), 8);
            ledger.choose_by(seed);
            assert_eq!(ledger.seed(), seed);
            for one in invented(0..5_000) {
                ledger.deny(one);
            }
            let names = all(&mut ledger).into_iter().map(|d| d.target);
            names.collect::<BTreeSet<_>>()
        };
        assert_ne!(names(SEED), names(Seed([6; 16])));
        assert_eq!(names(SEED), names(SEED));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn no_count_is_lost_however_many_targets_are_invented(hosts in proptest::collection::vec(0u32..5_000, 1..4_000)) {
            let mut ledger = Ledger::new(SEED, 16);
            for host in &hosts {
                ledger.deny(denied(&host.to_string(), 1, 0));
            }
            prop_assert!(ledger.denied() <= NAMED + 64 + DenyReason::ALL.len());
            let sum: u64 = all(&mut ledger).iter().map(|d| d.count).sum();
            prop_assert_eq!(sum, hosts.len() as u64);
        }
    }

    #[test]
    fn bytes_and_connections_add_up_beyond_the_bound() {
        let mut ledger = Ledger::new(SEED, 2);
        for host in ["a", "b", "c", "d", "a"] {
            let target = Target {
                host: Some(Printable::new(host)),
                ..Target::default()
            };
            ledger.allow(Allowed {
                target,
                connections: 1,
                failures: 0,
                bytes_up: 10,
                bytes_down: 20,
                ech_offered: 2,
            });
        }
        let all: Vec<_> = std::iter::from_fn(|| ledger.pop_allowed()).collect();
        assert!(all.len() <= 3, "{all:?}");
        assert_eq!(all.iter().map(|a| a.connections).sum::<u64>(), 5);
        assert_eq!(all.iter().map(|a| a.bytes_down).sum::<u64>(), 100);
        assert_eq!(all.iter().map(|a| a.ech_offered).sum::<u64>(), 10);
    }
}
