//! A collector that is killed, and the next one: what is lost, which is nothing, and who may not
//! come back in the container's place.

use host_collector::channel::{Attendance, Refusal};
use report::{ChannelState, HostMessage, Shortfall};

use crate::container::{
    AGAIN, Container, ProcessEnd, Run, Scene, bye, denied, enforcing, exit, hello, line, lines,
    resume, spawn_saying,
};

fn refused(attendance: &Attendance) -> u64 {
    let account = &attendance.reports.as_ref().unwrap().account;
    account.totals().denied.values().sum()
}

/// What one collector hears, and what the next one does, of a container of its own process.
fn told_twice(run: &Run) -> Vec<u8> {
    let first = [hello(&run.nonce()), enforcing(), denied("a.example", 2)];
    let second = [
        line(4, denied("b.example", 1)),
        line(5, exit(0)),
        line(6, bye(6, 3)),
    ];
    [lines(&first), AGAIN.into(), second.concat()].concat()
}

/// A run of which one collector has heard three messages before it was killed.
async fn killed_once() -> (Run, String) {
    let run = Run::new();
    let token = run.terms.resume_token.expose().to_owned();
    let (run, ()) = run
        .killed(async |scene: Scene| {
            let mut container = scene.join().await;
            container.report(enforcing()).await;
            container.report(denied("a.example", 2)).await;
            container.settle().await;
        })
        .await;
    (run, token)
}

async fn welcomed(container: &mut Container) -> u64 {
    match container.answer().await {
        Some(HostMessage::Welcome(welcome)) => welcome.stored,
        other => unreachable!("{other:?}"),
    }
}

#[tokio::test]
async fn nothing_is_lost_where_the_collector_was_killed_and_started_again() {
    let run = Run::new();
    let script = told_twice(&run);
    let mut child = spawn_saying(&run.socket(), run.dir.path(), &script, ProcessEnd::Exits);
    let next = run.killed_after(3).await;
    assert!(next.channel.was_launched());
    let attendance = next.channel.attend(std::future::pending(), |_| {}).await;
    assert!(child.wait().unwrap().success());
    let verdict = attendance.verdict();
    assert_eq!(
        verdict.state,
        ChannelState::Complete,
        "{:?}",
        verdict.reason
    );
    assert_eq!(refused(&attendance), 3);
    assert_eq!(attendance.reports.unwrap().resumed, 1);
}

#[tokio::test]
async fn a_container_that_comes_back_is_told_what_is_stored_and_counted_once() {
    let (run, token) = killed_once().await;
    let attendance = run
        .attend(async |scene| {
            let mut container = scene.come_back(&token).await;
            assert_eq!(welcomed(&mut container).await, 3);
            // It may not have heard of the last acknowledgement, and sends that again.
            for seq in [3, 4] {
                container.raw(&line(seq, denied("a.example", 2))).await;
            }
            container.seq = 4;
            container.settle().await;
            assert!(!scene.socket.exists());
        })
        .await;
    assert_eq!(refused(&attendance), 4);
    let reports = attendance.reports.unwrap();
    assert_eq!(reports.account.sequence().missing(), 0);
    assert_eq!(reports.resumed, 1);
}

#[tokio::test]
async fn half_a_line_in_the_journal_was_not_acknowledged_and_comes_again() {
    let (run, token) = killed_once().await;
    let journal = run.dir.path().join("journal.jsonl");
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..whole.len() - 5]).unwrap();
    let (run, ()) = run.killed(async |_| {}).await;
    let attendance = run
        .attend(async |scene| {
            let mut container = scene.come_back(&token).await;
            assert_eq!(welcomed(&mut container).await, 2);
            container.raw(&line(3, denied("a.example", 2))).await;
            container.seq = 3;
            container.settle().await;
        })
        .await;
    assert_eq!(refused(&attendance), 2);
    assert_eq!(attendance.reports.unwrap().account.unreadable(), 0);
}

#[tokio::test]
async fn who_does_not_know_the_token_is_turned_away_and_harms_nobody() {
    let (run, token) = killed_once().await;
    let attendance = run
        .attend(async |scene| {
            let mut others = Vec::new();
            for first in [
                resume(""),
                resume(&token[1..]),
                resume(&scene.nonce),
                String::from_utf8(line(1, hello(&scene.nonce))).unwrap(),
                String::from_utf8(line(4, denied("forged.example", 9))).unwrap(),
                "{\"type\":\"resume\"}\n".into(),
            ] {
                let mut other = scene.connect().await;
                other.raw(first.as_bytes()).await;
                others.push(other);
            }
            for mut other in others {
                assert_eq!(other.answer().await, None);
            }
            let mut container = scene.come_back(&token).await;
            assert_eq!(welcomed(&mut container).await, 3);
        })
        .await;
    assert_eq!(attendance.refusals.count, 6);
    assert_eq!(refused(&attendance), 2);
}

#[tokio::test]
async fn another_process_is_turned_away_though_it_knows_the_token() {
    let (run, token) = killed_once().await;
    let dir = run.dir.path().to_owned();
    let attendance = run
        .attend(async |scene| {
            let forged = [
                resume(&token).into_bytes(),
                line(4, denied("forged.example", 9)),
            ];
            let mut thief = spawn_saying(&scene.socket, &dir, &forged.concat(), ProcessEnd::Leaves);
            tokio::task::spawn_blocking(move || thief.wait().unwrap())
                .await
                .unwrap();
            let mut container = scene.come_back(&token).await;
            assert_eq!(welcomed(&mut container).await, 3);
        })
        .await;
    assert_eq!(attendance.refusals.count, 1);
    assert!(matches!(
        attendance.refusals.last,
        Some(Refusal::Stranger | Refusal::Unpinned(_))
    ));
    assert_eq!(refused(&attendance), 2);
}

#[tokio::test]
async fn a_container_that_ended_while_nobody_collected_leaves_lower_bounds_at_once() {
    let run = Run::new();
    let script = lines(&[hello(&run.nonce()), enforcing(), denied("a.example", 2)]);
    let mut child = spawn_saying(&run.socket(), run.dir.path(), &script, ProcessEnd::Stays);
    let run = run.killed_after(3).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let attendance = run.channel.attend(std::future::pending(), |_| {}).await;
    let verdict = attendance.verdict();
    assert_eq!(verdict.state, ChannelState::Interrupted);
    assert_eq!(verdict.reason, Some(Shortfall::NoBye));
    assert_eq!(refused(&attendance), 2);
}

#[tokio::test]
async fn a_container_that_had_said_goodbye_is_complete_whoever_reads_it() {
    let run = Run::new();
    let script = [
        hello(&run.nonce()),
        enforcing(),
        denied("a.example", 2),
        bye(4, 2),
    ];
    let mut child = spawn_saying(
        &run.socket(),
        run.dir.path(),
        &lines(&script),
        ProcessEnd::Exits,
    );
    let Run {
        dir,
        channel,
        terms,
    } = run;
    channel.attend(std::future::pending(), |_| {}).await;
    child.wait().unwrap();
    let next = host_collector::channel::Channel::open(dir.path(), terms).unwrap();
    let attendance = next.attend(std::future::pending(), |_| {}).await;
    assert_eq!(attendance.verdict().state, ChannelState::Complete);
    assert_eq!(attendance.reports.unwrap().resumed, 0);
}

#[tokio::test]
async fn a_collector_that_is_killed_before_anybody_came_lets_the_container_in_all_the_same() {
    let (run, ()) = Run::new().killed(async |_| {}).await;
    let attendance = run
        .attend(async |scene| {
            let mut early = scene.come_back(&"0".repeat(64)).await;
            assert_eq!(early.answer().await, None);
            scene.join().await;
        })
        .await;
    assert_eq!(attendance.refusals.count, 1);
    assert!(matches!(
        attendance.refusals.last,
        Some(Refusal::NotDue { .. })
    ));
    assert!(attendance.reports.is_some());
}

#[tokio::test]
async fn a_container_may_come_back_as_often_as_its_collector_is_killed() {
    let (mut run, token) = killed_once().await;
    for _ in 0..5 {
        (run, ()) = run
            .killed(async |scene: Scene| {
                let mut container = scene.come_back(&token).await;
                assert_eq!(welcomed(&mut container).await, 3);
            })
            .await;
    }
    let attendance = run.attend(async |_| {}).await;
    assert_eq!(attendance.reports.as_ref().unwrap().resumed, 5);
    assert_eq!(refused(&attendance), 2);
}
