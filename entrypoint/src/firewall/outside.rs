//! A network of a test's own, with a host outside that the rules are between.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, unshare};

pub(super) fn run(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));
pub(super) const OUTSIDE: &str = "45.0.0.1";
pub(super) const OPENED: u16 = 22;
pub(super) const DENIED: u16 = 9;

/// A network of this thread's own, and a host outside of it that takes connections on both
/// ports, and hands over each of them.
pub(super) fn with_a_host_outside() -> Receiver<TcpStream> {
    unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
    let (tell, told) = sync_channel(1);
    let (hand_over, taken) = sync_channel(1);
    let (go, gone) = sync_channel(1);
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        tell.send(nix::unistd::gettid()).unwrap();
        gone.recv().unwrap();
        run(&format!(
            "ip addr add {OUTSIDE}/24 dev outside; ip link set outside up"
        ));
        for port in [OPENED, DENIED] {
            let listener = TcpListener::bind((OUTSIDE, port)).unwrap();
            let hand_over = hand_over.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = hand_over.send(stream.unwrap());
                }
            });
        }
        tell.send(nix::unistd::gettid()).unwrap();
    });
    let outside = told.recv().unwrap();
    run(&format!(
        "ip link set lo up; ip link add inside type veth peer name outside netns {outside}
         ip addr add 45.0.0.2/24 dev inside; ip link set inside up"
    ));
    go.send(()).unwrap();
    told.recv().unwrap();
    taken
}

/// Both ends of a connection.
pub(super) fn dial(port: u16, taken: &Receiver<TcpStream>) -> [TcpStream; 2] {
    let ours = TcpStream::connect((OUTSIDE, port)).unwrap();
    let theirs = taken.recv().unwrap();
    for end in [&ours, &theirs] {
        end.set_read_timeout(PATIENCE).unwrap();
    }
    [ours, theirs]
}

pub(super) fn carries([mut ours, mut theirs]: [&TcpStream; 2]) -> bool {
    let mut byte = [0];
    ours.write_all(b"x").unwrap();
    let arrived = theirs.read(&mut byte).is_ok_and(|count| count == 1);
    arrived && theirs.write_all(b"y").is_ok() && ours.read(&mut byte).is_ok_and(|count| count == 1)
}
