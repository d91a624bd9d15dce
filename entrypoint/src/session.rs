//! One run under an allowlist, from the guest's start to its end: the loop of PID 1.

mod steer;

use std::{io, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::{
    account::Account,
    channel::Channel,
    decider::{Decider, Happening},
    everyone,
    firewall::{Counters, Finding, Firewall},
    guest::{Ended, Guest},
    identity::Identities,
    nflog::{NfLog, RefusedPacket},
    outbox::Outbox,
    signals::{Arrived, AsyncSignals},
    steering::{Order, Steering},
    tamper::{Answer, TamperWatch},
};

/// Everything that PID 1 attends to.
pub(crate) struct Session {
    /// The run's account.
    pub(crate) account: Account,
    /// The way to the host, while there is one.
    pub(crate) channel: Option<Channel>,
    /// Whoever decides, kept running.
    pub(crate) decider: Decider,
    /// The rules. Whatever is changed of them is changed through this.
    pub(crate) firewall: Firewall,
    /// What others have done to them.
    pub(crate) tamper: TamperWatch,
    nflog: Option<NfLog>,
    signals: AsyncSignals,
    steering: Steering,
    identities: Identities,
    /// When the guest is ended, if it has not done so itself.
    kill_at: Option<Instant>,
    flush_at: Option<Instant>,
    /// Until then no more refusals are reported: what was reported last was so much.
    rests_until: Instant,
    heartbeat: Interval,
}

/// What keeps the network closed.
pub(crate) struct Barrier {
    /// The rules.
    pub(crate) firewall: Firewall,
    /// Whoever decides.
    pub(crate) decider: Decider,
    /// What the rules refused.
    pub(crate) nflog: Option<NfLog>,
}

/// What woke PID 1.
enum Event {
    Signal(io::Result<Arrived>),
    Decider(Happening),
    Packets(io::Result<Vec<RefusedPacket>>),
    Rules(io::Result<Finding>),
    Channel(Vec<Order>),
    GraceOver,
    FlushDue,
    Heartbeat,
}

impl Session {
    /// A session whose guest is about to start.
    pub(crate) fn new(
        account: Account,
        channel: Option<Channel>,
        barrier: Barrier,
        signals: AsyncSignals,
        steering: Steering,
        identities: Identities,
    ) -> Self {
        let Barrier {
            firewall,
            decider,
            nflog,
        } = barrier;
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            tamper: TamperWatch::new(&account),
            account,
            channel,
            decider,
            firewall,
            nflog,
            signals,
            steering,
            identities,
            kill_at: None,
            flush_at: None,
            rests_until: Instant::now(),
            heartbeat,
        }
    }

    /// Attends to everything until the guest's first process has ended.
    pub(crate) async fn attend(&mut self, guest: &Guest) -> io::Result<Ended> {
        loop {
            let event = self.next_event().await;
            if let Some(ended) = self.handle(event, guest)? {
                self.kill_at = None;
                return Ok(ended);
            }
        }
    }

    /// Attends to everything but the guest until `deadline`, or until `done` says so.
    pub(crate) async fn attend_until(
        &mut self,
        guest: &Guest,
        deadline: Instant,
        mut done: impl FnMut(&Self) -> bool,
    ) -> io::Result<()> {
        while !done(self) {
            tokio::select! {
                event = self.next_event() => { self.handle(event, guest)?; }
                () = sleep_until(deadline) => break,
            }
        }
        Ok(())
    }

    /// Attends to everything but the guest until a sample has told of every packet of `counters`, or
    /// until none comes that may still be on its way.
    pub(crate) async fn attend_samples(
        &mut self,
        guest: &Guest,
        counters: Counters,
    ) -> io::Result<()> {
        let latest = Instant::now() + ALL_SAMPLES;
        while !self.account.is_sampled(counters) {
            let patience = match &self.nflog {
                None => break,
                Some(nflog) if nflog.has_lost() => LAST_SAMPLES,
                Some(_) => ALL_SAMPLES,
            };
            let before = self.account.sampled();
            let deadline = latest.min(Instant::now() + patience);
            self.attend_until(guest, deadline, |session| {
                session.account.sampled() != before
            })
            .await?;
            if self.account.sampled() == before {
                break;
            }
        }
        Ok(())
    }

    async fn next_event(&mut self) -> Event {
        let Self {
            account,
            channel,
            decider,
            firewall,
            nflog,
            signals,
            kill_at,
            flush_at,
            heartbeat,
            ..
        } = self;
        tokio::select! {
            signal = signals.next() => Event::Signal(signal),
            happening = decider.next() => Event::Decider(happening),
            packets = refused(nflog.as_mut()) => Event::Packets(packets),
            finding = firewall.changed() => Event::Rules(finding),
            orders = pump(channel.as_mut(), &mut account.outbox) => Event::Channel(orders),
            () = due(*kill_at) => Event::GraceOver,
            () = due(*flush_at) => Event::FlushDue,
            _ = heartbeat.tick() => Event::Heartbeat,
        }
    }

    fn handle(&mut self, event: Event, guest: &Guest) -> io::Result<Option<Ended>> {
        match event {
            Event::Signal(signal) => return Ok(self.handle_signal(signal?, guest)),
            Event::Decider(happening) => {
                self.decider
                    .handle(happening, &mut self.account, &mut self.firewall);
                self.steer();
                // The proxy has already gathered what belongs together.
                self.report_by(Instant::now());
            }
            Event::Packets(packets) => {
                self.account.sample(packets?);
                self.report_by(Instant::now() + GATHER);
            }
            Event::Channel(orders) => {
                self.obey(orders, guest);
                self.flush_if_due();
            }
            Event::GraceOver => {
                self.kill_at = None;
                guest.kill();
            }
            Event::Rules(finding) => self.answer(finding?, guest)?,
            Event::FlushDue => {
                if self.firewall.is_told() {
                    self.look_at_rules(guest)?;
                }
                self.flush();
            }
            Event::Heartbeat => {
                self.look_at_rules(guest)?;
                self.decider.prolong(&mut self.firewall);
                self.beat();
            }
        }
        Ok(None)
    }

    fn handle_signal(&mut self, signal: Arrived, guest: &Guest) -> Option<Ended> {
        match signal {
            Arrived::Child => return guest.reap(|pid, ended| self.decider.note_end(pid, ended)),
            Arrived::ForGuest(number) => guest.forward(number),
            Arrived::FromTerminal(number) => guest.signal(number),
            Arrived::Ignored => {}
        }
        None
    }

    /// Looks whether the rules are as PID 1 made them: whenever there is something to report, and at
    /// each heartbeat, so that what is said of an interval without them is said of a short one.
    pub(crate) fn look_at_rules(&mut self, guest: &Guest) -> io::Result<()> {
        let finding = self.firewall.look()?;
        self.answer(finding, guest)
    }

    fn answer(&mut self, finding: Finding, guest: &Guest) -> io::Result<()> {
        match self
            .tamper
            .answer(finding, &mut self.account, &mut self.firewall)
        {
            Answer::GoOn => Ok(()),
            Answer::EndGuest => {
                guest.signal(Signal::KILL.as_raw());
                let Identities { guest, by } = &self.identities;
                everyone::kill_all_of(guest.user(), by.user())
            }
        }
    }

    /// Turns counts into messages by then, or, after many of them, as soon as their time is over.
    /// Meanwhile what is refused is added up: however much a guest has refused to it, and to whatever
    /// targets, it has no more told of it than that.
    fn report_by(&mut self, at: Instant) {
        let at = at.max(self.rests_until);
        if at <= Instant::now() {
            return self.flush();
        }
        self.flush_at = Some(self.flush_at.map_or(at, |sooner| sooner.min(at)));
        if self.channel.is_some() {
            self.account.outbox.flush_allowed();
        }
    }

    /// Turns counts into messages. Without a host they stay in the ledger, which is bounded, and so
    /// do those for which a host that is away leaves no room.
    fn flush(&mut self) {
        self.flush_at = None;
        if self.channel.is_some() {
            let refusals = self.account.outbox.flush();
            self.rests_until = Instant::now() + report::REST * refusals;
        }
    }

    /// The window may have opened for what had to wait.
    fn flush_if_due(&mut self) {
        if self.flush_at.is_none() && self.account.outbox.has_pending() {
            self.report_by(Instant::now());
        }
    }

    fn beat(&mut self) {
        if self.channel.as_ref().is_some_and(Channel::is_up) {
            self.account.outbox.push_totals();
        }
    }
}

async fn pump(channel: Option<&mut Channel>, outbox: &mut Outbox) -> Vec<Order> {
    match channel {
        Some(channel) => channel.pump(outbox).await,
        None => std::future::pending().await,
    }
}

async fn refused(nflog: Option<&mut NfLog>) -> io::Result<Vec<RefusedPacket>> {
    match nflog {
        Some(nflog) => nflog.read().await,
        None => std::future::pending().await,
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

const HEARTBEAT: Duration = Duration::from_secs(5);
/// For samples that the kernel has gathered: its timer is set to 10 ms, and ticks may be as long.
const LAST_SAMPLES: Duration = Duration::from_millis(60);
/// For all of them, and for each where the kernel has thrown none away: on a busy machine its timer
/// is late, and every one comes.
const ALL_SAMPLES: Duration = Duration::from_secs(1);
const GATHER: Duration = Duration::from_millis(20);
