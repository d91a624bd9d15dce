//! Whoever decides beside PID 1, kept running: the proxy by name, or the resolver by address.

use report::Printable;

use crate::{
    account::Account,
    failure::Failure,
    firewall::Firewall,
    guest::Ended,
    renewal::{self, Renewal},
    steering::Next,
    watch::{self, ProxyWatch},
};

/// The one process of ours beside the guest.
pub(crate) enum Decider {
    /// Names decide.
    Proxy(ProxyWatch),
    /// Addresses decide.
    Resolver(Renewal),
}

/// What can happen to it.
pub(crate) enum Happening {
    /// To the proxy.
    Proxy(watch::Happening),
    /// To the resolver.
    Resolver(renewal::Happening),
}

impl Decider {
    /// Its process, while there is one.
    pub(crate) const fn pid(&self) -> Option<i32> {
        match self {
            Self::Proxy(proxy) => proxy.pid(),
            Self::Resolver(resolver) => resolver.pid(),
        }
    }

    /// What happens next to it, if anything does.
    pub(crate) async fn next(&mut self) -> Happening {
        match self {
            Self::Proxy(proxy) => Happening::Proxy(proxy.next().await),
            Self::Resolver(resolver) => Happening::Resolver(resolver.next().await),
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(
        &mut self,
        happening: Happening,
        account: &mut Account,
        firewall: &mut Firewall,
    ) {
        match (self, happening) {
            (Self::Proxy(proxy), Happening::Proxy(happening)) => {
                proxy.handle(happening, account, firewall);
            }
            (Self::Resolver(resolver), Happening::Resolver(happening)) => {
                resolver.handle(happening, firewall);
            }
            (Self::Proxy(_), Happening::Resolver(_)) | (Self::Resolver(_), Happening::Proxy(_)) => {
            }
        }
    }

    /// Takes note of how a child of PID 1's ended. Of the resolver nobody tells how.
    pub(crate) fn note_end(&mut self, pid: i32, ended: Ended) {
        match self {
            Self::Proxy(proxy) => proxy.note_end(pid, ended),
            Self::Resolver(resolver) => resolver.note_end(pid),
        }
    }

    /// The generation of the list that it decides by.
    pub(crate) const fn decides_by(&self) -> u64 {
        match self {
            Self::Proxy(proxy) => proxy.decides_by(),
            Self::Resolver(resolver) => resolver.decides_by(),
        }
    }

    /// What of that list does not work as it says, where there is such a thing.
    pub(crate) fn shortfall(&self) -> Option<Printable> {
        match self {
            Self::Proxy(_) => None,
            Self::Resolver(resolver) => resolver.shortfall(),
        }
    }

    /// Has the rules follow another list, and then decides by it.
    pub(crate) fn follow(&mut self, next: Next, firewall: &mut Firewall) -> Result<(), Failure> {
        match self {
            Self::Proxy(proxy) => {
                firewall.follow(&next.policy)?;
                proxy.succeed(next.succession);
                Ok(())
            }
            Self::Resolver(resolver) => resolver.follow(&next, firewall),
        }
    }

    /// Keeps open for the guest what it is connected to. What cannot be kept ends as it would have,
    /// and is refused and counted then.
    pub(crate) fn prolong(&mut self, firewall: &mut Firewall) {
        let now = std::time::Instant::now();
        let _ = match self {
            Self::Proxy(_) => firewall.prolong(now),
            Self::Resolver(resolver) => resolver.prolong(now, firewall),
        };
    }

    /// Whether it has come to its end, and follows no list any more.
    pub(crate) const fn has_ended(&self) -> bool {
        match self {
            Self::Proxy(proxy) => proxy.is_drained(),
            Self::Resolver(resolver) => resolver.has_ended(),
        }
    }

    /// Asks it to end.
    pub(crate) fn drain(&mut self) {
        match self {
            Self::Proxy(proxy) => proxy.drain(),
            Self::Resolver(resolver) => resolver.end(),
        }
    }

    /// Goes on without it: what has not come by now does not come.
    pub(crate) fn give_up(&mut self, account: &mut Account) {
        match self {
            Self::Proxy(proxy) => proxy.give_up(account),
            // It counts nothing.
            Self::Resolver(_) => {}
        }
    }

    /// Whether nothing more will come that counts.
    pub(crate) const fn is_drained(&self) -> bool {
        match self {
            Self::Proxy(proxy) => proxy.is_drained(),
            Self::Resolver(_) => true,
        }
    }
}
