//! The program itself: how it starts, how it fails, how it ends.

use std::{
    net::UdpSocket,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
};

use policy::DenyReason;
use report::link::{FromProxy, Ingress, Start, ToProxy};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::{
    harness::{Client, Pid1, listener, start},
    origin::Origin,
};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sandbox-egress-proxy"))
}

/// The program as PID 1 starts it.
pub(crate) fn started() -> (Child, Pid1) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = program()
        .env_clear()
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, Pid1::new(ours))
}

fn failure(pid1: &mut Pid1) -> String {
    let message = pid1.receive();
    let FromProxy::Failed { detail } = message else {
        panic!("{message:?}")
    };
    detail.to_string()
}

#[test]
fn it_serves_what_it_was_handed_until_it_is_drained() {
    let origin = Origin::echo();
    let target = origin.address.to_string();
    let (mut child, mut pid1) = started();
    let socket = listener();
    pid1.hand_over(&[(Ingress::Explicit, socket.as_fd())]);
    pid1.send(&ToProxy::Start(Box::new(start(&[&target]))));
    let ready = pid1.receive();
    assert!(
        matches!(&ready, FromProxy::Ready { degradations, .. } if degradations.is_empty()),
        "{ready:?}"
    );
    let mut client = Client::to(socket.local_addr().unwrap()).connect(&target);
    client.send("x");
    assert_eq!(client.exactly(1), b"x");
    let response =
        Client::to(socket.local_addr().unwrap()).request("CONNECT other.test:443 HTTP/1.1\r\n\r\n");
    assert!(response.head.starts_with("HTTP/1.1 403 "), "{response:?}");
    let sums = pid1.drain();
    assert_eq!(sums.allowed, [(target, [1, 0, 1, 1])].into());
    assert_eq!(
        sums.denials(),
        [("other.test:443", DenyReason::NotAllowed, 1)]
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn it_ends_with_pid_1() {
    let (mut child, mut pid1) = started();
    let socket = listener();
    pid1.hand_over(&[(Ingress::Explicit, socket.as_fd())]);
    pid1.send(&ToProxy::Start(Box::new(start(&["origin.test"]))));
    assert!(matches!(pid1.receive(), FromProxy::Ready { .. }));
    drop(pid1);
    child.wait().unwrap();
}

/// The program, serving, and what was wanting.
fn serving() -> (Child, Pid1, Vec<String>) {
    let (child, mut pid1) = started();
    let socket = listener();
    pid1.hand_over(&[(Ingress::Explicit, socket.as_fd())]);
    pid1.send(&ToProxy::Start(Box::new(start(&["origin.test"]))));
    let message = pid1.receive();
    let FromProxy::Ready { degradations, .. } = message else {
        panic!("{message:?}")
    };
    let degradations = degradations.iter().map(ToString::to_string).collect();
    (child, pid1, degradations)
}

fn proc(child: &Child, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap()
}

#[test]
fn it_is_one_thread_and_confined_before_it_says_that_it_serves() {
    // Those that the tests themselves may have been started under.
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let filters = |status: &str| -> u32 {
        let line = status
            .lines()
            .find(|line| line.starts_with("Seccomp_filters:"));
        let (_, count) = line.unwrap().split_once('\t').unwrap();
        count.parse().unwrap()
    };
    let (mut child, pid1, degradations) = serving();
    assert!(degradations.is_empty(), "{degradations:?}");
    let status = proc(&child, "status");
    for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "Threads:\t1\n"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert_eq!(filters(&status), filters(&own) + 2);
    drop(pid1);
    child.wait().unwrap();
}

#[test]
fn it_can_leave_no_core_no_file_and_no_process() {
    let (mut child, pid1, _) = serving();
    let limits = proc(&child, "limits");
    for name in ["Max core file size", "Max file size", "Max processes"] {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        assert_eq!(words[..2], ["0", "0"], "{name}: {limits}");
    }
    drop(pid1);
    child.wait().unwrap();
}

#[test]
fn what_a_kernel_cannot_take_from_it_is_told_and_it_serves() {
    let calls = [libc::SYS_seccomp, libc::SYS_landlock_create_ruleset];
    let lacking = SeccompFilter::new(
        calls.map(|call| (call, Vec::new())).into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let lacking: BpfProgram = lacking.unwrap().try_into().unwrap();
    // A filter binds the thread that installs it, and what it starts.
    let starting = std::thread::spawn(move || {
        seccompiler::apply_filter(&lacking).unwrap();
        serving()
    });
    let (mut child, mut pid1, degradations) = starting.join().unwrap();
    let [files, calls] = degradations.try_into().unwrap();
    assert!(files.ends_with("this kernel has no Landlock"), "{files}");
    assert!(calls.contains("any system call"), "{calls}");
    assert!(pid1.drain().denials().is_empty());
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_stands_in_its_way_is_told_in_one_line() {
    let tcp = listener();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = start(&["origin.test"]);
    let explicit = [(Ingress::Explicit, tcp.as_fd())];
    for (listeners, start, detail) in [
        (
            &explicit[..],
            Start {
                policy_digest: "00".to_owned(),
                ..good.clone()
            },
            "has digest",
        ),
        (
            &explicit,
            Start {
                allow: vec!["*".to_owned()],
                ..good.clone()
            },
            "*",
        ),
        (
            &explicit,
            Start {
                allow: vec![],
                ..good.clone()
            },
            "",
        ),
        (
            &explicit,
            Start {
                upstream_proxy: Some("proxy".to_owned()),
                ..good.clone()
            },
            "`proxy` is not `host:port`",
        ),
        (&[], good.clone(), "announces 0 sockets and carries 0"),
        (
            &[(Ingress::Redirect, udp.as_fd())],
            good.clone(),
            "descriptor 1 of `listeners` is not",
        ),
    ] {
        let (mut child, mut pid1) = started();
        pid1.hand_over(listeners);
        pid1.send(&ToProxy::Start(Box::new(start)));
        let told = failure(&mut pid1);
        assert!(told.contains(detail) && !told.is_empty(), "{told}");
        assert_eq!(child.wait().unwrap().code(), Some(1), "{told}");
    }
}

#[test]
fn messages_in_another_order_are_refused() {
    let (mut child, mut pid1) = started();
    pid1.send(&ToProxy::Drain);
    assert!(failure(&mut pid1).contains("`listeners` was due"));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let (mut child, pid1) = started();
    drop(pid1);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn started_by_hand_it_says_what_it_is() {
    for (arguments, stream, code) in [
        (&[][..], "stderr", 2),
        (&["--listen", "3128"], "stderr", 2),
        (&["--help"], "stdout", 0),
        (&["--version"], "stdout", 0),
    ] {
        let output = program()
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = if stream == "stdout" {
            &output.stdout
        } else {
            &output.stderr
        };
        let said = String::from_utf8_lossy(said);
        assert!(
            said.starts_with("sandbox-egress-proxy "),
            "{arguments:?}: {said}"
        );
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}
