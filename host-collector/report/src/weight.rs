//! What a sample keeps about each thing it counts.

use crate::{Allowed, Denied};

/// Numbers that add up, and by which things are ranked.
pub trait Weight: Clone {
    /// Adds an increment.
    fn absorb(&mut self, more: &Self);
    /// The rank: more is more important to a reader of the record.
    fn weight(&self) -> u64;
}

/// A mere number.
impl Weight for u64 {
    fn absorb(&mut self, more: &Self) {
        *self = self.saturating_add(*more);
    }

    fn weight(&self) -> u64 {
        *self
    }
}

/// Refused attempts of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// The first of them, in milliseconds since the run began.
    pub first_ms: u64,
    /// The last of them.
    pub last_ms: u64,
}

impl<R> From<&Denied<R>> for Refusals {
    fn from(denied: &Denied<R>) -> Self {
        Self {
            count: denied.count,
            first_ms: denied.first,
            last_ms: denied.last,
        }
    }
}

impl Weight for Refusals {
    fn absorb(&mut self, more: &Self) {
        self.count = self.count.saturating_add(more.count);
        self.first_ms = self.first_ms.min(more.first_ms);
        self.last_ms = self.last_ms.max(more.last_ms);
    }

    fn weight(&self) -> u64 {
        self.count
    }
}

/// Connections to one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Attempts that policy allowed.
    pub connections: u64,
    /// Those that then failed on their own account.
    pub failures: u64,
    /// Bytes from the guest.
    pub bytes_up: u64,
    /// Bytes to the guest.
    pub bytes_down: u64,
}

impl From<&Allowed> for Traffic {
    fn from(allowed: &Allowed) -> Self {
        Self {
            connections: allowed.connections,
            failures: allowed.failures,
            bytes_up: allowed.bytes_up,
            bytes_down: allowed.bytes_down,
        }
    }
}

impl Weight for Traffic {
    fn absorb(&mut self, more: &Self) {
        self.connections = self.connections.saturating_add(more.connections);
        self.failures = self.failures.saturating_add(more.failures);
        self.bytes_up = self.bytes_up.saturating_add(more.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(more.bytes_down);
    }

    /// What left the container matters most to who reads the record.
    fn weight(&self) -> u64 {
        self.bytes_up
            .saturating_add(self.bytes_down)
            .saturating_add(self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_outermost_times() {
        let mut sum = Refusals {
            count: 1,
            first_ms: 50,
            last_ms: 60,
        };
        sum.absorb(&Refusals {
            count: u64::MAX,
            first_ms: 40,
            last_ms: 55,
        });
        assert_eq!(
            sum,
            Refusals {
                count: u64::MAX,
                first_ms: 40,
                last_ms: 60
            }
        );
    }

    #[test]
    fn a_transfer_weighs_more_than_many_empty_connections() {
        let transfer = Traffic {
            connections: 1,
            bytes_up: 5000,
            ..Traffic::default()
        };
        let knocks = Traffic {
            connections: 1000,
            ..Traffic::default()
        };
        assert!(transfer.weight() > knocks.weight());
    }
}
