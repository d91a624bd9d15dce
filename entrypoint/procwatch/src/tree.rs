//! All processes at once, and which of them descend from one.

use std::{collections::HashSet, fs, io};

use crate::{Process, ProcessError};

/// Looks at every process of this /proc. One that ends meanwhile is left out.
///
/// # Errors
/// When /proc itself cannot be listed.
pub fn snapshot() -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        match Process::observe(pid) {
            Ok(process) => all.push(process),
            Err(ProcessError::Gone(_) | ProcessError::Form(_) | ProcessError::Read { .. }) => {}
        }
    }
    Ok(all)
}

/// Those of `all` that descend from `root`, without `root` itself and without the subtrees of
/// `except`.
///
/// Orphans are found because they are children of the nearest subreaper or of PID 1: call it with
/// that process as root.
#[must_use]
pub fn descendants<'a>(all: &'a [Process], root: i32, except: &[i32]) -> Vec<&'a Process> {
    let mut family = HashSet::from([root]);
    let mut found = Vec::new();
    // A generation a round: /proc lists by pid, and a child's may be smaller than its parent's.
    loop {
        let before = found.len();
        for process in all {
            let pid = process.identity.pid;
            if family.contains(&process.ppid) && !except.contains(&pid) && family.insert(pid) {
                found.push(process);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, State};

    fn process(pid: i32, parent: i32) -> Process {
        let identity = Identity { pid, start_time: 1 };
        Process {
            identity,
            ppid: parent,
            state: State::Alive,
            name: String::new(),
        }
    }

    fn pids(all: &[Process], root: i32, except: &[i32]) -> Vec<i32> {
        let mut pids: Vec<_> = descendants(all, root, except)
            .iter()
            .map(|p| p.identity.pid)
            .collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn children_of_children_are_found_whatever_their_pids() {
        let all = [
            process(1, 0),
            process(5, 9),
            process(9, 1),
            process(4, 5),
            process(7, 0),
        ];
        assert_eq!(pids(&all, 1, &[]), [4, 5, 9]);
    }

    #[test]
    fn an_excepted_process_takes_its_children_with_it() {
        let all = [process(1, 0), process(2, 1), process(3, 2), process(4, 1)];
        assert_eq!(pids(&all, 1, &[2]), [4]);
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let all = [process(2, 3), process(3, 2), process(1, 1)];
        assert_eq!(pids(&all, 1, &[]), Vec::<i32>::new());
        assert_eq!(pids(&all, 2, &[]), [3]);
    }

    #[test]
    fn the_running_system_has_this_process_in_it() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(snapshot().unwrap().iter().any(|p| p.identity.pid == me));
    }
}
