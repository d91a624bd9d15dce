//! Takes from this process what it does not need, before it reads a byte.

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
    missing
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
