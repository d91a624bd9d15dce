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

#[cfg(test)]
mod tests {
    use policy::Destination;
    use report::Target;

    use super::*;
    use crate::client::Client;

    async fn exchange(proxy: &Proxy, permit: &Permit) -> (Exchange, Client) {
        let (near, far) = Client::pair().await;
        let flow = proxy.account.flow(Target::default());
        (
            Exchange::open(far, permit.destination().clone(), flow)
                .await
                .unwrap(),
            near,
        )
    }

    fn permit(proxy: &Proxy, host: &str, port: u16) -> Permit {
        proxy
            .decide(&Destination::parse(host, port).unwrap())
            .unwrap()
    }

    fn connections(proxy: &Proxy) -> u64 {
        let allowed = proxy.account.take().0.allowed.into_iter();
        allowed.map(|allowed| allowed.connections).sum()
    }

    #[tokio::test]
    async fn a_connection_that_was_kept_is_used_for_its_own_origin_and_counted() {
        let proxy = Proxy::allowing("a.example");
        let permit = permit(&proxy, "a.example", 80);
        let (kept, _origin) = exchange(&proxy, &permit).await;
        let mut route = Route::to_origins(&proxy);
        route.keep(kept);
        assert!(route.exchange(&permit).await.is_ok());
        assert_eq!(connections(&proxy), 1);
    }

    #[tokio::test]
    async fn a_connection_that_was_kept_is_not_used_for_another_origin() {
        let proxy = Proxy::allowing("a.example, b.example");
        let (kept, _origin) = exchange(&proxy, &permit(&proxy, "a.example", 80)).await;
        let mut route = Route::to_origins(&proxy);
        route.keep(kept);
        // It dials, and there is no resolver to tell it where.
        let other = route.exchange(&permit(&proxy, "b.example", 80)).await;
        assert!(matches!(other, Err(NoRoute::Refused(Refusal::Failed(_)))));
        assert_eq!(connections(&proxy), 0);
    }

    #[tokio::test]
    async fn a_tunnel_whose_far_end_is_gone_is_over() {
        let proxy = Proxy::allowing("a.example");
        let permit = permit(&proxy, "a.example", 80);
        let (tunnel, origin) = exchange(&proxy, &permit).await;
        let mut route = Route::through(&proxy, tunnel);
        let tunnel = route.exchange(&permit).await.unwrap();
        assert_eq!(
            connections(&proxy),
            0,
            "the tunnel was counted when it was opened"
        );
        drop((tunnel, origin));
        assert!(matches!(route.exchange(&permit).await, Err(NoRoute::Over)));
        assert!(!route.can_dial());
    }

    #[tokio::test]
    async fn an_origin_that_refuses_is_a_failure() {
        let refusing = Client::pair().await.0.stream.local_addr().unwrap();
        let proxy = Proxy::allowing(&format!("{refusing}/http"));
        let permit = permit(&proxy, "127.0.0.1", refusing.port());
        let refusal = Route::to_origins(&proxy).dial(&permit).await.unwrap_err();
        assert!(matches!(refusal, Refusal::Failed(_)), "{refusal:?}");
    }
}
