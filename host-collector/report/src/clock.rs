//! Milliseconds since a run began, the same in every process of its container.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time axis of a run: the kernel's monotonic clock, counted from the moment PID 1 started.
///
/// The wall clock may step while a run lasts; reports must not run backwards with it. PID 1 hands
/// its origin to the proxy, so that both stamp on one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClock {
    origin: Duration,
}

impl RunClock {
    /// Starts the axis now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: monotonic(),
        }
    }

    /// Continues the axis of another process on the same machine.
    #[must_use]
    pub const fn from_origin_ms(origin_ms: u64) -> Self {
        Self {
            origin: Duration::from_millis(origin_ms),
        }
    }

    /// The origin to hand on, in milliseconds of the monotonic clock.
    #[must_use]
    pub fn origin_ms(self) -> u64 {
        millis(self.origin)
    }

    /// Milliseconds since the run began.
    #[must_use]
    pub fn elapsed_ms(self) -> u64 {
        millis(monotonic().saturating_sub(self.origin))
    }
}

fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_share_one_axis() {
        let first = RunClock::start();
        let second = RunClock::from_origin_ms(first.origin_ms());
        assert!(second.elapsed_ms().abs_diff(first.elapsed_ms()) <= 2);
    }
}
