//! The end of a run: nothing of the guest is left, and the account is closed exact.

use std::{collections::HashSet, io, time::Duration};

use procwatch::{Handle, Identity, State, descendants, snapshot};
use report::{Body, EndReason, Exit, Printable};
use rustix::process::Signal;
use tokio::time::{Instant, timeout};

use crate::{
    channel::Channel,
    failure::Failure,
    firewall::Firewall,
    guest::{Ended, Guest},
    outbox::Outbox,
    session::Session,
};

/// Ends what the guest left behind, reads the final numbers, and says goodbye.
pub(crate) async fn finish(
    session: &mut Session,
    guest: &Guest,
    ended: Ended,
    firewall: &Firewall,
) -> io::Result<()> {
    // Asked first: what follows starts children of PID 1's own.
    let mut exit = guest.exit(ended, 0);
    exit.outlived_root = end_survivors(session, guest).await?;
    session.proxy.drain();
    let deadline = Instant::now() + DRAIN;
    session
        .attend_until(guest, deadline, |session| session.proxy.is_drained())
        .await?;
    match firewall.counters() {
        Ok(counters) => {
            // The kernel gathers samples before it hands them over: the last are still with it.
            let deadline = Instant::now() + LAST_SAMPLES;
            let complete = |session: &Session| session.account.is_sampled(counters);
            session.attend_until(guest, deadline, complete).await?;
            session.account.settle(counters);
        }
        Err(failure) => session.account.leave_unsettled(&failure.one_line()),
    }
    say_goodbye(session, exit).await;
    Ok(())
}

/// Closes the account of a guest that could not be started.
pub(crate) async fn close_unstarted(session: &mut Session, exit: Exit) {
    say_goodbye(session, exit).await;
}

/// What is said of a run that was refused after the channel was open.
pub(crate) fn refused(failure: &Failure) -> Exit {
    Exit {
        code: Some(failure.exit_code().into()),
        signal: None,
        end_reason: EndReason::StartFailed,
        cpu_ms: 0,
        peak_rss_kb: None,
        outlived_root: 0,
        detail: Some(Printable::new(&failure.one_line())),
    }
}

async fn say_goodbye(session: &mut Session, exit: Exit) {
    let outbox = &mut session.account.outbox;
    outbox.flush_all();
    outbox.push(Body::Exit(exit));
    outbox.push_bye();
    if let Some(channel) = &mut session.channel {
        settle(channel, outbox).await;
    }
}

/// Waits until the host has stored everything, or can be waited for no longer.
pub(crate) async fn settle(channel: &mut Channel, outbox: &mut Outbox) {
    // A collector that was started again meanwhile finds the channel and gets the rest.
    channel.hurry();
    let all = async {
        while !outbox.is_settled() {
            channel.pump(outbox).await;
        }
    };
    // Either way the run is over; the host knows by the bye whether it has it.
    let _ = timeout(LAST_ACK, all).await;
}

/// Asks the guest's other processes to end, then ends them. Returns how many there were.
async fn end_survivors(session: &mut Session, guest: &Guest) -> io::Result<u64> {
    let mut known = HashSet::new();
    let mut deadline = Instant::now() + GRACE;
    for signal in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::KILL] {
        let alive = survivors(session)?;
        if alive.is_empty() {
            break;
        }
        if signal == Signal::TERM {
            known.extend(alive.iter().copied());
        }
        for identity in alive {
            // Gone between the look and the signal is as good as signalled.
            let _ = Handle::open(identity).and_then(|handle| handle.signal(signal));
        }
        // Their ends arrive as signals, which wake this.
        session
            .attend_until(guest, deadline, |session| {
                survivors(session).is_ok_and(|s| s.is_empty())
            })
            .await?;
        deadline = Instant::now() + GRACE;
    }
    Ok(u64::try_from(known.len()).unwrap_or(u64::MAX))
}

fn survivors(session: &Session) -> io::Result<Vec<Identity>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let except: Vec<i32> = session.proxy.pid().into_iter().collect();
    let all = snapshot()?;
    let family = descendants(&all, own, &except);
    let alive = family
        .iter()
        .filter(|process| process.state == State::Alive);
    Ok(alive.map(|process| process.identity).collect())
}

/// For processes that outlive the guest's first one, to end by themselves.
const GRACE: Duration = Duration::from_millis(250);
/// For the proxy, to report what its relays carried.
const DRAIN: Duration = Duration::from_secs(1);
/// For samples that the kernel has gathered: its timer is set to 10 ms, and ticks may be as long.
const LAST_SAMPLES: Duration = Duration::from_millis(60);
/// For the host, to store the last message.
const LAST_ACK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_run_is_reported_with_its_code_and_its_line() {
        for failure in [
            Failure::config("SANDBOX_RUN_AS", "no user", "name one"),
            Failure::setup("load the firewall", "no nft", "install it"),
        ] {
            let exit = refused(&failure);
            assert_eq!(exit.code, Some(i32::from(failure.exit_code())));
            assert_eq!(exit.end_reason, EndReason::StartFailed);
            assert_eq!(exit.detail.unwrap().as_str(), failure.one_line());
        }
    }

    #[test]
    fn a_line_that_is_very_long_is_cut_and_the_report_is_still_sent() {
        let exit = refused(&Failure::setup("step", "x".repeat(100_000), "mend it"));
        assert!(exit.detail.unwrap().as_str().len() <= Printable::MAX);
    }
}
