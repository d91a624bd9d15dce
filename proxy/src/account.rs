//! Counts what connections do, without ever making one of them wait.
//!
//! Whatever the guest invents, what is kept apart is bounded; what is counted is exact. The
//! reporter takes it from here.

use std::{
    collections::HashMap,
    iter, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use policy::{DenyReason, Permit};
use report::{Allowed, Denied, Ledger, RunClock, Seed, Target, Transport};
use tokio::sync::Notify;

use crate::{authority::target_of, recent::Recent};

/// What happened and was not reported yet.
#[derive(Debug)]
pub(crate) struct Account {
    clock: RunClock,
    state: Mutex<State>,
    /// There is something new for the reporter: its first event, a full batch, or the end.
    changed: Notify,
    /// PID 1 waits for what is pending.
    hurried: Notify,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    recent: Recent,
    /// Whether anything happened since the last take.
    pending: bool,
    flows: HashMap<u64, Live>,
    next_flow: u64,
    closed: bool,
}

#[derive(Debug)]
struct Live {
    counters: Arc<Counters>,
    reported: (u64, u64),
}

#[derive(Debug)]
struct Counters {
    target: Target,
    up: AtomicU64,
    down: AtomicU64,
}

/// The bytes of one connection to an allowed target. What it carried is reported while it lasts,
/// and the rest when it is dropped, however the connection ended.
#[derive(Debug)]
pub(crate) struct Flow {
    account: Arc<Account>,
    counters: Arc<Counters>,
    number: u64,
}

impl Account {
    /// An account in which nothing happened, on the run's time axis, which names refused targets in
    /// the order of `seed` if there are too many.
    pub(crate) fn new(clock: RunClock, seed: Seed) -> Self {
        let state = State {
            ledger: Ledger::new(seed, MAX_TARGETS),
            recent: Recent::default(),
            pending: false,
            flows: HashMap::new(),
            next_flow: 0,
            closed: false,
        };
        Self {
            clock,
            state: Mutex::new(state),
            changed: Notify::new(),
            hurried: Notify::new(),
        }
    }

    /// An attempt over TCP was refused.
    #[cfg(test)]
    pub(crate) fn deny(&self, target: Target, reason: DenyReason) {
        self.deny_over(Transport::Tcp, target, reason, None);
    }

    /// An attempt was refused, and this was said about it.
    pub(crate) fn deny_over(
        &self,
        proto: Transport,
        target: Target,
        reason: DenyReason,
        hint: Option<&str>,
    ) {
        let now = self.clock.elapsed_ms();
        let denied = Denied {
            target,
            proto,
            reason,
            count: 1,
            first: now,
            last: now,
            uid: None,
        };
        self.record(|state| {
            state.recent.note(&denied, hint);
            state.ledger.deny(denied);
        });
    }

    /// What was refused lately.
    pub(crate) fn recent(&self) -> Recent {
        self.state().recent.clone()
    }

    /// An attempt was let through.
    pub(crate) fn allow(&self, target: Target) {
        self.record(|state| {
            state.ledger.allow(Allowed {
                connections: 1,
                ..nothing(target)
            });
        });
    }

    /// An attempt that was let through failed on its own account.
    pub(crate) fn fail(&self, target: Target) {
        self.record(|state| {
            state.ledger.allow(Allowed {
                failures: 1,
                ..nothing(target)
            });
        });
    }

    /// A stream was let through to what is permitted, and offers Encrypted `ClientHello` or does not.
    pub(crate) fn note_ech(&self, offered: bool, permit: &Permit) {
        if offered {
            self.record(|state| {
                state.ledger.allow(Allowed {
                    ech_offered: 1,
                    ..nothing(target_of(permit.destination()))
                });
            });
        }
    }

    /// Opens the count of bytes for a connection to `target`.
    pub(crate) fn flow(self: &Arc<Self>, target: Target) -> Flow {
        let counters = Arc::new(Counters {
            target,
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
        });
        let mut state = self.state();
        let number = state.next_flow;
        state.next_flow += 1;
        state.flows.insert(
            number,
            Live {
                counters: Arc::clone(&counters),
                reported: (0, 0),
            },
        );
        drop(state);
        Flow {
            account: Arc::clone(self),
            counters,
            number,
        }
    }

    /// Enters what connections carried since they were last asked, so that a run that is cut short
    /// has counts for those that never ended.
    pub(crate) fn collect_flows(&self) {
        let mut state = self.state();
        let State {
            ledger,
            pending,
            flows,
            ..
        } = &mut *state;
        for flow in flows.values_mut() {
            *pending |= flow.enter(ledger);
        }
        let pending = *pending;
        drop(state);
        if pending {
            self.changed.notify_one();
        }
    }

    /// Waits for the first event after the last [`Account::take`], or for the end.
    pub(crate) async fn something(&self) {
        while !self.is(|state| state.pending) {
            self.changed.notified().await;
        }
    }

    /// Waits until so much was let through that it is worth sending at once, or for the end; says
    /// which.
    pub(crate) async fn full(&self) -> More {
        while !self.is(|state| state.ledger.allowed() >= BATCH) {
            self.changed.notified().await;
        }
        self.state().more()
    }

    /// Takes out everything that was not reported yet, and whether there will be more.
    pub(crate) fn take(&self) -> (Batch, More) {
        let mut state = self.state();
        state.pending = false;
        let batch = Batch {
            denied: iter::from_fn(|| state.ledger.pop_denied()).collect(),
            allowed: iter::from_fn(|| state.ledger.pop_allowed()).collect(),
        };
        (batch, state.more())
    }

    /// Takes out only what was let through.
    pub(crate) fn take_allowed(&self) -> Batch {
        let mut state = self.state();
        Batch {
            denied: Vec::new(),
            allowed: iter::from_fn(|| state.ledger.pop_allowed()).collect(),
        }
    }

    /// Says that PID 1 waits for what happened so far, if anything did.
    pub(crate) fn hurry(&self) {
        if self.state().pending {
            self.hurried.notify_one();
        }
    }

    /// Waits until PID 1 waits.
    pub(crate) async fn hurried(&self) {
        self.hurried.notified().await;
    }

    /// Says that nothing more will happen.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    fn record(&self, enter: impl FnOnce(&mut State)) {
        let mut state = self.state();
        let was_full = state.ledger.allowed() >= BATCH;
        enter(&mut state);
        let is_full = state.ledger.allowed() >= BATCH;
        let is_first = !mem::replace(&mut state.pending, true);
        drop(state);
        if is_first || is_full && !was_full {
            self.changed.notify_one();
        }
    }

    /// Whether the reporter need not wait: for this, or because nothing more will happen.
    fn is(&self, reached: impl FnOnce(&State) -> bool) -> bool {
        let state = self.state();
        state.closed || reached(&state)
    }

    /// A panic of one connection must not stop the account of the others.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn more(&self) -> More {
        if self.closed {
            More::Never
        } else {
            More::Later
        }
    }
}

/// What was not reported yet.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Of what was refused.
    pub(crate) denied: Vec<Denied>,
    /// Of what was let through.
    pub(crate) allowed: Vec<Allowed>,
}

/// Whether an account may still grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// It may.
    Later,
    /// It was closed.
    Never,
}

impl Live {
    /// Enters what is new; false if nothing is.
    fn enter(&mut self, ledger: &mut Ledger) -> bool {
        let (up, down) = self.counters.read();
        let (bytes_up, bytes_down) = (up - self.reported.0, down - self.reported.1);
        if (bytes_up, bytes_down) == (0, 0) {
            return false;
        }
        self.reported = (up, down);
        ledger.allow(Allowed {
            bytes_up,
            bytes_down,
            ..nothing(self.counters.target.clone())
        });
        true
    }
}

impl Counters {
    fn read(&self) -> (u64, u64) {
        (
            self.up.load(Ordering::Relaxed),
            self.down.load(Ordering::Relaxed),
        )
    }
}

impl Flow {
    /// Counts bytes that went out.
    pub(crate) fn add_up(&self, bytes: usize) {
        self.counters.up.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that came in.
    pub(crate) fn add_down(&self, bytes: usize) {
        self.counters
            .down
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All bytes so far, both ways.
    pub(crate) fn moved(&self) -> u64 {
        let (up, down) = self.counters.read();
        up + down
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let mut state = self.account.state();
        let flow = state.flows.remove(&self.number);
        drop(state);
        let Some(mut flow) = flow else { return };
        if self.counters.read() != flow.reported {
            self.account.record(|state| {
                flow.enter(&mut state.ledger);
            });
        }
    }
}

fn nothing(target: Target) -> Allowed {
    Allowed {
        target,
        connections: 0,
        failures: 0,
        bytes_up: 0,
        bytes_down: 0,
        ech_offered: 0,
    }
}

/// Of how many targets what was let through is kept apart between two reports.
const MAX_TARGETS: usize = 1024;
/// How many of them are worth a report at once. Not how many events: those of one target are one
/// line, however many. What is refused is never worth it, since what a guest has refused to it is as
/// much as it likes.
const BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use report::Printable;

    use super::*;

    fn account() -> Arc<Account> {
        Arc::new(Account::new(RunClock::start(), Seed([0; 16])))
    }

    fn target(name: &str) -> Target {
        Target {
            host: Some(Printable::new(name)),
            address: None,
            port: Some(443),
        }
    }

    fn allowed(account: &Account) -> Vec<Allowed> {
        account.take().0.allowed
    }

    #[test]
    fn a_flow_reports_its_bytes_once_while_it_lasts_and_at_its_end() {
        let account = account();
        let flow = account.flow(target("a"));
        flow.add_up(10);
        account.collect_flows();
        account.collect_flows();
        assert_eq!(
            allowed(&account),
            [Allowed {
                bytes_up: 10,
                ..nothing(target("a"))
            }]
        );
        flow.add_up(1);
        flow.add_down(7);
        drop(flow);
        assert_eq!(
            allowed(&account),
            [Allowed {
                bytes_up: 1,
                bytes_down: 7,
                ..nothing(target("a"))
            }]
        );
        assert_eq!(allowed(&account), []);
    }

    #[test]
    fn a_flow_that_carried_nothing_reports_nothing() {
        let account = account();
        drop(account.flow(target("a")));
        account.collect_flows();
        assert_eq!(allowed(&account), []);
        assert!(account.state().flows.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_counted_is_exact() {
        let account = account();
        for n in 0..5000 {
            account.deny(target(&format!("{n}.example")), DenyReason::NotAllowed);
        }
        let (batch, more) = account.take();
        let most = report::NAMED + DenyReason::ALL.len();
        assert!(batch.denied.len() <= most, "{}", batch.denied.len());
        let sum: u64 = batch.denied.iter().map(|d| d.count).sum();
        assert_eq!((sum, more), (5000, More::Later));
    }

    #[tokio::test]
    async fn the_reporter_is_woken_by_the_first_event_by_a_batch_and_by_the_end() {
        let account = account();
        account.allow(target("a"));
        account.something().await;
        for n in 1..BATCH {
            account.fail(target(&n.to_string()));
        }
        assert_eq!(account.full().await, More::Later);
        assert_eq!(allowed(&account).len(), BATCH);
        account.close();
        account.something().await;
        assert_eq!(account.full().await, More::Never);
        assert_eq!(account.take().1, More::Never);
    }

    #[test]
    fn what_was_let_through_is_taken_without_what_was_refused() {
        let account = account();
        account.allow(target("a"));
        account.deny(target("b"), DenyReason::NotAllowed);
        let first = account.take_allowed();
        assert_eq!((first.allowed.len(), first.denied.len()), (1, 0));
        let (rest, _) = account.take();
        assert_eq!((rest.allowed.len(), rest.denied.len()), (0, 1));
    }
}
