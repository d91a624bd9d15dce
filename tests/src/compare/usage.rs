//! What a program has used, as the kernel counts it: processor time, memory, descriptors.

use std::{fs, time::Duration};

use anyhow::Context;

/// A program: its first process, and all that come from it.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    root: u32,
}

/// Memory in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The program's share of what it has mapped (PSS).
    pub share: u64,
    /// What is resident (RSS), shared or not.
    pub resident: u64,
    /// What is resident and no file's.
    pub anonymous: u64,
}

impl Usage {
    /// Of the process `root` and its children, their children included.
    #[must_use]
    pub fn of(root: u32) -> Self {
        Self { root }
    }

    /// Processor time so far, of threads and children that have ended too.
    pub fn cpu(self) -> anyhow::Result<Duration> {
        let mut ticks = 0;
        for pid in self.processes()? {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            ticks += ticks_in(&stat);
        }
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_micros(ticks * 1_000_000 / per_second))
    }

    /// Memory at this moment.
    pub fn memory(self) -> anyhow::Result<Memory> {
        let mut sum = Memory {
            share: 0,
            resident: 0,
            anonymous: 0,
        };
        for pid in self.processes()? {
            let memory = Self::alone(pid)?;
            sum.share += memory.share;
            sum.resident += memory.resident;
            sum.anonymous += memory.anonymous;
        }
        Ok(sum)
    }

    /// Memory of one process at this moment, without its children's.
    pub fn alone(pid: u32) -> anyhow::Result<Memory> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let maps = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Ok(Memory {
            share: kib_in(&maps, "Pss:"),
            resident: kib_in(&maps, "Rss:"),
            anonymous: kib_in(&maps, "Anonymous:"),
        })
    }

    /// Open descriptors at this moment.
    pub fn descriptors(self) -> anyhow::Result<usize> {
        let mut sum = 0;
        for pid in self.processes()? {
            sum += fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        }
        Ok(sum)
    }

    fn processes(self) -> anyhow::Result<Vec<u32>> {
        let mut parents = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some(parent) = field(&stat, PARENT) {
                parents.push((pid, u32::try_from(parent)?));
            }
        }
        let mut all = vec![self.root];
        let mut seen = 0;
        while let Some(&parent) = all.get(seen) {
            seen += 1;
            let children = parents.iter().filter(|(_, of)| *of == parent);
            all.extend(children.map(|(pid, _)| *pid));
        }
        Ok(all)
    }
}

/// A number of `/proc/PID/stat` by its place, see proc(5); the name before may hold anything.
fn field(stat: &str, place: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let number = after_name.split_whitespace().nth(place - AFTER_NAME)?;
    number.parse().ok()
}

fn ticks_in(stat: &str) -> u64 {
    let times = TIMES.filter_map(|place| field(stat, place));
    times.sum()
}

fn kib_in(maps: &str, name: &str) -> u64 {
    let line = maps.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

const AFTER_NAME: usize = 3;
const PARENT: usize = 4;
/// Own user and system time, and that of children that were waited for.
const TIMES: std::ops::RangeInclusive<usize> = 14..=17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 0 1 2 3 4 10 20 300 4000 20 0 1";
        assert_eq!(field(stat, PARENT), Some(3));
        assert_eq!(ticks_in(stat), 4330);
        assert_eq!(ticks_in(""), 0);
    }

    #[test]
    fn a_line_of_the_map_is_found_by_its_whole_name() {
        let maps = "Rss:   10 kB\nPss_Dirty:  7 kB\nPss:  8 kB\n";
        assert_eq!((kib_in(maps, "Pss:"), kib_in(maps, "Swap:")), (8, 0));
    }

    #[test]
    fn this_process_has_memory_descriptors_and_time() {
        let usage = Usage::of(std::process::id());
        let memory = usage.memory().unwrap();
        assert!(memory.share <= memory.resident && memory.anonymous > 0);
        assert!(usage.descriptors().unwrap() > 2);
        assert!(usage.cpu().unwrap() < Duration::from_secs(3600));
    }
}
