//! When which name is asked for again. Pure: time is given.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

/// The names by their number, each due at some time or being asked for.
#[derive(Debug)]
pub(super) struct Schedule {
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// How often in a row each was asked for in vain.
    failures: Vec<u8>,
}

impl Schedule {
    /// All of them at once, in their order.
    pub(super) fn new(names: usize, now: Instant) -> Self {
        Self {
            due: (0..names).map(|index| Reverse((now, index))).collect(),
            failures: vec![0; names],
        }
    }

    /// A name that is due, which then is no longer.
    pub(super) fn take(&mut self, now: Instant) -> Option<usize> {
        let Reverse((at, index)) = *self.due.peek()?;
        (at <= now).then(|| {
            self.due.pop();
            index
        })
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// It has addresses for so many seconds: it is asked for again when they end.
    pub(super) fn resolved(&mut self, index: usize, ttl: u32, now: Instant) {
        self.fail(index, |_| 0);
        let lasting = Duration::from_secs(ttl.into()).clamp(SHORTEST, LONGEST);
        self.due.push(Reverse((now + lasting, index)));
    }

    /// It was asked for in vain, or in part: it is asked for again soon, and later each time.
    pub(super) fn failed(&mut self, index: usize, now: Instant) {
        let before = self.fail(index, |failures| failures.saturating_add(1));
        self.due.push(Reverse((now + backoff(before), index)));
    }

    /// Changes the count, and returns what it was.
    fn fail(&mut self, index: usize, change: impl Fn(u8) -> u8) -> u8 {
        self.failures.get_mut(index).map_or(0, |failures| {
            let before = *failures;
            *failures = change(before);
            before
        })
    }
}

fn backoff(failures: u8) -> Duration {
    let factor = 1_u32.checked_shl(failures.into()).unwrap_or(u32::MAX);
    SHORTEST.saturating_mul(factor).min(LONGEST_PAUSE)
}

/// An answer that may not be kept at all must not make a storm of questions.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(3600);
/// A name that comes to be while the run goes on is found within this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn every_name_is_asked_for_at_once_and_in_order() {
        let start = Instant::now();
        let mut schedule = Schedule::new(3, start);
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(start)).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_name_is_asked_for_again_when_its_answer_ends_within_bounds() {
        let start = Instant::now();
        for (ttl, pause) in [(0, 2), (1, 2), (60, 60), (3600, 3600), (u32::MAX, 3600)] {
            let mut schedule = Schedule::new(1, start);
            assert_eq!(schedule.take(start), Some(0));
            schedule.resolved(0, ttl, start);
            assert_eq!(schedule.next(), Some(after(pause, start)), "{ttl}");
            assert_eq!(schedule.take(after(pause - 1, start)), None, "{ttl}");
            assert_eq!(schedule.take(after(pause, start)), Some(0), "{ttl}");
        }
    }

    #[test]
    fn a_name_that_keeps_failing_is_asked_for_less_and_less_but_never_given_up() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(1, now);
        let mut pauses = Vec::new();
        for _ in 0..300 {
            assert_eq!(schedule.take(now), Some(0));
            schedule.failed(0, now);
            let next = schedule.next().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses[..7], [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.last(), Some(&60));
        assert_eq!(schedule.take(now), Some(0));
        schedule.resolved(0, 5, now);
        assert_eq!(schedule.take(after(5, now)), Some(0));
        schedule.failed(0, now);
        assert_eq!(schedule.next(), Some(after(2, now)), "success forgives");
    }

    #[test]
    fn one_name_does_not_wait_for_another() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2, start);
        schedule.take(start);
        schedule.take(start);
        schedule.resolved(0, 3600, start);
        schedule.resolved(1, 10, start);
        assert_eq!(schedule.take(after(10, start)), Some(1));
        assert_eq!(schedule.take(after(10, start)), None);
    }
}
