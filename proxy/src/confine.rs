//! Takes from this process what it does not need, before it reads a byte of anybody's but PID 1's.
//!
//! Who finds a way to run code here is a process without files, programs, new listeners, or peers to
//! speak with but those that the proxy itself could reach. Each measure stands alone: what a kernel
//! or an engine does not grant is named to the run's record, and the proxy serves without it.

mod calls;
mod files;

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
    thread::set_no_new_privs,
};

/// Closes the process to its like, and says what could not be had, one sentence each.
pub(crate) fn process() -> Vec<String> {
    let mut missing = Vec::new();
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        missing.push(format!(
            "the proxy's memory is open to processes of its uid: {error}"
        ));
    }
    if let Err(error) = set_no_new_privs(true) {
        missing.push(format!(
            "the proxy could gain privileges by executing a program: {error}"
        ));
    }
    for (resource, harm) in UNUSED {
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        if let Err(error) = setrlimit(resource, none) {
            missing.push(format!("the proxy could {harm}: {error}"));
        }
    }
    missing
}

/// Keeps the calling thread, which must be the process's only one, to the files and to the system
/// calls that serving takes, and says what could not be had.
///
/// The last thing before it serves: what is behind it cannot open a file or start a thread.
pub(crate) fn serving(unforeseen: UnforeseenCalls) -> Vec<String> {
    // A program without dynamic linking has its random numbers from a device, which is opened when
    // it first needs one, and stays open: the identifiers of DNS questions come from there.
    let random = getrandom::fill(&mut [0])
        .err()
        .map(|error| format!("the proxy's resolver has no random numbers: {error}"));
    // In this order: the filter of calls has no room for those of the other.
    let files = files::close();
    let calls = calls::filter(unforeseen);
    [random, files, calls].into_iter().flatten().collect()
}

/// What becomes of a system call that nobody thought would be needed, and that nobody could do harm
/// with at its first try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnforeseenCalls {
    /// It fails as on a kernel that does not have it, which libraries are prepared for.
    Fail,
    /// It ends the process: tests must not pass by what a library makes of a failure.
    End,
}

/// How many connections the limit on descriptors has room for, at most `wanted`; raises the limit
/// as far as it may. And what could not be had.
pub(crate) fn connections(wanted: usize) -> (usize, Option<String>) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let room = current.map_or(usize::MAX, room_for);
    if room >= wanted {
        return (wanted, None);
    }
    (
        room,
        Some(format!(
            "{room} connections at once instead of {wanted}: the limit on open files leaves no more"
        )),
    )
}

fn room_for(descriptors: u64) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    (descriptors.saturating_sub(RESERVED) / PER_CONNECTION).max(1)
}

/// Limits on what the proxy never does, and what it could do without them.
const UNUSED: [(Resource, &str); 3] = [
    (Resource::Core, "leave its memory in a core file"),
    (Resource::Fsize, "write to a file"),
    (Resource::Nproc, "start processes"),
];
/// The client's and the far end's.
const PER_CONNECTION: usize = 2;
/// For listeners, resolvers, and attempts of which all but one are given up.
const RESERVED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_connections_is_what_descriptors_allow_and_never_none() {
        for (descriptors, room) in [(8448, 4096), (1024, 384), (100, 1), (0, 1)] {
            assert_eq!(room_for(descriptors), room, "{descriptors}");
        }
    }

    #[test]
    fn what_is_wanted_is_given_where_there_is_room() {
        assert_eq!(connections(1), (1, None));
        let (given, missing) = connections(usize::MAX);
        assert_eq!(missing.is_some(), given < usize::MAX, "{given}");
    }
}
