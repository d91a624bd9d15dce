//! Whether every message arrived, judged by their numbers.

/// The sequence numbers seen so far, which should be 1, 2, 3, ….
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    last: u64,
    missing: u64,
    repeated: u64,
}

impl Sequence {
    /// Takes the next number, and says whether its message is new. One that was seen before, as
    /// after a reconnection, must not be counted again.
    pub fn accept(&mut self, seq: u64) -> bool {
        let Some(skipped) = seq
            .checked_sub(self.last)
            .and_then(|step| step.checked_sub(1))
        else {
            self.repeated = self.repeated.saturating_add(1);
            return false;
        };
        self.missing = self.missing.saturating_add(skipped);
        self.last = seq;
        true
    }

    /// The greatest number seen; 0 before the first.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// How many numbers were skipped.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.missing
    }

    /// How many messages came again.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(numbers: &[u64]) -> (u64, u64, u64) {
        let mut sequence = Sequence::default();
        for &seq in numbers {
            sequence.accept(seq);
        }
        (sequence.last(), sequence.missing(), sequence.repeated())
    }

    #[test]
    fn holes_and_repetitions_are_counted_apart() {
        for (numbers, expected) in [
            (&[][..], (0, 0, 0)),
            (&[1, 2, 3], (3, 0, 0)),
            (&[2], (2, 1, 0)),
            (&[1, 4, 5], (5, 2, 0)),
            (&[1, 2, 2, 1, 3], (3, 0, 2)),
            (&[0, 1], (1, 0, 1)),
            (&[1, u64::MAX, 2], (u64::MAX, u64::MAX - 2, 1)),
        ] {
            assert_eq!(after(numbers), expected, "{numbers:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_dropped_on_the_way_is_missing(kept in proptest::collection::vec(any::<bool>(), 1..100)) {
            let numbers: Vec<u64> = (1..).zip(&kept).filter(|(_, k)| **k).map(|(n, _)| n).collect();
            let last = numbers.last().copied().unwrap_or(0);
            prop_assert_eq!(after(&numbers).1, last - numbers.len() as u64);
        }
    }
}
