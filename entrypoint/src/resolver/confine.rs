//! Takes from the resolver what it does not need, before it reads a byte of anybody's but PID 1's.
//!
//! Who finds a way to run code in it is a process without privileges, that can start no other and
//! look into none, and whose packets the rules hold to what the guest's are held to.

use std::{collections::BTreeMap, io};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// Confines this process. All of it, or an error: a resolver that could do more is none.
pub(super) fn process() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    for (resource, most) in LIMITS {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)?;
    }
    apply_filter(&filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let calls: BTreeMap<_, _> = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    let errno = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(calls, SeccompAction::Allow, errno, arch)?.try_into()
}

/// What it never does. Descriptors are for a socket a question, at most some hundred at once.
const LIMITS: [(Resource, u64); 4] = [
    (Resource::Core, 0),
    (Resource::Fsize, 0),
    (Resource::Nproc, 0),
    (Resource::Nofile, 1024),
];
/// Running programs, looking into processes, and being dialled.
const REFUSED: [i64; 7] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_listen,
    libc::SYS_kill,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_compiled_for_this_machine() {
        assert!(!filter().unwrap().is_empty());
    }
}
