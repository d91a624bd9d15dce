//! What every connection works with: the policy, the way out, and the account.

use std::{net::SocketAddr, sync::Arc};

use policy::{
    Decision, Denial, DenyReason, Destination, Host, HostName, Permit, Policy, StreamKind,
};
use tokio::{net::TcpStream, time::timeout};

use crate::{
    account::Account,
    dial::{self, Checked},
    refusal::{Failure, Refusal, Refused},
    relay::Buffers,
    resolve::Resolver,
    upstream::Upstream,
};

/// What every connection works with.
pub(crate) struct Proxy {
    pub(crate) policy: Policy,
    pub(crate) resolver: Resolver,
    pub(crate) upstream: Option<Upstream>,
    pub(crate) account: Arc<Account>,
    pub(crate) buffers: Buffers,
}

impl Proxy {
    /// May a client go there?
    pub(crate) fn decide(&self, destination: &Destination) -> Result<Permit, Denial> {
        match self.policy.decide(destination) {
            Decision::Allow(permit) => Ok(permit),
            Decision::Deny(denial) => Err(denial),
        }
    }

    /// May a client that was redirected go on: to what it named on its stream, or else to the
    /// address that it dialled? A deny rule for either is final.
    pub(crate) fn decide_redirected(
        &self,
        named: Option<&HostName>,
        dialled: SocketAddr,
    ) -> Result<Permit, Denial> {
        let refused = match named {
            None => Denial::new(DenyReason::NoName),
            Some(name) => match self.decide(&Destination {
                host: Host::Name(name.clone()),
                port: dialled.port(),
            }) {
                Ok(permit) => return Ok(permit),
                Err(denial) if denial.reason == DenyReason::DeniedByRule => return Err(denial),
                Err(denial) => denial,
            },
        };
        self.decide(&by_address(dialled)).map_err(|denial| {
            if denial.reason == DenyReason::DeniedByRule {
                denial
            } else {
                refused
            }
        })
    }

    /// Connects to what was permitted: resolves it once, has the guard judge every answer, dials
    /// those addresses. 10 s in all.
    pub(crate) async fn reach(&self, permit: &Permit) -> Result<TcpStream, Refusal> {
        let reaching = async {
            if let Some(upstream) = &self.upstream {
                return Ok(upstream.connect(permit.destination()).await?);
            }
            let answers = self.resolver.resolve(&permit.destination().host).await?;
            let checked = Checked::new(&self.policy, permit, &answers)?;
            Ok(dial::connect(&checked).await?)
        };
        let late = || Failure::ConnectionTimeout(dial::PATIENCE);
        // Boxed: a tunnel that is open must not hold the room for this.
        timeout(dial::PATIENCE, Box::pin(reaching))
            .await
            .unwrap_or_else(|_| Err(late().into()))
    }

    /// Counts an attempt that goes no further.
    pub(crate) fn record(&self, refused: &Refused) {
        let target = refused.target.clone();
        if let Some(reason) = refused.refusal.reason() {
            return self.account.deny(target, reason);
        }
        self.account.allow(target.clone());
        self.account.fail(target);
    }
}

/// The destination that is an address and nothing else.
pub(crate) fn by_address(address: SocketAddr) -> Destination {
    Destination {
        host: Host::Address(address.ip().to_canonical()),
        port: address.port(),
    }
}

/// Whether the entry lets through a stream of this kind.
pub(crate) fn require(permit: &Permit, seen: StreamKind) -> Result<(), Denial> {
    if permit.kinds().is_opaque() || permit.kinds().contains(seen) {
        Ok(())
    } else {
        Err(other_kind(permit))
    }
}

/// The denial of a stream that is of none of the kinds that the entry lets through.
pub(crate) fn other_kind(permit: &Permit) -> Denial {
    let wants_tls = permit.kinds().contains(StreamKind::Tls);
    let (reason, kind) = if wants_tls {
        (DenyReason::NotTls, "TLS")
    } else {
        (DenyReason::NotHttp, "HTTP")
    };
    let hint = format!(
        "`{}` lets {kind} through; add `{}/tcp` for any stream",
        permit.rule(),
        permit.destination()
    );
    Denial {
        hint: Some(hint),
        nearest: Some(permit.rule().to_owned()),
        ..Denial::new(reason)
    }
}
