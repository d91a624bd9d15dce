#![expect(
    unsafe_code,
    reason = "between fork and exec only a hook of `Command` can run"
)]
//! Starts a process as somebody else: the one way by which anything but PID 1 comes to run.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use nix::sys::signal::SigSet;
use rustix::{
    fs::Mode,
    io::Errno,
    process::{getpid, umask},
    thread::{
        CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{accounts::User, failure::Failure, families::Families, identity::Unprivileged};

/// What a process is started with.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    become_user: Option<Ids>,
    powerless: bool,
    families: Option<Families>,
    umask: Option<u32>,
    foreground: bool,
}

/// Plain numbers, so that nothing is allocated after the fork.
#[derive(Debug)]
struct Ids {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Launch {
    /// As `user`, with no capability in any set and no way to get one.
    pub(crate) fn unprivileged(user: &User) -> Self {
        let groups = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        let ids = Ids {
            uid: Uid::from_raw(user.uid),
            gid: Gid::from_raw(user.gid),
            groups,
        };
        Self {
            become_user: Some(ids),
            powerless: true,
            ..Self::default()
        }
    }

    /// As the user that PID 1 is already, without capabilities and any way to get one.
    pub(crate) fn powerless() -> Self {
        Self {
            powerless: true,
            ..Self::default()
        }
    }

    /// As what the engine made PID 1 itself.
    pub(crate) fn unchanged() -> Self {
        Self::default()
    }

    /// As everything runs under an allowlist: unprivileged, and with sockets of those families only
    /// that the rules see.
    pub(crate) fn confined(identity: &Unprivileged) -> Result<Self, Failure> {
        let families = Some(Families::only_local_and_ip()?);
        Ok(Self {
            families,
            ..Self::unprivileged(identity.user())
        })
    }

    /// With this file mode creation mask.
    pub(crate) fn with_umask(self, umask: Option<u32>) -> Self {
        Self { umask, ..self }
    }

    /// In the foreground of the terminal on its standard input.
    pub(crate) fn in_foreground(self, foreground: bool) -> Self {
        Self { foreground, ..self }
    }

    /// Starts `command` in a process group of its own. When this returns the program has been
    /// executed, or the error says why it could not be.
    pub(crate) fn spawn(self, command: &mut Command) -> io::Result<Child> {
        command.process_group(0);
        // SAFETY: the hook runs in the child between fork and exec. It makes system calls and
        // nothing else: it takes no lock and allocates nothing (`groups` was collected before), so
        // that whatever state the parent's other threads left behind does not matter.
        unsafe { command.pre_exec(move || self.apply()) };
        command.spawn()
    }

    /// Order matters: groups need `SETGID`, the bounding set `SETPCAP`, and both go with the uid.
    fn apply(&self) -> io::Result<()> {
        if self.foreground {
            // From a background group this would stop us (tcsetpgrp(3)); all signals are still
            // blocked, as PID 1 has them.
            rustix::termios::tcsetpgrp(rustix::stdio::stdin(), getpid())?;
        }
        if let Some(mask) = self.umask {
            umask(Mode::from_raw_mode(mask));
        }
        if let Some(ids) = &self.become_user {
            empty_bounding_set()?;
            set_thread_groups(&ids.groups)?;
            set_thread_res_gid(ids.gid, ids.gid, ids.gid)?;
            set_thread_res_uid(ids.uid, ids.uid, ids.uid)?;
        }
        if self.powerless {
            renounce_capabilities()?;
        }
        if let Some(families) = &self.families {
            families.apply()?;
        }
        heed_signals();
        SigSet::empty().thread_set_mask().map_err(io::Error::from)
    }
}

/// What whoever started PID 1 ignores is not for the guest to ignore: a shell leaves its background
/// jobs deaf to interrupts, and what they start, an engine included.
///
/// Not by `signal`, which denies that there are 32 and 33: those are the C library's.
fn heed_signals() {
    // The kernel's `struct sigaction` is no longer than this, and nothing in it is the default.
    let by_default = [0_u64; 8];
    for number in 1..=LAST_SIGNAL {
        // SAFETY: the kernel reads the structure, which lives until it returns, and is asked to write
        // none; its last argument is the size of its signal sets, 64 bits. A disposition that is the
        // default runs no code of this process. Those that cannot be changed are errors, and as
        // they should be.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                libc::c_long::from(number),
                by_default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }
}

/// Leaves this thread without a capability, and without a way to one.
pub(crate) fn renounce_capabilities() -> io::Result<()> {
    match clear_ambient_capability_set() {
        // A kernel that does not know this set, such as gVisor's, has none in it.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(set_no_new_privs(true)?)
}

/// Every capability that this kernel knows; the first that it does not know ends the list.
fn empty_bounding_set() -> io::Result<()> {
    for bit in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            Err(Errno::INVAL) if bit > 0 => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Of those that the kernel has.
const LAST_SIGNAL: i32 = 64;

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Needs root, as PID 1 is: the test command runs as root.
    fn status_of(launch: Launch) -> String {
        let child = launch
            .spawn(
                Command::new("cat")
                    .arg("/proc/self/status")
                    .stdout(Stdio::piped()),
            )
            .expect("starting a process as another user needs root");
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    fn field<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().skip(1).collect()
    }

    #[test]
    fn a_guest_has_no_capability_in_any_set_and_cannot_gain_one() {
        let user = User {
            uid: 4242,
            gid: 4243,
            groups: vec![4244, 4245],
            home: None,
        };
        let status = status_of(Launch::unprivileged(&user));
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
        }
        assert_eq!(field(&status, "NoNewPrivs:"), ["1"]);
        assert_eq!(field(&status, "Uid:"), ["4242"; 4]);
        assert_eq!(field(&status, "Gid:"), ["4243"; 4]);
        assert_eq!(field(&status, "Groups:"), ["4244", "4245"]);
    }

    #[test]
    fn a_guest_that_is_no_other_user_has_nothing_to_gain_either() {
        let status = status_of(Launch::powerless());
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
        }
        assert_eq!(field(&status, "NoNewPrivs:"), ["1"]);
        assert_eq!(field(&status, "Uid:"), ["0"; 4]);
    }

    #[test]
    fn a_guest_ignores_no_signal_that_was_ignored_when_process_1_began() {
        use nix::sys::signal::{SigHandler, Signal, signal};
        for ignored in [Signal::SIGXCPU, Signal::SIGWINCH] {
            // SAFETY: no test of this program is about these two, and the disposition has no code.
            unsafe { signal(ignored, SigHandler::SigIgn) }.unwrap();
        }
        for launch in [Launch::unchanged(), Launch::powerless()] {
            let status = status_of(launch);
            assert_eq!(field(&status, "SigIgn:"), ["0000000000000000"]);
        }
    }

    #[test]
    fn a_guest_starts_with_no_signal_blocked_and_its_own_umask() {
        let status = status_of(Launch::unchanged().with_umask(Some(0o27)));
        assert_eq!(field(&status, "SigBlk:"), ["0000000000000000"]);
        assert_eq!(field(&status, "Umask:"), ["0027"]);
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error_of_the_parent() {
        let missing = Launch::unchanged().spawn(&mut Command::new("/nonexistent"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_is_alone_in_a_group_of_its_own() {
        let child = Launch::unchanged()
            .spawn(
                Command::new("cat")
                    .arg("/proc/self/stat")
                    .stdout(Stdio::piped()),
            )
            .unwrap();
        let pid = child.id().to_string();
        let stat = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let fields: Vec<_> = stat.split_ascii_whitespace().collect();
        assert_eq!((fields[0], fields[4]), (pid.as_str(), pid.as_str()));
    }

    #[test]
    fn what_is_confined_is_filtered_and_what_is_not_is_not() {
        let user = User {
            uid: 4242,
            gid: 4242,
            groups: Vec::new(),
            home: None,
        };
        let identity = Unprivileged::new(user.clone()).unwrap();
        let confined = status_of(Launch::confined(&identity).unwrap());
        assert_eq!(field(&confined, "Seccomp:"), ["2"]);
        assert_eq!(
            field(&status_of(Launch::unprivileged(&user)), "Seccomp:"),
            ["0"]
        );
    }

    #[test]
    fn without_a_user_nothing_is_changed() {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let status = status_of(Launch::unchanged());
        for name in [
            "Uid:",
            "Gid:",
            "Groups:",
            "CapEff:",
            "CapBnd:",
            "NoNewPrivs:",
        ] {
            assert_eq!(field(&status, name), field(&own, name), "{name}");
        }
    }
}
