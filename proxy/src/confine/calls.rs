//! Which system calls serving takes. No others are to be had.
//!
//! Two filters stand one behind the other, and the kernel acts on the sterner word. One lets through
//! what is listed and has all else fail as an unknown call does, because a library that is new in
//! something harmless must not end a run. The other ends the process at calls that no library makes
//! for a proxy and whose maker is not the proxy any more: its end is a gap in the run's record,
//! where a failure would go unseen while the next thing is tried.
//!
//! The order of rules costs nothing where it matters: kernels from 5.11 on know which numbers are
//! let through whatever their arguments are, and do not run the filters for them at all.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

use super::UnforeseenCalls;

/// A system call by its number, and what its arguments must be: one of these, or anything if there
/// are none.
type Call = (i64, Vec<SeccompRule>);

/// Keeps the calling thread to the calls that serving takes. What could not be had, in one sentence.
pub(super) fn filter(unforeseen: UnforeseenCalls) -> Option<String> {
    let installed = programs(unforeseen)
        .map_err(seccompiler::Error::from)
        .and_then(|programs| {
            programs
                .iter()
                .try_for_each(|program| apply_filter(program))
        });
    installed
        .err()
        .map(|error| format!("the proxy may make any system call that the container may: {error}"))
}

/// In the order in which they are installed: under the second there is no installing any more.
fn programs(unforeseen: UnforeseenCalls) -> Result<[BpfProgram; 2], BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let otherwise = match unforeseen {
        UnforeseenCalls::Fail => SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        UnforeseenCalls::End => SeccompAction::KillProcess,
    };
    let compile = |calls: BTreeMap<_, _>, otherwise, listed| {
        SeccompFilter::new(calls, otherwise, listed, arch)?.try_into()
    };
    Ok([
        compile(hostile()?, SeccompAction::Allow, SeccompAction::KillProcess)?,
        compile(needed()?, otherwise, SeccompAction::Allow)?,
    ])
}

fn needed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let plain = SERVING.iter().chain(ARCH_SERVING);
    let mut calls: BTreeMap<_, _> = plain.map(|number| (*number, Vec::new())).collect();
    calls.extend([
        sockets()?,
        (libc::SYS_mmap, vec![not_executable()?]),
        (libc::SYS_mprotect, vec![not_executable()?]),
        (libc::SYS_ioctl, vec![rule(&[equals(1, libc::FIONBIO)?])?]),
        descriptor_flags()?,
        abort()?,
    ]);
    Ok(calls)
}

fn hostile() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let plain = HOSTILE.iter().chain(ARCH_HOSTILE);
    let mut calls: BTreeMap<_, _> = plain.map(|number| (*number, Vec::new())).collect();
    for number in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        calls.insert(number, vec![executable()?]);
    }
    Ok(calls)
}

/// TCP and UDP over IP: no local sockets, no netlink, and none that nftables does not see.
fn sockets() -> Result<Call, BackendError> {
    let mut rules = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (of, protocol) in [
            (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        ] {
            for protocol in [libc::IPPROTO_IP, protocol] {
                rules.push(rule(&[
                    equals(0, u64::from(family.cast_unsigned()))?,
                    masked(1, SOCKET_TYPE, of)?,
                    equals(2, u64::from(protocol.cast_unsigned()))?,
                ])?);
            }
        }
    }
    Ok((libc::SYS_socket, rules))
}

fn descriptor_flags() -> Result<Call, BackendError> {
    let rules = FCNTL
        .iter()
        .map(|command| rule(&[equals(1, u64::from(command.cast_unsigned()))?]));
    Ok((libc::SYS_fcntl, rules.collect::<Result<_, _>>()?))
}

/// A panic ends the process, by a signal to itself.
fn abort() -> Result<Call, BackendError> {
    let own = u64::from(std::process::id());
    let to_itself = rule(&[
        equals(0, own)?,
        equals(2, u64::from(libc::SIGABRT.cast_unsigned()))?,
    ])?;
    Ok((libc::SYS_tgkill, vec![to_itself]))
}

fn not_executable() -> Result<SeccompRule, BackendError> {
    rule(&[masked(2, libc::PROT_EXEC, 0)?])
}

fn executable() -> Result<SeccompRule, BackendError> {
    rule(&[masked(2, libc::PROT_EXEC, libc::PROT_EXEC)?])
}

fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.to_vec())
}

fn equals(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: i32, value: i32) -> Result<SeccompCondition, BackendError> {
    let (mask, value) = (mask.cast_unsigned().into(), value.cast_unsigned().into());
    let masked = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, value)
}

/// What of the second argument of `socket` is the type, and not a flag.
const SOCKET_TYPE: i32 = 0xf;

/// What the event loop, the sockets, the memory allocator and the end of a process take, whatever
/// the arguments are.
const SERVING: [i64; 39] = [
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Sockets: `bind` is for the resolver's datagrams; TCP is Landlock's to deny, and there is no
    // `listen`.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Descriptors that are open, and the pipes between two of them.
    libc::SYS_close,
    libc::SYS_pipe2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_splice,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Clocks, where the kernel cannot show them without a call, and randomness.
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    // Waiting, and the end.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_uname,
];

/// Calls that only some machines have.
#[cfg(target_arch = "x86_64")]
const ARCH_SERVING: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_SERVING: &[i64] = &[];

/// What may be asked of a descriptor: its flags, another number for it, the size of a pipe.
const FCNTL: [i32; 7] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_GETFL,
    libc::F_GETPIPE_SZ,
    libc::F_SETFD,
    libc::F_SETFL,
    libc::F_SETPIPE_SZ,
];

/// Other programs, other processes, other kernels' worth of interfaces.
const HOSTILE: [i64; 31] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_memfd_create,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];
#[cfg(target_arch = "x86_64")]
const ARCH_HOSTILE: &[i64] = &[libc::SYS_fork, libc::SYS_modify_ldt, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_HOSTILE: &[i64] = &[];

#[cfg(test)]
pub(super) mod tests {
    use std::{
        fs::File, net::UdpSocket, os::unix::net::UnixStream, os::unix::process::CommandExt as _,
        process::Command, thread,
    };

    use seccompiler::sock_filter;

    use super::*;

    /// What `act` gives on a kernel where this call fails so. Filters bind the thread.
    pub(in crate::confine) fn without<T: Send + 'static>(
        call: i64,
        errno: i32,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let fails = SeccompAction::Errno(errno.cast_unsigned());
        let calls = BTreeMap::from([(call, Vec::new())]);
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, fails, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        let acting = thread::spawn(move || {
            apply_filter(&program).unwrap();
            act()
        });
        acting.join().unwrap()
    }

    /// What `act` gives in a thread that is kept to what serving takes.
    fn confined<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let acting = thread::spawn(|| {
            assert_eq!(filter(UnforeseenCalls::Fail), None);
            act()
        });
        acting.join().unwrap()
    }

    /// What the kernel does at a call, by the sterner of the two programs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Word {
        Kill,
        Errno(u32),
        Allow,
    }

    fn word(unforeseen: UnforeseenCalls, number: i64, arguments: &[u64]) -> Word {
        let programs = programs(unforeseen).unwrap();
        let words = programs
            .iter()
            .map(|program| run(program, ARCH, number, arguments));
        words.min().unwrap()
    }

    /// Classic BPF, as much of it as the compiler uses, over a `seccomp_data`.
    fn run(program: &[sock_filter], arch: u32, number: i64, arguments: &[u64]) -> Word {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&u32::try_from(number).unwrap().to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (index, argument) in arguments.iter().enumerate() {
            data[16 + 8 * index..][..8].copy_from_slice(&argument.to_ne_bytes());
        }
        let (mut accumulator, mut at) = (0_u32, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jump = match code {
                0x20 => {
                    let word = data[k as usize..][..4].try_into().unwrap();
                    accumulator = u32::from_ne_bytes(word);
                    0
                }
                0x54 => {
                    accumulator &= k;
                    0
                }
                0x05 => k as usize,
                0x15 => usize::from(if accumulator == k { jt } else { jf }),
                0x06 => {
                    return match k {
                        0x7fff_0000 => Word::Allow,
                        0x8000_0000 => Word::Kill,
                        _ => Word::Errno(k & 0xffff),
                    };
                }
                _ => panic!("the compiler uses {code:#x} as well"),
            };
            at += jump;
        }
    }

    /// `AUDIT_ARCH_…`: this machine's, and that of 32-bit programs.
    const ARCH: u32 = if cfg!(target_arch = "x86_64") {
        0xc000_003e
    } else {
        0xc000_00b7
    };
    const I386: u32 = 0x4000_0003;
    const REFUSED: Word = Word::Errno(libc::ENOSYS.cast_unsigned());

    fn is(word_is: Word, calls: &[(i64, &[u64])]) {
        for (number, arguments) in calls {
            let word = word(UnforeseenCalls::Fail, *number, arguments);
            assert_eq!(word, word_is, "{number} {arguments:?}");
        }
    }

    #[test]
    fn what_no_proxy_does_ends_it() {
        let exec = u64::from(libc::PROT_EXEC.cast_unsigned());
        is(
            Word::Kill,
            &[
                (libc::SYS_execve, &[]),
                (libc::SYS_execveat, &[]),
                (libc::SYS_ptrace, &[]),
                (libc::SYS_process_vm_writev, &[]),
                (libc::SYS_kill, &[1, 9]),
                (libc::SYS_bpf, &[]),
                (libc::SYS_io_uring_setup, &[]),
                (libc::SYS_mmap, &[0, 4096, exec]),
                (libc::SYS_mmap, &[0, 4096, exec | 3]),
                (libc::SYS_mprotect, &[0, 4096, exec | 1]),
                (libc::SYS_pkey_mprotect, &[0, 4096, exec]),
            ],
        );
    }

    #[test]
    fn what_serving_does_not_take_is_not_there() {
        is(
            REFUSED,
            &[
                (libc::SYS_openat, &[]),
                (libc::SYS_openat2, &[]),
                (libc::SYS_clone, &[]),
                (libc::SYS_clone3, &[]),
                (libc::SYS_listen, &[]),
                (libc::SYS_socketpair, &[]),
                (libc::SYS_sendmsg, &[]),
                (libc::SYS_recvmsg, &[]),
                (libc::SYS_pidfd_open, &[]),
                (libc::SYS_tkill, &[1, 9]),
                (libc::SYS_seccomp, &[]),
                (libc::SYS_prctl, &[]),
                (libc::SYS_prlimit64, &[]),
                (libc::SYS_setsid, &[]),
                (libc::SYS_tee, &[]),
                (libc::SYS_vmsplice, &[]),
                (1_000, &[]),
            ],
        );
    }

    #[test]
    fn sockets_are_tcp_and_udp_over_ip() {
        let (stream, datagram) = (1, 2);
        // With the flags that make it non-blocking and close on exec.
        let flagged = stream | 0o2_004_000;
        for family in [2, 10] {
            is(
                Word::Allow,
                &[
                    (libc::SYS_socket, &[family, stream, 0]),
                    (libc::SYS_socket, &[family, flagged, 6]),
                    (libc::SYS_socket, &[family, datagram, 0]),
                    (libc::SYS_socket, &[family, datagram, 17]),
                ],
            );
            is(
                REFUSED,
                &[
                    // Raw, of sequenced packets, MPTCP, SCTP, ICMP.
                    (libc::SYS_socket, &[family, 3, 1]),
                    (libc::SYS_socket, &[family, 5, 0]),
                    (libc::SYS_socket, &[family, stream, 262]),
                    (libc::SYS_socket, &[family, stream, 132]),
                    (libc::SYS_socket, &[family, datagram, 1]),
                ],
            );
        }
        for family in [
            libc::AF_UNIX,
            libc::AF_NETLINK,
            libc::AF_PACKET,
            libc::AF_VSOCK,
        ] {
            let family = u64::from(family.cast_unsigned());
            is(REFUSED, &[(libc::SYS_socket, &[family, stream, 0])]);
        }
    }

    #[test]
    fn arguments_are_judged_where_a_call_does_many_things() {
        let own = u64::from(std::process::id());
        let abort = u64::from(libc::SIGABRT.cast_unsigned());
        let command = |command: i32| u64::from(command.cast_unsigned());
        is(
            Word::Allow,
            &[
                (libc::SYS_mmap, &[0, 4096, 3]),
                (libc::SYS_mprotect, &[0, 4096, 0]),
                (libc::SYS_ioctl, &[3, libc::FIONBIO]),
                (libc::SYS_fcntl, &[3, command(libc::F_SETPIPE_SZ)]),
                (libc::SYS_tgkill, &[own, own, abort]),
            ],
        );
        is(
            REFUSED,
            &[
                (libc::SYS_ioctl, &[3, libc::TIOCSTI]),
                (libc::SYS_ioctl, &[3, libc::FIONREAD]),
                (libc::SYS_fcntl, &[3, command(libc::F_SETOWN)]),
                (libc::SYS_fcntl, &[3, command(libc::F_NOTIFY)]),
                (libc::SYS_tgkill, &[own, own, 9]),
                (libc::SYS_tgkill, &[1, 1, abort]),
            ],
        );
    }

    #[test]
    fn all_that_is_listed_is_let_through_or_ends_the_process() {
        for number in SERVING.iter().chain(ARCH_SERVING) {
            is(Word::Allow, &[(*number, &[])]);
        }
        for number in HOSTILE.iter().chain(ARCH_HOSTILE) {
            is(Word::Kill, &[(*number, &[])]);
        }
    }

    #[test]
    fn a_call_by_the_number_of_another_abi_is_not_let_through() {
        // x32, where the kernel has it.
        is(REFUSED, &[(libc::SYS_read | 0x4000_0000, &[])]);
        for program in programs(UnforeseenCalls::Fail).unwrap() {
            assert_eq!(run(&program, I386, libc::SYS_read, &[]), Word::Kill);
        }
    }

    #[test]
    fn where_tests_run_the_unforeseen_ends_the_process() {
        let openat = word(UnforeseenCalls::End, libc::SYS_openat, &[]);
        assert_eq!(openat, Word::Kill);
        let read = word(UnforeseenCalls::End, libc::SYS_read, &[]);
        assert_eq!(read, Word::Allow);
    }

    #[test]
    fn the_kernel_holds_a_thread_to_it() {
        let errors = confined(|| {
            [
                File::open("/etc/passwd").unwrap_err().raw_os_error(),
                UnixStream::pair().unwrap_err().raw_os_error(),
                UnixStream::connect("/run/x").unwrap_err().raw_os_error(),
                Command::new("/bin/true")
                    .spawn()
                    .unwrap_err()
                    .raw_os_error(),
                std::net::TcpListener::bind("127.0.0.1:0")
                    .unwrap_err()
                    .raw_os_error(),
            ]
        });
        assert_eq!(errors, [Some(libc::ENOSYS); 5]);
        let datagrams = confined(|| UdpSocket::bind("127.0.0.1:0").map(drop));
        datagrams.unwrap();
    }

    #[test]
    fn a_kernel_or_an_engine_without_seccomp_is_named_and_not_fatal() {
        for errno in [libc::ENOSYS, libc::EINVAL, libc::EPERM] {
            let missing = without(libc::SYS_seccomp, errno, || filter(UnforeseenCalls::Fail));
            let missing = missing.unwrap();
            assert!(missing.contains("any system call"), "{missing}");
        }
    }

    /// This test runs itself: once to look at how it ends, and once to end.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a test can hand its own process nothing else"
    )]
    fn a_program_cannot_be_executed_even_by_trying() {
        const ENDING: &str = "SANDBOX_EGRESS_TEST_ENDS";
        if std::env::var_os(ENDING).is_some() {
            assert_eq!(filter(UnforeseenCalls::Fail), None);
            panic!("{}", Command::new("/bin/true").exec());
        }
        let ended = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "confine::calls::tests::a_program_cannot_be_executed_even_by_trying",
            ])
            .env(ENDING, "1")
            .output()
            .unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(libc::SIGSYS), "{ended:?}");
    }
}
