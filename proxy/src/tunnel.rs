//! Tunnels, in whatever language they are asked for: where one may lead, and that its first bytes
//! are for the host that it was opened for, or none of them goes out.
//!
//! Without this, a client that was let through to one host could ask the far end for another that
//! lives at the same address.

use std::net::SocketAddr;

use policy::{Denial, DenyReason, Destination, Host, HostName, Permit, StreamKind};
use tokio::net::TcpStream;

use crate::{
    account::Flow,
    answer,
    authority::{self, target_of},
    client::{Client, SPEAK_FIRST},
    client_hello::{self, Greeting, HelloError, ServerName},
    exchange::Exchange,
    forward::{Course, Forwarder, Judged, Judgement},
    head::Head,
    proxy::{Proxy, other_kind, require},
    refusal::Refused,
    relay,
    route::Route,
    spoken::Spoken,
    window,
};

/// What a tunnel leads to.
pub(crate) enum Opened {
    FarEnd(Permit, TcpStream),
    /// To whoever its first bytes name: the client, which resolved a name itself, said only this.
    Unnamed(SocketAddr),
    /// Some clients ask for a tunnel whatever they want.
    Window,
}

/// What was seen at the start of a tunnel, and fits.
enum Fitting {
    /// A stream that may be relayed as it is.
    Stream,
    /// Requests, each of which must be for the tunnel's host.
    Requests,
}

/// A tunnel that may be relayed as it is.
pub(crate) struct Stream {
    pub(crate) upstream: TcpStream,
    pub(crate) flow: Flow,
}

/// Decides on the destination of a tunnel and connects to it.
pub(crate) async fn reach(destination: &Destination, proxy: &Proxy) -> Result<Opened, Refused> {
    if window::is_at(destination) {
        return Ok(Opened::Window);
    }
    let target = target_of(destination);
    let permit = proxy
        .decide(destination)
        .map_err(|denial| Refused::new(target.clone(), denial))?;
    let upstream = proxy
        .reach(&permit)
        .await
        .map_err(|refusal| Refused { target, refusal })?;
    Ok(Opened::FarEnd(permit, upstream))
}

/// Serves an open tunnel until what is in it may be relayed as it is, or to its end.
pub(crate) async fn open(
    client: &mut Client,
    upstream: TcpStream,
    permit: Permit,
    proxy: &Proxy,
) -> Option<Stream> {
    let target = target_of(permit.destination());
    proxy.account.allow(target.clone());
    let flow = proxy.account.flow(target.clone());
    match inspect(client, &permit, proxy).await {
        Ok(Fitting::Stream) => Some(Stream { upstream, flow }),
        Ok(Fitting::Requests) => {
            let exchange = Exchange::open(upstream, permit.destination().clone(), flow).await;
            let route = Route::through(proxy, exchange.ok()?);
            let forwarder = Forwarder::new(proxy, route, target);
            Box::pin(requests(client, forwarder, &permit, proxy)).await;
            None
        }
        Err(Some(refused)) => {
            proxy.record(&refused);
            tell(client, &refused).await;
            None
        }
        Err(None) => None,
    }
}

impl Stream {
    /// Relays it to its end.
    pub(crate) async fn relay(&mut self, client: &mut Client, proxy: &Proxy) {
        relay::run(client, &mut self.upstream, &self.flow, &proxy.spares).await;
    }
}

/// Waits for the first bytes and checks them. `None`: the client is gone, or stayed silent.
async fn inspect(
    client: &mut Client,
    permit: &Permit,
    proxy: &Proxy,
) -> Result<Fitting, Option<Refused>> {
    if permit.kinds().is_opaque() {
        return Ok(Fitting::Stream);
    }
    let refused = |denial| Some(Refused::new(target_of(permit.destination()), denial));
    match client.spoken(SPEAK_FIRST).await {
        None => Err(None),
        Some(Spoken::Other) => Err(refused(other_kind(permit))),
        Some(Spoken::Http) => {
            require(permit, StreamKind::Http).map_err(refused)?;
            Ok(Fitting::Requests)
        }
        Some(Spoken::Tls) => {
            require(permit, StreamKind::Tls).map_err(refused)?;
            match client_hello::read(client).await {
                Ok(Greeting { name, offers_ech }) => {
                    check_name(&name, permit, proxy).map_err(Some)?;
                    proxy.account.note_ech(offers_ech, permit);
                }
                Err(HelloError::Gone) => return Err(None),
                Err(HelloError::NotTls) => return Err(refused(other_kind(permit))),
                Err(HelloError::BadName) => {
                    return Err(refused(Denial::new(DenyReason::Malformed)));
                }
            }
            Ok(Fitting::Stream)
        }
    }
}

/// The name in a `ClientHello` must be the one that the tunnel was opened for. A tunnel to an address
/// was opened for whoever is there, unless a deny rule names it.
fn check_name(name: &ServerName, permit: &Permit, proxy: &Proxy) -> Result<(), Refused> {
    let opened = permit.destination();
    let Some(raw) = name else {
        return match opened.host {
            Host::Address(_) => Ok(()),
            Host::Name(_) => Err(Refused::new(
                target_of(opened),
                Denial::new(DenyReason::NoName),
            )),
        };
    };
    let asked = || authority::target(raw, Some(opened.port));
    let name = HostName::parse(raw).map_err(|error| {
        Refused::new(
            asked(),
            Denial {
                hint: Some(error.to_string()),
                ..Denial::new(DenyReason::Malformed)
            },
        )
    })?;
    match &opened.host {
        Host::Name(expected) if *expected == name => Ok(()),
        Host::Name(expected) => {
            let hint = Some(format!(
                "the tunnel was opened for `{expected}`, and the ClientHello names `{name}`"
            ));
            Err(Refused::new(
                asked(),
                Denial {
                    hint,
                    ..Denial::new(DenyReason::NameMismatch)
                },
            ))
        }
        Host::Address(_) => match proxy.decide(&Destination {
            host: Host::Name(name),
            port: opened.port,
        }) {
            Err(denial) if denial.reason == DenyReason::DeniedByRule => {
                Err(Refused::new(asked(), denial))
            }
            Ok(_) | Err(_) => Ok(()),
        },
    }
}

/// Each request is decided anew, as everywhere: another list may be in force by then.
async fn requests(
    client: &mut Client,
    mut forwarder: Forwarder<'_>,
    permit: &Permit,
    proxy: &Proxy,
) {
    let judge = |head: &Head| {
        let opened = permit.destination();
        let path = authority::within_tunnel(head, opened)?;
        let permit = proxy.decide(opened);
        let permit = permit.and_then(|permit| require(&permit, StreamKind::Http).map(|()| permit));
        let permit = permit.map_err(|denial| Refused::new(target_of(opened), denial))?;
        Ok(Course::Origin(Judged { permit, path }))
    };
    forwarder.serve(client, judge).await;
}

/// Serves a tunnel that was opened for the guest's own window.
pub(crate) async fn to_window(client: &mut Client, proxy: &Proxy) {
    let opened = Destination {
        host: Host::Name(HostName::window()),
        port: window::PORT,
    };
    let judge =
        |head: &Head| -> Judgement { authority::within_tunnel(head, &opened).map(Course::Window) };
    let route = Route::to_origins(proxy);
    let mut forwarder = Forwarder::new(proxy, route, target_of(&opened));
    forwarder.serve(client, judge).await;
}

/// Explains a refusal in what the client speaks: bytes in another language would only confuse it.
pub(crate) async fn tell(client: &mut Client, refused: &Refused) {
    let spoken = Spoken::classify(&client.pending);
    let sent = match (spoken, refused.refusal.reason()) {
        (Some(Spoken::Http), _) => client.send(&answer::http(refused, answer::LAST)).await,
        // No connection came about, which is what a reset says. An alert would be taken for a fault
        // in TLS, and an orderly end for all that the far end had to say.
        (_, None) => return client.abort(),
        (Some(Spoken::Tls), Some(reason)) => client.send(&answer::tls_alert(reason)).await,
        (Some(Spoken::Other) | None, Some(_)) => Ok(()),
    };
    // Whether it could be told or not, the connection ends.
    let _ = sent;
}

#[cfg(test)]
mod tests {
    use report::Target;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{
        client::soon,
        client_hello::samples::hello,
        refusal::{Failure, Refusal},
    };

    /// What a client gets, and what is counted, when it sends `first` in a tunnel to `host:443`.
    async fn tunnel(list: &str, host: &str, first: &[u8]) -> (Vec<u8>, Vec<(String, DenyReason)>) {
        let proxy = Proxy::allowing(list);
        let permit = proxy
            .decide(&Destination::parse(host, 443).unwrap())
            .unwrap();
        let (mut client, mut guest) = Client::pair().await;
        let (mut far, upstream) = Client::pair().await;
        let said = async {
            guest.write_all(first).await.unwrap();
            guest.shutdown().await.unwrap();
            let mut said = Vec::new();
            guest.read_to_end(&mut said).await.unwrap();
            said
        };
        let serving = async {
            if let Some(mut stream) = open(&mut client, upstream, permit, &proxy).await {
                stream.relay(&mut client, &proxy).await;
            }
            client.finish().await;
        };
        let far = async {
            while far.more().await.unwrap() > 0 {}
            drop(far);
        };
        let (said, (), ()) = soon(async { tokio::join!(said, serving, far) }).await;
        let denials = proxy.denials();
        (said, denials)
    }

    fn denial(target: &str, reason: DenyReason) -> Vec<(String, DenyReason)> {
        vec![(target.to_owned(), reason)]
    }

    #[tokio::test]
    async fn what_failed_is_reset_and_not_told_as_a_fault_in_tls() {
        for (refusal, said) in [
            (Refusal::from(Failure::ConnectionRefused), None),
            (Denial::new(DenyReason::NotAllowed).into(), Some(49)),
        ] {
            let (mut client, mut guest) = Client::pair().await;
            guest.write_all(&hello("a.example")).await.unwrap();
            assert!(client.more().await.unwrap() > 0);
            let refused = Refused {
                target: Target::default(),
                refusal,
            };
            tell(&mut client, &refused).await;
            client.finish().await;
            drop(client);
            let mut got = Vec::new();
            let ended = guest.read_to_end(&mut got).await;
            assert_eq!(got.last().copied(), said, "{refused:?}");
            assert_eq!(ended.is_err(), said.is_none(), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn the_name_in_the_hello_must_be_the_tunnels() {
        let (said, denials) = tunnel("a.example", "a.example", &hello("a.example")).await;
        assert_eq!((said, denials), (vec![], vec![]));
        let (said, denials) = tunnel("a.example", "a.example", &hello("b.example")).await;
        assert_eq!(said, [21, 3, 3, 0, 2, 2, 49]);
        assert_eq!(denials, denial("b.example", DenyReason::NameMismatch));
    }

    #[tokio::test]
    async fn a_subdomain_of_the_tunnels_name_is_another_name() {
        let (_, denials) = tunnel("*.example.com", "a.example.com", &hello("b.example.com")).await;
        assert_eq!(denials, denial("b.example.com", DenyReason::NameMismatch));
    }

    #[tokio::test]
    async fn a_tunnel_to_an_address_takes_any_name_that_no_rule_denies() {
        let list = "192.0.2.1:443/tls, !b.example";
        let (_, denials) = tunnel(list, "192.0.2.1", &hello("a.example")).await;
        assert_eq!(denials, []);
        let (_, denials) = tunnel(list, "192.0.2.1", &hello("b.example")).await;
        assert_eq!(denials, denial("b.example", DenyReason::DeniedByRule));
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_is_no_denial() {
        let (said, denials) = tunnel("a.example", "a.example", b"").await;
        assert_eq!((said, denials), (vec![], vec![]));
    }

    #[tokio::test]
    async fn a_hello_that_is_cut_short_is_no_denial() {
        let (said, denials) = tunnel("a.example", "a.example", &hello("a.example")[..40]).await;
        assert_eq!((said, denials), (vec![], vec![]));
    }

    #[tokio::test]
    async fn requests_where_tls_is_due_are_answered_in_http() {
        let (said, denials) = tunnel("a.example", "a.example", b"GET / HTTP/1.1\r\n\r\n").await;
        let said = String::from_utf8(said).unwrap();
        assert!(
            said.starts_with("HTTP/1.1 403 egress denied: not_tls\r\n"),
            "{said}"
        );
        assert_eq!(denials, denial("a.example", DenyReason::NotTls));
    }

    #[tokio::test]
    async fn a_record_that_is_no_hello_is_not_tls() {
        let (_, denials) = tunnel("a.example", "a.example", &[22, 3, 1, 0, 4, 2, 0, 0, 0]).await;
        assert_eq!(denials, denial("a.example", DenyReason::NotTls));
    }

    #[tokio::test]
    async fn an_opaque_tunnel_is_not_looked_into() {
        let list = "a.example:443/tcp";
        let (_, denials) = tunnel(list, "a.example", &hello("b.example")).await;
        assert_eq!(denials, []);
    }
}
