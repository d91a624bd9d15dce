//! The report channel: who is let in, what is kept, and what is made of it.

use std::time::{Duration, Instant};

use host_collector::channel::{Attendance, Refusal};
use report::{Body, ChannelState, HostMessage, MAX_FRAME, PeerEnd, Shortfall};
use tokio::net::UnixStream;

use crate::container::{
    NOISE, ProcessEnd, Run, bye, denied, enforcing, exit, flood, hello, line, spawn, spawn_saying,
};

fn refused(attendance: &Attendance) -> u64 {
    attendance
        .reports
        .as_ref()
        .unwrap()
        .account
        .totals()
        .denied
        .values()
        .sum()
}

#[tokio::test]
async fn a_container_that_reports_everything_and_exits_is_complete() {
    let run = Run::new();
    let script = [
        hello(&run.nonce()),
        enforcing(),
        denied("a.example", 2),
        denied("b.example", 1),
        exit(0),
        bye(6, 3),
    ];
    let mut child = spawn(&run.socket(), run.dir.path(), &script, ProcessEnd::Exits);
    let attendance = run.channel.attend(std::future::pending(), |_| {}).await;
    assert!(child.wait().unwrap().success());
    assert_eq!(
        attendance.verdict().state,
        ChannelState::Complete,
        "{:?}",
        attendance.shortfall()
    );
    assert!(attendance.was_launched());
    assert_eq!(refused(&attendance), 3);
    assert_eq!(
        attendance.reports.unwrap().account.exit().unwrap().code,
        Some(0)
    );
}

#[tokio::test]
async fn a_container_that_is_killed_leaves_lower_bounds() {
    let run = Run::new();
    let script = [hello(&run.nonce()), enforcing(), denied("a.example", 2)];
    let mut child = spawn(&run.socket(), run.dir.path(), &script, ProcessEnd::Stays);
    let mut kill = Some(&mut child);
    let attendance = run
        .channel
        .attend(std::future::pending(), |message| {
            if matches!(message.body, Body::Denied(_)) {
                kill.take().unwrap().kill().unwrap();
            }
        })
        .await;
    child.wait().unwrap();
    assert_eq!(attendance.verdict().state, ChannelState::Interrupted);
    assert_eq!(attendance.reports.as_ref().unwrap().peer, PeerEnd::Exited);
    assert_eq!(refused(&attendance), 2);
}

#[tokio::test]
async fn a_wrong_nonce_is_turned_away_and_the_door_stays_open() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut forger = scene.connect().await;
            forger.report(hello(&"0".repeat(64))).await;
            assert_eq!(forger.answer().await, None);
            scene.join().await;
        })
        .await;
    assert_eq!(attendance.refusals.count, 1);
    assert!(matches!(attendance.refusals.last, Some(Refusal::Nonce)));
    assert!(attendance.reports.is_some());
}

#[tokio::test]
async fn rubbish_before_the_hello_is_turned_away() {
    let attendance = Run::new()
        .attend(async |scene| {
            for rubbish in [
                "\n",
                "GET / HTTP/1.1\r\n\r\n",
                "{\"type\":\"hello\"}\n",
                "[[[[[[[[[[[[[[[[\n",
            ] {
                let mut peer = scene.connect().await;
                peer.raw(rubbish.as_bytes()).await;
                assert_eq!(peer.answer().await, None, "{rubbish:?}");
            }
            let mut peer = scene.connect().await;
            peer.raw(&vec![b'x'; MAX_FRAME]).await;
            assert_eq!(peer.answer().await, None);
            let mut early = scene.connect().await;
            early.report(denied("forged.example", 9)).await;
            assert_eq!(early.answer().await, None);
            scene.join().await;
        })
        .await;
    assert_eq!(attendance.refusals.count, 6);
    assert_eq!(refused(&attendance), 0);
}

#[tokio::test]
async fn peers_that_say_nothing_do_not_hold_the_door() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut silent = Vec::new();
            for _ in 0..5 {
                silent.push(scene.connect().await);
            }
            scene.join().await;
            for mut peer in silent {
                assert_eq!(peer.answer().await, None);
            }
        })
        .await;
    // None of them had to be given up first.
    assert_eq!(attendance.refusals.count, 0);
    assert!(attendance.reports.is_some());
}

#[tokio::test]
async fn another_reading_of_the_allowlist_is_turned_away_with_the_reason() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut other = scene.connect().await;
            let Body::Hello(mut said) = hello(&scene.nonce) else {
                unreachable!()
            };
            said.policy_digest = None;
            other.report(Body::Hello(said)).await;
            assert_eq!(other.answer().await, None);
        })
        .await;
    assert_eq!(attendance.verdict().state, ChannelState::NeverConnected);
    assert!(
        attendance
            .shortfall()
            .unwrap()
            .contains("digest none, here d1ce")
    );
}

#[tokio::test]
async fn after_the_welcome_there_is_nothing_to_connect_to() {
    let attendance = Run::new()
        .attend(async |scene| {
            let container = scene.join().await;
            let second = UnixStream::connect(&scene.socket).await;
            assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::NotFound);
            assert!(!scene.socket.exists());
            drop(container);
        })
        .await;
    assert_eq!(attendance.refusals.count, 0);
}

#[tokio::test]
async fn whoever_knocked_before_the_welcome_is_not_heard_after_it() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut late = scene.connect().await;
            let _container = scene.join().await;
            // It knows the secret, but it comes second.
            late.offer(&line(1, hello(&scene.nonce))).await;
            late.offer(&line(2, denied("forged.example", 9))).await;
            assert_eq!(late.answer().await, None);
        })
        .await;
    assert_eq!(refused(&attendance), 0);
}

#[tokio::test]
async fn nothing_is_acknowledged_before_it_is_in_the_journal() {
    Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            for n in 0..50 {
                container.report(denied(&format!("h{n}.example"), 1)).await;
                container.settle().await;
                assert!(scene.journal().contains(&format!("h{n}.example")), "{n}");
            }
            assert_eq!(scene.journal().lines().count(), 51);
            assert!(!scene.journal().contains(&scene.nonce));
        })
        .await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_ends_the_channel_and_is_the_reason() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            container.report(denied("a.example", 1)).await;
            container.settle().await;
            container.raw(&vec![b'x'; MAX_FRAME + 1]).await;
            while container.answer().await.is_some() {}
        })
        .await;
    assert_eq!(attendance.verdict().state, ChannelState::Interrupted);
    assert!(attendance.shortfall().unwrap().contains("16384 bytes"));
    assert_eq!(refused(&attendance), 1);
}

#[tokio::test]
async fn lines_that_are_no_messages_and_skipped_numbers_are_counted() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            container.raw(b"not json\n{}\n[[[[[[[[[[[[\n").await;
            container.seq += 2;
            container.report(denied("a.example", 1)).await;
            container.settle().await;
        })
        .await;
    let account = attendance.reports.unwrap().account;
    assert_eq!((account.unreadable(), account.sequence().missing()), (3, 2));
}

#[tokio::test]
async fn a_hole_before_the_bye_is_a_gap_although_the_numbers_are_final() {
    let run = Run::new();
    let mut script = vec![hello(&run.nonce()), enforcing(), denied("a.example", 2)];
    script.push(bye(9, 5));
    let mut child = spawn(&run.socket(), run.dir.path(), &script, ProcessEnd::Exits);
    let attendance = run.channel.attend(std::future::pending(), |_| {}).await;
    child.wait().unwrap();
    assert_eq!(attendance.verdict().state, ChannelState::Gap);
    assert_eq!(attendance.verdict().reason, Some(Shortfall::DoesNotAddUp));
    assert_eq!(refused(&attendance), 5);
}

#[tokio::test]
async fn a_flood_is_counted_to_the_last_and_kept_small() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            for n in 0..20_000 {
                container.report(denied(&format!("h{n}.example"), 5)).await;
            }
            container.settle().await;
        })
        .await;
    assert_eq!(refused(&attendance), 100_000);
    let account = attendance.reports.unwrap().account;
    assert_eq!(account.refused(32).len(), 32);
    assert!(account.refused_distinct().estimated);
}

#[tokio::test]
async fn what_a_guest_puts_into_a_name_cannot_forge_a_line_of_the_journal() {
    Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            let raw = r#"{"type":"denied","host":"a\n{\"type\":\"bye\"}\u001b[2J\u202e","port":443,"proto":"tcp","reason":"not_allowed","count":1,"first":1,"last":1,"seq":2,"t":1}"#;
            container.raw(format!("{raw}\n").as_bytes()).await;
            container.seq = 2;
            container.settle().await;
            let journal = scene.journal();
            assert_eq!(journal.lines().count(), 2, "{journal}");
            assert!(!journal.contains(['\u{1b}', '\u{202e}']), "{journal}");
        })
        .await;
}

#[tokio::test]
async fn a_run_that_is_over_before_anybody_came_was_never_connected() {
    let attendance = Run::new().attend(async |_| {}).await;
    assert_eq!(attendance.verdict().state, ChannelState::NeverConnected);
    assert!(!attendance.was_launched());
    assert_eq!(attendance.shortfall(), None);
}

#[tokio::test]
async fn a_bye_from_a_process_that_stays_is_no_end() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            container.report(bye(2, 0)).await;
            container.settle().await;
        })
        .await;
    assert_eq!(attendance.verdict().reason, Some(Shortfall::PeerAlive));
}

#[tokio::test]
async fn a_container_that_does_not_read_its_acknowledgements_is_heard_all_the_same() {
    let attendance = Run::new()
        .attend(async |scene| {
            let mut container = scene.join().await;
            for _ in 0..30_000 {
                container.report(denied("a.example", 1)).await;
            }
        })
        .await;
    assert_eq!(refused(&attendance), 30_000);
}

#[tokio::test]
async fn the_welcome_carries_a_secret_to_come_back_with() {
    Run::new()
        .attend(async |scene| {
            let mut container = scene.connect().await;
            container.report(hello(&scene.nonce)).await;
            let Some(HostMessage::Welcome(welcome)) = container.answer().await else {
                panic!("no welcome")
            };
            assert_eq!(welcome.resume_token.len(), 64);
            assert_ne!(welcome.resume_token, scene.nonce);
        })
        .await;
}

#[tokio::test]
async fn what_a_flood_left_in_the_socket_when_the_run_was_over_is_read() {
    let attendance = Run::new()
        .attend(async |scene| scene.join().await.raw(&flood()).await)
        .await;
    assert_eq!(refused(&attendance), 1);
    assert_eq!(
        attendance.reports.unwrap().account.unreadable(),
        NOISE as u64
    );
}

#[tokio::test]
async fn a_flood_costs_its_sender_time() {
    let start = Instant::now();
    Run::new()
        .attend(async |scene| scene.join().await.raw(&flood()).await)
        .await;
    // 11 MB at 4 MiB a second, of which the first 4 MiB and what the socket holds cost nothing.
    assert!(
        start.elapsed() > Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn what_a_container_wrote_with_its_last_breath_is_read() {
    let run = Run::new();
    let script = [line(1, hello(&run.nonce())), flood()].concat();
    let mut child = spawn_saying(&run.socket(), run.dir.path(), &script, ProcessEnd::Leaves);
    let attendance = run.channel.attend(std::future::pending(), |_| {}).await;
    child.wait().unwrap();
    assert_eq!(refused(&attendance), 1);
    assert_eq!(attendance.reports.as_ref().unwrap().peer, PeerEnd::Exited);
}

#[tokio::test]
async fn what_is_ordered_reaches_the_container_once_it_is_welcomed() {
    let run = Run::new();
    let (order, orders) = tokio::sync::mpsc::channel(2);
    order.try_send(HostMessage::Stop { grace_ms: 7 }).unwrap();
    let run = Run {
        channel: run.channel.with_orders(orders),
        ..run
    };
    let attendance = run
        .attend(async |scene| {
            let mut container = scene.join().await;
            let mut told = Vec::new();
            while told.last() != Some(&HostMessage::Stop { grace_ms: 7 }) {
                told.push(container.answer().await.expect("the collector hung up"));
            }
            container.report(enforcing()).await;
            container.settle().await;
        })
        .await;
    assert!(attendance.was_launched());
}
