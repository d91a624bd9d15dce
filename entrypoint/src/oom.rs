//! What happens when memory runs out: the guest is the one whom the kernel ends first, and not PID 1
//! or the proxy (proc(5), `oom_score_adj`), and that it was the kernel is known.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
};

use report::Printable;

/// While this is held, what PID 1 starts is preferred as the victim.
///
/// PID 1 raises its own score and takes it back after the fork: it may not write the guest's, which
/// is another user's, and the guest could do it but need not.
#[derive(Debug)]
pub(crate) struct Sacrifice {
    before: io::Result<String>,
}

impl Sacrifice {
    /// Raises the score that the next child inherits.
    pub(crate) fn prepare() -> Self {
        let before = fs::read_to_string(PATH).and_then(|before| {
            let raised = before
                .trim()
                .parse::<i32>()
                .unwrap_or(0)
                .saturating_add(RAISE)
                .min(MAX);
            fs::write(PATH, raised.to_string())?;
            Ok(before)
        });
        Self { before }
    }

    /// Why it could not be had.
    pub(crate) fn degradation(&self) -> Option<Printable> {
        let error = self.before.as_ref().err()?;
        Some(Printable::new(&format!(
            "oom_score_adj could not be raised for the guest: {error}"
        )))
    }

    /// Takes PID 1's own score back.
    pub(crate) fn end(self) {
        if let Ok(before) = self.before {
            // Lowering to what it was needs no privilege; if it fails PID 1 is a victim like the
            // guest, and its death is visible in the record.
            let _ = fs::write(PATH, before.trim());
        }
    }
}

/// How many processes of this container the kernel has ended for want of memory.
///
/// Engines hear of it by an event that may come after the container's end, or not at all; the kernel
/// counts before it kills.
#[derive(Debug)]
pub(crate) struct Kills {
    counter: File,
    before: u64,
}

impl Kills {
    /// Begins to count; `None` where the container does not see its control group.
    pub(crate) fn since_now() -> Option<Self> {
        let mut counters = COUNTERS.iter().flat_map(File::open);
        counters.find_map(Self::counted_in)
    }

    fn counted_in(counter: File) -> Option<Self> {
        let before = count(&counter)?;
        Some(Self { counter, before })
    }

    /// Whether there was one since.
    pub(crate) fn happened(&self) -> bool {
        count(&self.counter).is_some_and(|now| now > self.before)
    }
}

fn count(counter: &File) -> Option<u64> {
    let mut text = [0; 1024];
    let length = counter.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Of control groups of version 2, and of version 1 (cgroup-v2.rst and memcg in the kernel's
/// documentation). Engines mount the container's own group there.
const COUNTERS: [&str; 2] = [
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
];

const PATH: &str = "/proc/self/oom_score_adj";
const RAISE: i32 = 500;
const MAX: i32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_raised_for_children_and_taken_back() {
        let before = fs::read_to_string(PATH).unwrap();
        let sacrifice = Sacrifice::prepare();
        let child = std::process::Command::new("cat")
            .arg(PATH)
            .output()
            .unwrap();
        assert!(sacrifice.degradation().is_none());
        sacrifice.end();
        let raised: i32 = String::from_utf8(child.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_eq!(
            raised,
            (before.trim().parse::<i32>().unwrap() + RAISE).min(MAX)
        );
        assert_eq!(fs::read_to_string(PATH).unwrap(), before);
    }

    #[test]
    fn a_score_that_could_not_be_raised_is_said() {
        let before = Err(io::ErrorKind::PermissionDenied.into());
        let sentence = Sacrifice { before }.degradation().unwrap();
        assert!(sentence.as_str().contains("oom_score_adj"), "{sentence}");
    }

    /// A counter that says this.
    fn counter(text: &str) -> File {
        let counter = rustix::fs::memfd_create("counter", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let counter = File::from(counter);
        counter.write_all_at(text.as_bytes(), 0).unwrap();
        counter
    }

    #[test]
    fn kills_are_counted_from_the_beginning_on() {
        for (before, after) in [
            // memory.events, and memory.oom_control.
            (
                "low 0\nhigh 4\nmax 9\noom 1\noom_kill 3\noom_group_kill 0\n",
                "low 0\nhigh 4\nmax 9\noom 2\noom_kill 4\noom_group_kill 0\n",
            ),
            (
                "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            ),
        ] {
            let counter = counter(before);
            let kills = Kills::counted_in(counter.try_clone().unwrap()).unwrap();
            assert!(!kills.happened(), "{before}");
            counter.write_all_at(after.as_bytes(), 0).unwrap();
            assert!(kills.happened(), "{after}");
        }
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_claimed() {
        assert!(Kills::counted_in(counter("")).is_none());
        // Before 4.13 the kernel did not count.
        let uncounted = "oom_kill_disable 0\nunder_oom 1\n";
        assert!(Kills::counted_in(counter(uncounted)).is_none());
    }
}
