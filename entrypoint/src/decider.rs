//! Whoever decides beside PID 1, kept running: the proxy by name, or the resolver by address.

use report::{FIRST_GENERATION, link::Succession};

use crate::{
    account::Account,
    firewall::Firewall,
    guest::Ended,
    renewal::{self, Renewal},
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
        if let Self::Proxy(proxy) = self {
            proxy.note_end(pid, ended);
        }
    }

    /// The generation of the list that it decides by. Where addresses decide that is the first one,
    /// and stays so.
    pub(crate) const fn decides_by(&self) -> u64 {
        match self {
            Self::Proxy(proxy) => proxy.decides_by(),
            Self::Resolver(_) => FIRST_GENERATION,
        }
    }

    /// Has it decide by another list. The rules have taken it before, which those of addresses do not.
    pub(crate) fn succeed(&mut self, next: Succession) {
        match self {
            Self::Proxy(proxy) => proxy.succeed(next),
            Self::Resolver(_) => {}
        }
    }

    /// Asks it to end.
    pub(crate) fn drain(&mut self) {
        match self {
            Self::Proxy(proxy) => proxy.drain(),
            Self::Resolver(resolver) => resolver.end(),
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
