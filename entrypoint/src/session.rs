//! One run under an allowlist, from the guest's start to its end: the loop of PID 1.

use std::{io, time::Duration};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::{
    account::Account,
    channel::Channel,
    firewall::Firewall,
    guest::{Ended, Guest},
    nflog::{NfLog, RefusedPacket},
    outbox::Outbox,
    signals::{Arrived, AsyncSignals},
    watch::{Happening, ProxyWatch},
};

/// Everything that PID 1 attends to.
pub(crate) struct Session {
    /// The run's account.
    pub(crate) account: Account,
    /// The way to the host, while there is one.
    pub(crate) channel: Option<Channel>,
    /// The proxy, kept running.
    pub(crate) proxy: ProxyWatch,
    /// The rules. Whatever is changed of them is changed through this.
    pub(crate) firewall: Firewall,
    nflog: NfLog,
    signals: AsyncSignals,
    flush_at: Option<Instant>,
    heartbeat: Interval,
}

/// What woke PID 1.
enum Event {
    Signal(io::Result<Arrived>),
    Proxy(Happening),
    Packets(io::Result<Vec<RefusedPacket>>),
    Channel,
    FlushDue,
    Heartbeat,
}

impl Session {
    /// A session whose guest is about to start.
    pub(crate) fn new(
        account: Account,
        channel: Option<Channel>,
        proxy: ProxyWatch,
        firewall: Firewall,
        nflog: NfLog,
        signals: AsyncSignals,
    ) -> Self {
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            account,
            channel,
            proxy,
            firewall,
            nflog,
            signals,
            flush_at: None,
            heartbeat,
        }
    }

    /// Attends to everything until the guest's first process has ended.
    pub(crate) async fn attend(&mut self, guest: &Guest) -> io::Result<Ended> {
        loop {
            let event = self.next_event().await;
            if let Some(ended) = self.handle(event, guest)? {
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

    async fn next_event(&mut self) -> Event {
        let Self {
            account,
            channel,
            proxy,
            firewall: _,
            nflog,
            signals,
            flush_at,
            heartbeat,
        } = self;
        tokio::select! {
            signal = signals.next() => Event::Signal(signal),
            happening = proxy.next() => Event::Proxy(happening),
            packets = nflog.read() => Event::Packets(packets),
            () = pump(channel.as_mut(), &mut account.outbox) => Event::Channel,
            () = due(*flush_at) => Event::FlushDue,
            _ = heartbeat.tick() => Event::Heartbeat,
        }
    }

    fn handle(&mut self, event: Event, guest: &Guest) -> io::Result<Option<Ended>> {
        match event {
            Event::Signal(signal) => return Ok(handle_signal(signal?, guest)),
            Event::Proxy(happening) => {
                self.proxy
                    .handle(happening, &mut self.account, &mut self.firewall);
                // The proxy has already gathered what belongs together.
                self.flush();
            }
            Event::Packets(packets) => {
                self.account.sample(packets?);
                self.flush_at.get_or_insert_with(|| Instant::now() + GATHER);
            }
            Event::Channel => self.flush_if_due(),
            Event::FlushDue => self.flush(),
            Event::Heartbeat => self.beat(),
        }
        Ok(None)
    }

    /// Turns counts into messages. Without a host they stay in the ledger, which is bounded, and so
    /// do those for which a host that is away leaves no room.
    fn flush(&mut self) {
        self.flush_at = None;
        if self.channel.is_some() {
            self.account.outbox.flush();
        }
    }

    /// The window may have opened for what had to wait.
    fn flush_if_due(&mut self) {
        if self.flush_at.is_none() && self.account.outbox.has_pending() {
            self.flush();
        }
    }

    fn beat(&mut self) {
        if self.channel.as_ref().is_some_and(Channel::is_up) {
            self.account.outbox.push_totals();
        }
    }
}

fn handle_signal(signal: Arrived, guest: &Guest) -> Option<Ended> {
    match signal {
        Arrived::Child => guest.reap(),
        Arrived::ForGuest(number) => {
            guest.forward(number);
            None
        }
        Arrived::FromTerminal(number) => {
            guest.signal(number);
            None
        }
        Arrived::Ignored => None,
    }
}

async fn pump(channel: Option<&mut Channel>, outbox: &mut Outbox) {
    match channel {
        Some(channel) => channel.pump(outbox).await,
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
const GATHER: Duration = Duration::from_millis(20);
