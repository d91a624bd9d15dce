//! Kills everything of one user at once.
//!
//! Who is signalled process by process can fork between the look and the signal, and a few that fork
//! in turn are never all found. The kernel signals all that a user may signal in one step, in which
//! none of them can fork, so PID 1 takes that user's rights for the one call.

use std::{fs, io, path::PathBuf};

use nix::sys::signal::{Signal, kill};
use rustix::{
    process::{DumpableBehavior, Pid, getpid, getppid, set_dumpable_behavior},
    thread::{Uid, set_thread_res_uid},
};

use crate::accounts::User;

/// Kills all processes of `user` in the container.
///
/// Only where the namespace of process ids is the container's own: in another's, which an engine
/// shares if it is told to, the user may have processes that are none of the guest's. There nothing
/// is done.
///
/// # Errors
/// When the kernel does not let this process take the user's rights, or its own again.
pub(crate) fn kill_all_of(user: &User, proxy: &User) -> io::Result<()> {
    if is_in_its_own_namespace(getpid(), getppid(), mount_namespace) {
        let stranger = stranger_to(user.uid, proxy.uid);
        signal_all(Uid::from_raw(user.uid), Uid::from_raw(stranger))?;
    }
    Ok(())
}

/// A user that is neither of both, nor root, and close enough to `user` to exist wherever that does:
/// a container may have only some of the numbers (`user_namespaces(7)`).
fn stranger_to(user: u32, proxy: u32) -> u32 {
    let near = [user.wrapping_sub(1), user.wrapping_sub(2)];
    let far = [user.wrapping_add(1), user.wrapping_add(2)];
    let taken = [0, proxy, u32::MAX];
    let mut candidates = near.into_iter().chain(far);
    let free = candidates.find(|candidate| !taken.contains(candidate));
    // Never: of four different numbers at most three are taken.
    free.unwrap_or(user)
}

/// Whether nobody but the container's processes are in reach: this is process 1, or the child of one
/// that is the engine's init. That one is in the container too, and so has its mounts; a process 1 of
/// the machine or of another container, which happens to be the parent, has others.
fn is_in_its_own_namespace(
    own: Pid,
    parent: Option<Pid>,
    mounts_of: impl Fn(&str) -> Option<PathBuf>,
) -> bool {
    own.is_init()
        || (parent.is_some_and(Pid::is_init)
            && mounts_of("1").is_some_and(|mounts| mounts_of("self") == Some(mounts)))
}

/// What names a process's mount namespace (namespaces(7)), where it may be read.
fn mount_namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Without a capability in force, which leave with root's user, nobody else is in reach. The saved
/// user stays root's, so that there is a way back; and as the real one is a stranger's, nobody of
/// those that are about to be killed may signal this process meanwhile. Process 1 need not fear that,
/// but whoever stands behind an init of the engine's must (kill(2)).
fn signal_all(user: Uid, stranger: Uid) -> io::Result<()> {
    let root = Uid::ROOT;
    set_thread_res_uid(stranger, user, root)?;
    let killed = kill(EVERYBODY, Signal::SIGKILL);
    set_thread_res_uid(root, root, root)?;
    // Whoever changes its user becomes dumpable where the machine is set up so.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match killed {
        // There was nobody, or nobody but us.
        Ok(()) | Err(nix::Error::ESRCH | nix::Error::EPERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// All that the caller may signal, but for itself and process 1 (kill(2)).
const EVERYBODY: nix::unistd::Pid = nix::unistd::Pid::from_raw(-1);

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::MetadataExt as _,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::launch::Launch;

    /// Nobody else's on any machine: all of its processes are killed here.
    const NOBODYS: u32 = 4_299_001;

    fn user() -> User {
        User {
            uid: NOBODYS,
            gid: NOBODYS,
            groups: Vec::new(),
            home: None,
        }
    }

    /// Starts a script as that user; it runs when this returns.
    fn start(script: &str) -> Child {
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut child = Launch::unprivileged(&user())
            .spawn(&mut command)
            .expect("this test needs root and python3");
        let mut byte = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        child
    }

    fn alive() -> usize {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let theirs = processes.filter(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            entry.metadata().is_ok_and(|data| data.uid() == NOBODYS)
                && !status.contains("State:\tZ")
        });
        theirs.count()
    }

    #[test]
    fn those_that_fork_without_end_are_all_killed_and_nobody_else_is() {
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut child = start(
            "
import os
for chain in range(8):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
os.write(1, b'x')
while True:
    pass",
        );
        // Before anything else can fail: nobody else could end them.
        let stranger = stranger_to(NOBODYS, 990);
        signal_all(Uid::from_raw(NOBODYS), Uid::from_raw(stranger)).unwrap();
        assert!(!child.wait().unwrap().success());
        let began = Instant::now();
        while alive() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "they go on");
        }
        assert!(other.try_wait().unwrap().is_none(), "root's was killed too");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(rustix::process::geteuid().is_root() && rustix::process::getuid().is_root());
    }

    #[test]
    fn whoever_is_killed_may_not_signal_the_one_who_does_it() {
        for (user, proxy) in [
            (1000, 990),
            (1000, 999),
            (1, 990),
            (1, 2),
            (2, 1),
            (3, 2),
            (991, 990),
            (65533, 990),
            (65534, 65533),
            (u32::MAX - 1, 990),
        ] {
            let stranger = stranger_to(user, proxy);
            assert!(
                ![0, user, proxy, u32::MAX].contains(&stranger),
                "{user} {proxy}: {stranger}"
            );
        }
    }

    #[test]
    fn only_a_namespace_of_the_containers_own_is_emptied() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let ours = |_: &str| Some("mnt:[1]".into());
        let of_the_machine = |process: &str| match process {
            "1" => Some("mnt:[2]".into()),
            _ => Some("mnt:[1]".into()),
        };
        let closed = |_: &str| None::<PathBuf>;
        for (case, own, parent, mounts_of, expected) in [
            ("process 1", 1, None, &closed as &dyn Fn(&str) -> _, true),
            ("below the engine's init", 7, Some(1), &ours, true),
            ("on the machine", 7, Some(1), &of_the_machine, false),
            ("where nothing can be known", 7, Some(1), &closed, false),
            ("a child of somebody else", 7, Some(3), &ours, false),
            ("in another container's", 7, None, &ours, false),
        ] {
            let found = is_in_its_own_namespace(pid(own), parent.map(pid), mounts_of);
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn a_mount_namespace_has_a_name() {
        let own = mount_namespace("self").unwrap();
        assert!(own.to_str().unwrap().starts_with("mnt:["), "{own:?}");
        assert_eq!(mount_namespace("0"), None);
    }
}
