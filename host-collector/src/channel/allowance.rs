//! How much is read of what a container sends: a flood costs its sender time, not the host.

use std::time::{Duration, Instant};

/// A token bucket over bytes, which may fall into debt: what was read is read.
#[derive(Debug)]
pub(crate) struct Allowance {
    per_second: u32,
    left: i64,
    refilled: Instant,
}

impl Allowance {
    /// `per_second` bytes a second, and as many at once.
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            per_second: per_second.max(1),
            left: per_second.into(),
            refilled: now,
        }
    }

    /// Uses up what was read, and says until when to read nothing more.
    pub(crate) fn spend(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        self.refill(now);
        self.left = self.left.saturating_sub_unsigned(bytes as u64);
        let debt = u64::try_from(self.left.saturating_neg()).ok()?;
        Some(
            now + PAUSE
                + Duration::from_micros(debt.saturating_mul(MICROS) / u64::from(self.per_second)),
        )
    }

    fn refill(&mut self, now: Instant) {
        let passed = u64::try_from(now.saturating_duration_since(self.refilled).as_micros())
            .unwrap_or(u64::MAX);
        let more = passed.saturating_mul(self.per_second.into()) / MICROS;
        if more > 0 {
            self.left = self
                .left
                .saturating_add_unsigned(more)
                .min(self.per_second.into());
            self.refilled = now;
        }
    }
}

const MICROS: u64 = 1_000_000;
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_within_a_second_s_worth_is_not_held_up() {
        let now = Instant::now();
        let mut allowance = Allowance::new(1000, now);
        assert_eq!(allowance.spend(999, now), None);
        assert!(allowance.spend(1, now).is_some());
    }

    #[test]
    fn in_the_long_run_no_more_than_the_rate_is_read() {
        let start = Instant::now();
        let mut allowance = Allowance::new(100_000, start);
        let (mut now, mut read) = (start, 0_u64);
        while now < start + Duration::from_secs(10) {
            read += 4096;
            match allowance.spend(4096, now) {
                Some(until) => now = until,
                None => now += Duration::from_micros(10),
            }
        }
        assert!((900_000..1_110_000).contains(&read), "{read}");
    }
}
