//! Hands what was counted to PID 1: soon, in batches, and never at the expense of a connection.
//!
//! After many refusals of different targets it waits before it tells of more ([`REST`]): what is
//! refused meanwhile is added up.
//!
//! While PID 1 does not read, batches merge in the account, which is bounded. Counts are increments,
//! so a merged batch says the same with less detail.

use std::{io, pin::pin, time::Duration};

use report::{FrameError, REST, encode, link::FromProxy};
use tokio::{
    io::AsyncWriteExt as _,
    net::unix::OwnedWriteHalf,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    account::{Batch, More},
    proxy::Proxy,
};

/// Why reporting ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// PID 1 is gone.
    #[error("cannot write to PID 1")]
    Link(#[from] io::Error),
    /// A message that cannot be sent; none of ours is that long.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reports until `account` is closed and everything in it was sent. Requests to PID 1 go out between
/// two batches, and do not wait for one to be full: a client waits for them. That another list
/// decides is said after all that the one before it refused.
pub(crate) async fn run(proxy: &Proxy, link: &mut OwnedWriteHalf) -> Result<(), ReportError> {
    let account = &proxy.account;
    let mut collect = interval(COLLECT);
    collect.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rests_until = Instant::now();
    loop {
        let mut answer = None;
        tokio::select! {
            () = account.something() => {}
            given = proxy.rulings.answer() => answer = Some(given),
            request = proxy.openings.next() => {
                send(link, &FromProxy::Open(request)).await?;
                continue;
            }
            _ = collect.tick() => {
                account.collect_flows();
                continue;
            }
        }
        if answer.is_none() {
            // Either way the batch goes out now.
            answer = gather(proxy, link, rests_until).await?;
        }
        let (batch, more) = account.take();
        let refusals = u32::try_from(batch.denied.len()).unwrap_or(u32::MAX);
        link.write_all(&lines(batch)?).await?;
        rests_until = Instant::now() + REST.saturating_mul(refusals);
        if let Some(answer) = answer {
            send(link, &answer).await?;
        }
        if more == More::Never {
            return Ok(());
        }
    }
}

/// Gathers events for a while, and until `rested`, or until what ends a batch. What is let through
/// need not wait for it.
async fn gather(
    proxy: &Proxy,
    link: &mut OwnedWriteHalf,
    rested: Instant,
) -> Result<Option<FromProxy>, ReportError> {
    let mut gathered = pin!(sleep_until(rested.max(Instant::now() + GATHER)));
    loop {
        tokio::select! {
            more = proxy.account.full() => match more {
                More::Never => return Ok(None),
                More::Later => link.write_all(&lines(proxy.account.take_allowed())?).await?,
            },
            () = &mut gathered => return Ok(None),
            () = proxy.account.hurried() => return Ok(None),
            answer = proxy.rulings.answer() => return Ok(Some(answer)),
            request = proxy.openings.next() => send(link, &FromProxy::Open(request)).await?,
        }
    }
}

/// Sends one message by itself.
pub(crate) async fn send(
    link: &mut OwnedWriteHalf,
    message: &FromProxy,
) -> Result<(), ReportError> {
    let frame = encode(message, report::link::MAX_FRAME)?;
    Ok(link.write_all(&frame).await?)
}

fn lines(batch: Batch) -> Result<Vec<u8>, FrameError> {
    let denied = batch.denied.into_iter().map(FromProxy::Denied);
    let allowed = batch.allowed.into_iter().map(FromProxy::Allowed);
    let mut lines = Vec::new();
    for message in denied.chain(allowed) {
        lines.extend(encode(&message, report::link::MAX_FRAME)?);
    }
    Ok(lines)
}

/// How long events are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(20);
/// How often connections that last are asked what they carried.
const COLLECT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use policy::{DenyReason, HostName};
    use report::{Printable, Target, link::Succession};
    use tokio::{
        io::{AsyncBufReadExt as _, BufReader, Lines},
        net::{UnixStream, unix::OwnedReadHalf},
        time::Instant,
    };

    use super::*;

    fn target(name: &str) -> Target {
        Target {
            host: Some(Printable::new(name)),
            address: None,
            port: Some(443),
        }
    }

    struct Pid1(Lines<BufReader<OwnedReadHalf>>);

    impl Pid1 {
        async fn next(&mut self) -> FromProxy {
            let line = self.0.next_line().await.unwrap().expect("a line");
            serde_json::from_str(&line).unwrap()
        }
    }

    fn link() -> (OwnedWriteHalf, Pid1) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (
            ours.into_split().1,
            Pid1(BufReader::new(theirs.into_split().0).lines()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_gathered_for_20_ms_and_merged() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        for _ in 0..3 {
            account.deny(target("a"), DenyReason::NotTls);
        }
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            message = pid1.next() => {
                let FromProxy::Denied(denied) = message else { panic!("{message:?}") };
                assert_eq!((denied.count, denied.reason), (3, DenyReason::NotTls));
                assert_eq!(began.elapsed().as_millis(), 20);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_does_not_wait() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        for n in 0..64 {
            account.allow(target(&n.to_string()));
        }
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            message = pid1.next() => {
                assert!(matches!(&message, FromProxy::Allowed(a) if a.connections == 1), "{message:?}");
                assert_eq!(began.elapsed(), Duration::ZERO);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_pid_1_waits_for_is_said_at_once_and_what_comes_then_is_gathered_again() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        let told = async {
            // There is nothing yet that could hurry.
            account.hurry();
            account.deny(target("a"), DenyReason::NotTls);
            pid1.next().await;
            assert_eq!(began.elapsed(), GATHER);
            account.deny(target("a"), DenyReason::NotTls);
            tokio::task::yield_now().await;
            account.hurry();
            pid1.next().await;
            assert_eq!(began.elapsed(), GATHER);
            account.deny(target("a"), DenyReason::NotTls);
            pid1.next().await;
            assert_eq!(began.elapsed(), 2 * GATHER);
        };
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            () = told => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_often_one_target_is_asked_for_it_is_one_line_in_20_ms() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        for _ in 0..100_000 {
            account.deny(target("a"), DenyReason::NotAllowed);
        }
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            message = pid1.next() => {
                assert!(matches!(&message, FromProxy::Denied(d) if d.count == 100_000), "{message:?}");
                assert!(began.elapsed() >= GATHER, "{:?}", began.elapsed());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_many_refusals_it_waits_before_it_tells_of_more_and_adds_up() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        let refuse = |names: std::ops::Range<u32>| {
            for n in names {
                account.deny(target(&n.to_string()), DenyReason::NotAllowed);
            }
        };
        refuse(0..500);
        let telling = async {
            for _ in 0..500 {
                pid1.next().await;
            }
            refuse(0..2);
            account.allow(target("a"));
            tokio::time::sleep(Duration::from_millis(100)).await;
            refuse(0..2);
            let mut told = Vec::new();
            for _ in 0..3 {
                told.push(pid1.next().await);
            }
            told
        };
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            told = telling => {
                assert_eq!(began.elapsed(), GATHER + REST * 500);
                let twice = |m: &&FromProxy| matches!(m, FromProxy::Denied(d) if d.count == 2);
                assert_eq!(told.iter().filter(twice).count(), 2, "{told:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_let_through_does_not_wait_for_what_is_refused() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        for n in 0..500 {
            account.deny(target(&n.to_string()), DenyReason::NotAllowed);
        }
        let began = Instant::now();
        let telling = async {
            for _ in 0..500 {
                pid1.next().await;
            }
            account.deny(target("0"), DenyReason::NotAllowed);
            for n in 0..64 {
                account.allow(target(&n.to_string()));
            }
            pid1.next().await
        };
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            message = telling => {
                assert!(matches!(message, FromProxy::Allowed(_)), "{message:?}");
                assert_eq!(began.elapsed(), GATHER);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_no_rest() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        for n in 0..900 {
            account.deny(target(&n.to_string()), DenyReason::NotAllowed);
        }
        let began = Instant::now();
        let telling = async {
            for _ in 0..900 {
                pid1.next().await;
            }
            account.deny(target("0"), DenyReason::NotAllowed);
            account.close();
            pid1.next().await
        };
        let (ended, _) = tokio::join!(run(&proxy, &mut link), telling);
        ended.unwrap();
        assert_eq!(began.elapsed(), GATHER);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_a_lasting_connection_are_reported_every_5_s() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let flow = account.flow(target("a"));
        let began = Instant::now();
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            () = async {
                // The first tick of an interval comes at once: it finds nothing.
                tokio::task::yield_now().await;
                flow.add_down(9);
                let message = pid1.next().await;
                assert!(matches!(&message, FromProxy::Allowed(a) if a.bytes_down == 9), "{message:?}");
                assert!(began.elapsed() >= COLLECT, "{:?}", began.elapsed());
            } => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_wait_for_events_to_be_gathered() {
        let proxy = Proxy::allowing("a.example");
        let (account, openings) = (&proxy.account, &proxy.openings);
        let name = HostName::parse("a.example").unwrap();
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        account.deny(target("a"), DenyReason::NotTls);
        let endpoint = "203.0.113.7:22".parse().unwrap();
        let asking = async {
            tokio::join!(openings.open((&name, 1), vec![endpoint], 60), async {
                let FromProxy::Open(request) = pid1.next().await else {
                    panic!("no request")
                };
                assert_eq!((request.endpoints, request.seconds), (vec![endpoint], 60));
                assert!(began.elapsed() < GATHER, "{:?}", began.elapsed());
                openings.answer(request.id, true);
            })
        };
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            (opened, ()) = asking => assert_eq!(opened, Ok(())),
        }
    }

    #[tokio::test]
    async fn nothing_is_lost_while_pid_1_does_not_read() {
        let proxy = Proxy::allowing("a.example");
        let account = &proxy.account;
        let (mut link, mut pid1) = link();
        let inventing = async {
            for n in 0..20_000_u32 {
                account.deny(target(&format!("{n}.example")), DenyReason::NotAllowed);
                if n % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            account.close();
        };
        let reading = async {
            inventing.await;
            let mut sum = 0;
            while sum < 20_000 {
                let FromProxy::Denied(denied) = pid1.next().await else {
                    panic!("not a denial")
                };
                sum += denied.count;
            }
            sum
        };
        let (ended, sum) = tokio::join!(run(&proxy, &mut link), reading);
        ended.unwrap();
        assert_eq!(sum, 20_000);
    }

    #[tokio::test(start_paused = true)]
    async fn that_another_list_decides_is_said_at_once_and_after_what_was_refused_before() {
        let proxy = Proxy::allowing("a.example");
        let (mut link, mut pid1) = link();
        let began = Instant::now();
        proxy.account.deny(target("b"), DenyReason::NotAllowed);
        let policy = policy::Policy::parse("b.example").unwrap();
        let next = Succession {
            generation: 2,
            allow: policy.entries(),
            policy_digest: policy.digest().to_string(),
        };
        let exchanging = async {
            proxy.rulings.succeed(&next);
            let first = pid1.next().await;
            assert!(matches!(first, FromProxy::Denied(_)), "{first:?}");
            pid1.next().await
        };
        tokio::select! {
            ended = run(&proxy, &mut link) => panic!("{ended:?}"),
            answer = exchanging => {
                let expected = FromProxy::Policy { generation: 2, refused: None };
                assert_eq!(answer, expected);
                assert!(began.elapsed() < GATHER, "{:?}", began.elapsed());
            }
        }
    }
}
