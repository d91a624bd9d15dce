//! Kills everything of one user at once.
//!
//! Who is signalled process by process can fork between the look and the signal, and a few that fork
//! in turn are never all found. The kernel signals all that a user may signal in one step, in which
//! none of them can fork, so PID 1 becomes that user for the one call.

use std::io;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::{
    process::{DumpableBehavior, getpid, set_dumpable_behavior},
    thread::{Uid, set_thread_res_uid},
};

use crate::accounts::User;

/// Kills all processes of `user` in the container.
///
/// Only as process 1, whose namespace the container's is: in another's, which an engine shares if it
/// is told to, the user may have processes that are none of the guest's. There nothing is done.
///
/// # Errors
/// When the kernel does not let this process take the user's rights, or its own again.
pub(crate) fn kill_all_of(user: &User) -> io::Result<()> {
    if getpid().is_init() {
        signal_all(Uid::from_raw(user.uid))?;
    }
    Ok(())
}

/// Without a capability in force, which leave with root's user, nobody else is in reach. The saved
/// user stays root's, so that there is a way back.
fn signal_all(user: Uid) -> io::Result<()> {
    let root = Uid::ROOT;
    set_thread_res_uid(user, user, root)?;
    let killed = kill(Pid::from_raw(-1), Signal::SIGKILL);
    set_thread_res_uid(root, root, root)?;
    // Whoever changes its user becomes dumpable where the machine is set up so.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match killed {
        // There was nobody, or nobody but us.
        Ok(()) | Err(nix::Error::ESRCH | nix::Error::EPERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
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
        signal_all(Uid::from_raw(NOBODYS)).unwrap();
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
    fn in_a_namespace_that_is_anothers_nobody_is_killed() {
        // A test is not process 1.
        let nobody = User { uid: 0, ..user() };
        kill_all_of(&nobody).unwrap();
    }
}
