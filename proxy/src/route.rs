//! On which connection a request goes out.

use policy::Permit;

use crate::{authority::target_of, exchange::Exchange, proxy::Proxy, refusal::Refusal};

/// The way to the origins of one client's requests.
pub(crate) struct Route<'p> {
    proxy: &'p Proxy,
    kind: Kind,
    /// The connection that the last request has left usable.
    kept: Option<Exchange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// To the origin that each request names.
    Origins,
    /// To the one far end of a tunnel.
    Tunnel,
}

/// Why there is no connection for a request.
#[derive(Debug)]
pub(crate) enum NoRoute {
    /// The origin was not reached.
    Refused(Refusal),
    /// The tunnel's far end is gone.
    Over,
}

impl<'p> Route<'p> {
    /// To whatever origins requests name, dialling where no connection is left over.
    pub(crate) fn to_origins(proxy: &'p Proxy) -> Self {
        Self {
            proxy,
            kind: Kind::Origins,
            kept: None,
        }
    }

    /// Through a tunnel, for as long as its far end stays.
    pub(crate) fn through(proxy: &'p Proxy, tunnel: Exchange) -> Self {
        Self {
            proxy,
            kind: Kind::Tunnel,
            kept: Some(tunnel),
        }
    }

    /// The connection for a request. Counts it as let through, unless the tunnel it is in has been.
    pub(crate) async fn exchange(&mut self, permit: &Permit) -> Result<Exchange, NoRoute> {
        let mut exchange = None;
        if let Some(mut kept) = self.kept.take() {
            exchange = kept.serves(permit.destination()).await.then_some(kept);
        }
        match (self.kind, exchange) {
            (Kind::Tunnel, exchange) => exchange.ok_or(NoRoute::Over),
            (Kind::Origins, exchange) => {
                let exchange = match exchange {
                    Some(kept) => kept,
                    None => self.dial(permit).await.map_err(NoRoute::Refused)?,
                };
                self.proxy.account.allow(target_of(permit.destination()));
                Ok(exchange)
            }
        }
    }

    /// A new connection for a request, counted by nobody.
    pub(crate) async fn dial(&self, permit: &Permit) -> Result<Exchange, Refusal> {
        let stream = self.proxy.reach(permit).await?;
        let flow = self.proxy.account.flow(target_of(permit.destination()));
        Ok(Exchange::open(stream, permit.destination().clone(), flow).await?)
    }

    /// Takes back a connection that the next request may use.
    pub(crate) fn keep(&mut self, exchange: Exchange) {
        self.kept = Some(exchange);
    }

    /// Whether a connection that fails may be replaced by a new one.
    pub(crate) fn can_dial(&self) -> bool {
        self.kind == Kind::Origins
    }
}
