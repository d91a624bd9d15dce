//! Adds up increments until they can be sent: exact in its sums, bounded in what it keeps apart.
//!
//! Both the proxy and PID 1 put one before their sockets, so that a slow reader costs detail and
//! never a count, and a guest that invents targets cannot make either of them grow.

use std::collections::{HashMap, hash_map::Entry};

use policy::DenyReason;

use crate::{Allowed, Denied, Target, Transport};

/// Increments that wait to be sent.
#[derive(Debug)]
pub struct Ledger {
    max_keys: usize,
    denied: HashMap<(Target, Transport, DenyReason), Denied>,
    allowed: HashMap<Target, Allowed>,
}

impl Ledger {
    /// A ledger that keeps at most `max_keys` targets apart; what goes beyond is counted under the
    /// target that names nothing, by reason.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self {
            max_keys,
            denied: HashMap::new(),
            allowed: HashMap::new(),
        }
    }

    /// Adds refused attempts.
    pub fn deny(&mut self, mut more: Denied) {
        let mut key = (more.target.clone(), more.proto, more.reason);
        if self.len() >= self.max_keys && !self.denied.contains_key(&key) {
            key = (Target::default(), Transport::Other, more.reason);
            more.target = Target::default();
            more.proto = Transport::Other;
        }
        match self.denied.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(more);
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                sum.count = sum.count.saturating_add(more.count);
                sum.first = sum.first.min(more.first);
                sum.last = sum.last.max(more.last);
            }
        }
    }

    /// Adds attempts that were let through.
    pub fn allow(&mut self, mut more: Allowed) {
        if self.len() >= self.max_keys && !self.allowed.contains_key(&more.target) {
            more.target = Target::default();
        }
        match self.allowed.entry(more.target.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(more);
            }
            Entry::Occupied(mut entry) => entry.get_mut().add(&more),
        }
    }

    /// How many targets are kept apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.denied.len() + self.allowed.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.denied.is_empty() && self.allowed.is_empty()
    }

    /// Takes out one sum of refused attempts.
    pub fn pop_denied(&mut self) -> Option<Denied> {
        let key = self.denied.keys().next()?.clone();
        self.denied.remove(&key)
    }

    /// Takes out one sum of attempts that were let through.
    pub fn pop_allowed(&mut self) -> Option<Allowed> {
        let key = self.allowed.keys().next()?.clone();
        self.allowed.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Printable;

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
        }
    }

    #[test]
    fn one_target_is_one_entry_with_its_first_and_last_time() {
        let mut ledger = Ledger::new(8);
        ledger.deny(denied("a.example", 2, 70));
        ledger.deny(denied("a.example", 3, 50));
        let sum = ledger.pop_denied().unwrap();
        assert_eq!((sum.count, sum.first, sum.last), (5, 50, 70));
        assert!(ledger.is_empty());
    }

    proptest! {
        #[test]
        fn no_count_is_lost_however_many_targets_are_invented(hosts in proptest::collection::vec(0u32..500, 1..400)) {
            let mut ledger = Ledger::new(16);
            for host in &hosts {
                ledger.deny(denied(&host.to_string(), 1, 0));
            }
            prop_assert!(ledger.len() <= 16 + DenyReason::ALL.len());
            let sum: u64 = std::iter::from_fn(|| ledger.pop_denied()).map(|d| d.count).sum();
            prop_assert_eq!(sum, hosts.len() as u64);
        }
    }

    #[test]
    fn bytes_and_connections_add_up_beyond_the_bound() {
        let mut ledger = Ledger::new(2);
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
