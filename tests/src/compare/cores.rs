//! Which processor the measured program runs on, and which one its two ends.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two sets of processors that have none in common, unless there is only one.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    contestant: usize,
    ends: usize,
}

impl Cores {
    /// The first two that this process may use.
    pub fn two() -> anyhow::Result<Self> {
        let set = sched_getaffinity(None).context("ask which processors may be used")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
        let contestant = usable.next().context("find a processor")?;
        Ok(Self {
            contestant,
            ends: usable.next().unwrap_or(contestant),
        })
    }

    /// Keeps the calling thread, and those that it starts, where the ends run.
    pub fn stay_with_ends(self) -> anyhow::Result<()> {
        stay_on(self.ends)
    }

    /// Starts something where contestants run.
    pub fn with_contestant<T>(
        self,
        start: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        stay_on(self.contestant)?;
        let started = start();
        stay_on(self.ends)?;
        started
    }
}

fn stay_on(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).context("stay on one processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_for_a_contestant_leaves_the_caller_with_the_ends() {
        let before = sched_getaffinity(None).unwrap();
        let cores = Cores::two().unwrap();
        let inside = cores
            .with_contestant(|| Ok(sched_getaffinity(None)?))
            .unwrap();
        assert!(inside.is_set(cores.contestant) && inside.count() == 1);
        let after = sched_getaffinity(None).unwrap();
        assert!(after.is_set(cores.ends) && after.count() == 1);
        sched_setaffinity(None, &before).unwrap();
    }
}
