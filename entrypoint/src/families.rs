//! Keeps processes to the address families that the rules see.
//!
//! nftables judges IP. A socket of another family (vsock(7) to the hypervisor, Bluetooth, …) is not
//! in the network namespace's hands at all, so under an allowlist there is none to be had. `io_uring`
//! can open sockets past this filter and is taken away as well; programs fall back to epoll.

use std::{collections::BTreeMap, sync::Arc};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::failure::Failure;

/// The filters, compiled before the fork.
#[derive(Debug, Clone)]
pub(crate) struct Families(Arc<[BpfProgram; 2]>);

impl Families {
    /// Compiles the filters for this machine. A program of another architecture, such as a 32-bit
    /// one, is killed at its first system call: its numbers mean other things.
    pub(crate) fn only_local_and_ip() -> Result<Self, Failure> {
        let compile = || -> Result<_, seccompiler::BackendError> {
            let arch = TargetArch::try_from(std::env::consts::ARCH)?;
            let sockets = refuse(
                libc::SYS_socket,
                vec![other_family()?],
                libc::EAFNOSUPPORT,
                arch,
            )?;
            let rings = refuse(libc::SYS_io_uring_setup, Vec::new(), libc::ENOSYS, arch)?;
            Ok(Self(Arc::new([sockets, rings])))
        };
        compile().map_err(|error| {
            Failure::setup(
                "compile the guest's seccomp filter",
                error,
                "use x86_64 or aarch64",
            )
        })
    }

    /// Applies them to this process and all that it will ever start. Makes system calls only.
    pub(crate) fn apply(&self) -> std::io::Result<()> {
        for filter in self.0.iter() {
            apply_filter(filter).map_err(|_| std::io::Error::last_os_error())?;
        }
        Ok(())
    }
}

/// Matches `socket()` for any family that is not in [`SEEN`].
fn other_family() -> Result<SeccompRule, seccompiler::BackendError> {
    let differs = |family: &i32| {
        let value = u64::try_from(*family).unwrap_or_default();
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
    };
    SeccompRule::new(SEEN.iter().map(differs).collect::<Result<_, _>>()?)
}

fn refuse(
    number: i64,
    rules: Vec<SeccompRule>,
    errno: i32,
    arch: TargetArch,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let calls = BTreeMap::from([(number, rules.clone()), (number | X32, rules)]);
    let errno = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(calls, SeccompAction::Allow, errno, arch)?.try_into()
}

/// Local, IPv4, IPv6, and netlink, by which programs ask for addresses and routes.
const SEEN: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];
/// The same call by its other number, on x86-64 kernels that have the x32 ABI.
const X32: i64 = 0x4000_0000;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use crate::{accounts::User, identity::Unprivileged, launch::Launch};

    /// The errors of opening a socket of each family, as a guest sees them.
    fn attempts(families: &[i32]) -> String {
        let script = format!(
            "import socket\nfor family in {families:?}:\n try: socket.socket(family, 1); print('open')\n except OSError as e: print(e.errno)"
        );
        let user = User {
            uid: 4242,
            gid: 4242,
            groups: Vec::new(),
            home: None,
        };
        let child = Launch::confined(&Unprivileged::new(user).unwrap())
            .unwrap()
            .spawn(
                Command::new("python3")
                    .args(["-c", &script])
                    .stdout(Stdio::piped()),
            )
            .expect("this test needs root and python3");
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    #[test]
    fn what_the_rules_see_can_be_opened() {
        assert_eq!(
            attempts(&[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6]),
            "open\nopen\nopen\n"
        );
    }

    #[test]
    fn what_the_rules_do_not_see_cannot() {
        let refused = attempts(&[
            libc::AF_VSOCK,
            libc::AF_BLUETOOTH,
            libc::AF_ALG,
            libc::AF_PACKET,
        ]);
        assert_eq!(refused, "97\n97\n97\n97\n");
    }
}
