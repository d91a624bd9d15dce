//! Keeps the proxy running. While it is not, the rules stand and nothing leaves.

use std::{io, time::Duration};

use report::link::{FromProxy, Open, Start};
use tokio::time::{Instant, sleep_until};

use crate::{
    account::Account, firewall::Firewall, identity::Unprivileged, listeners::Listeners,
    proxy::Proxy,
};

/// The proxy and what is needed to start it again.
pub(crate) struct ProxyWatch {
    identity: Unprivileged,
    listeners: Listeners,
    start: Start,
    state: State,
    failures: u32,
}

enum State {
    Running(Proxy),
    /// Gone; it is started again at this time.
    Down(Instant),
    /// It has said all that it will.
    Drained,
}

/// What can happen to a proxy.
pub(crate) enum Happening {
    /// It said something.
    Said(FromProxy),
    /// It said its last word, as it was asked to.
    Drained,
    /// It is gone without having been asked to go.
    Lost(io::Error),
    /// It was down for long enough.
    RestartDue,
}

impl ProxyWatch {
    /// Watches a proxy that runs.
    pub(crate) const fn new(
        identity: Unprivileged,
        listeners: Listeners,
        start: Start,
        proxy: Proxy,
    ) -> Self {
        Self {
            identity,
            listeners,
            start,
            state: State::Running(proxy),
            failures: 0,
        }
    }

    /// The proxy's process, while there is one.
    pub(crate) const fn pid(&self) -> Option<i32> {
        match &self.state {
            State::Running(proxy) => Some(proxy.pid),
            State::Down(_) | State::Drained => None,
        }
    }

    /// What happens next to the proxy, if anything does.
    pub(crate) async fn next(&mut self) -> Happening {
        match &mut self.state {
            State::Running(proxy) => match proxy.next().await {
                Ok(FromProxy::Drained) => Happening::Drained,
                Ok(message) => Happening::Said(message),
                Err(error) => Happening::Lost(error),
            },
            State::Down(at) => {
                sleep_until(*at).await;
                Happening::RestartDue
            }
            State::Drained => std::future::pending().await,
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(
        &mut self,
        happening: Happening,
        account: &mut Account,
        firewall: &mut Firewall,
    ) {
        match happening {
            Happening::Said(FromProxy::Open(request)) => self.open(&request, firewall),
            Happening::Said(message) => account.hear(message),
            Happening::Drained => self.state = State::Drained,
            Happening::Lost(error) => self.lost(&error, account),
            Happening::RestartDue => self.restart(account),
        }
    }

    /// Lets the guest reach what a name resolved to, and says whether it can.
    fn open(&self, request: &Open, firewall: &mut Firewall) {
        let Open {
            id,
            endpoints,
            seconds,
        } = request;
        let opened =
            endpoints.len() <= Open::MAX_ENDPOINTS && firewall.open(endpoints, *seconds).is_ok();
        if let State::Running(proxy) = &self.state {
            // Without an answer the question fails, after a while.
            let _ = proxy.opened(*id, opened);
        }
    }

    /// The proxy ended without being asked to.
    fn lost(&mut self, error: &io::Error, account: &mut Account) {
        account.begin_outage(&format!("the proxy ended: {error}"));
        self.schedule();
    }

    /// Starts it again.
    fn restart(&mut self, account: &mut Account) {
        match Proxy::start(&self.identity, &self.listeners, &self.start) {
            Ok(proxy) => {
                self.state = State::Running(proxy);
                account.end_outage();
            }
            Err(_) => self.schedule(),
        }
    }

    /// Asks the proxy to end; a proxy that is down has nothing left to say.
    pub(crate) fn drain(&mut self) {
        match &self.state {
            State::Running(proxy) if proxy.drain().is_ok() => {}
            State::Running(_) | State::Down(_) | State::Drained => self.state = State::Drained,
        }
    }

    /// Whether nothing more will come.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    fn schedule(&mut self) {
        self.state = State::Down(Instant::now() + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

/// Doubles from 50 ms up to 5 s: a proxy that cannot live must not keep the machine busy.
fn backoff(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    Duration::from_millis(50)
        .saturating_mul(factor)
        .min(Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_keeps_failing_is_left_alone_longer() {
        assert_eq!(backoff(0), Duration::from_millis(50));
        assert_eq!(backoff(1), Duration::from_millis(100));
        assert_eq!(backoff(40), Duration::from_secs(5));
    }

    #[test]
    fn the_pause_never_shrinks() {
        let pauses: Vec<_> = (0..100).map(backoff).collect();
        assert!(pauses.is_sorted());
    }
}
