//! The end of a run: nothing of the guest is left, and the account is closed exact.

use std::{io, time::Duration};

use procwatch::{Handle, Identity, State, descendants, snapshot};
use report::{Body, EndReason, Exit, GapKind, Printable};
use rustix::process::Signal;
use tokio::time::{Instant, timeout_at};

use crate::{
    channel::Channel,
    everyone,
    failure::Failure,
    firewall::Counters,
    guest::{Ended, Guest},
    identity::Identities,
    outbox::Outbox,
    session::Session,
};

/// Ends what the guest left behind, reads the final numbers, and says goodbye.
pub(crate) async fn finish(
    session: &mut Session,
    guest: &Guest,
    ended: Ended,
    identities: &Identities,
) -> io::Result<()> {
    // Asked first: what follows starts children of PID 1's own.
    let mut exit = guest.exit(ended, 0);
    exit.outlived_root = end_survivors(session, guest, identities).await?;
    // Looked at now: whoever decides is about to end, and then not known by its pid any more.
    let is_alone = survivors(session)?.is_empty();
    session.decider.drain();
    let deadline = Instant::now() + DRAIN;
    session
        .attend_until(guest, deadline, |session| session.decider.is_drained())
        .await?;
    session.decider.give_up(&mut session.account);
    // Whatever was done to the rules while there was a guest has been told of by now.
    session.look_at_rules(guest)?;
    match session.firewall.counters() {
        Ok(counters) => {
            // The kernel gathers samples before it hands them over: the last are still with it.
            session.attend_samples(guest, counters).await?;
            let counters = recount(session, counters);
            session.account.settle(counters);
        }
        Err(failure) => session.account.leave_unsettled(&failure.one_line()),
    }
    if !is_alone {
        // They end with the container; until then they may try what nobody counts any more.
        session.account.leave_unsettled(NOT_ENDED);
    }
    say_goodbye(session, exit).await;
    Ok(())
}

/// A packet is counted before it is sampled: more samples than packets are of packets that were
/// refused since, or somebody has reset the counters, of which the kernel tells nobody. Where rules
/// went with their counters, which was told, samples of that time may have come after it.
fn recount(session: &mut Session, counters: Counters) -> Counters {
    if !session.account.exceeds(counters) {
        return counters;
    }
    let again = session.firewall.counters().unwrap_or(counters);
    if session.account.exceeds(again) && !session.tamper.has_found() {
        session.account.end_gap(GapKind::Tamper, 0, COUNTERS_RESET);
    }
    again
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

/// Waits until the host has stored everything, or can be waited for no longer: a host that is
/// behind, because a guest kept it busy to the end, is not one that is gone.
pub(crate) async fn settle(channel: &mut Channel, outbox: &mut Outbox) {
    // A collector that was started again meanwhile finds the channel and gets the rest.
    channel.hurry();
    let latest = Instant::now() + ALL_ACKS;
    while !outbox.is_settled() {
        let before = outbox.unacknowledged();
        let patience = latest.min(Instant::now() + LAST_ACK);
        let progress = async {
            while outbox.unacknowledged() == before {
                channel.pump(outbox).await;
            }
        };
        if timeout_at(patience, progress).await.is_err() {
            // The run is over; the host knows by the bye whether it has everything.
            break;
        }
    }
}

/// Asks the guest's other processes to end, then ends them. Returns how many there were.
async fn end_survivors(
    session: &mut Session,
    guest: &Guest,
    identities: &Identities,
) -> io::Result<u64> {
    let asked = survivors(session)?;
    for &identity in &asked {
        send(identity, Signal::TERM);
    }
    wait_for_survivors(session, guest).await?;
    for _ in 0..ATTEMPTS {
        if survivors(session)?.is_empty() {
            break;
        }
        // One by one they could fork faster than they are found, and go on unseen after the last
        // number was read.
        let at_once = everyone::kill_all_of(identities.guest.user(), identities.by.user());
        for identity in survivors(session)? {
            send(identity, Signal::KILL);
        }
        wait_for_survivors(session, guest).await?;
        at_once?;
    }
    Ok(u64::try_from(asked.len()).unwrap_or(u64::MAX))
}

fn send(identity: Identity, signal: Signal) {
    // Gone between the look and the signal is as good as signalled.
    let _ = Handle::open(identity).and_then(|handle| handle.signal(signal));
}

/// Their ends arrive as signals, which wake this.
async fn wait_for_survivors(session: &mut Session, guest: &Guest) -> io::Result<()> {
    let deadline = Instant::now() + GRACE;
    session
        .attend_until(guest, deadline, |session| {
            survivors(session).is_ok_and(|s| s.is_empty())
        })
        .await
}

fn survivors(session: &Session) -> io::Result<Vec<Identity>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let except: Vec<i32> = session.decider.pid().into_iter().collect();
    let all = snapshot()?;
    let family = descendants(&all, own, &except);
    let alive = family
        .iter()
        .filter(|process| process.state == State::Alive);
    Ok(alive.map(|process| process.identity).collect())
}

/// For processes that outlive the guest's first one, to end by themselves.
const GRACE: Duration = Duration::from_millis(250);
const COUNTERS_RESET: &str =
    "fewer packets are counted than were sampled: somebody reset the counters";
const NOT_ENDED: &str = "processes of the guest could not be ended before the last count";
/// How often they are killed: a process in the middle of a system call may take its time.
const ATTEMPTS: u32 = 10;
/// For the proxy, to end its relays and to report what they carried: it takes 300 ms where they do not
/// end by themselves, and longer on a busy machine.
const DRAIN: Duration = Duration::from_secs(3);
/// For the host, to store one message more.
const LAST_ACK: Duration = Duration::from_secs(1);
/// For the host, to store all that is left.
const ALL_ACKS: Duration = Duration::from_secs(10);

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
