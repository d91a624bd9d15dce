//! What happens in a tunnel after `200`: its first bytes must be for the host that it was opened
//! for, or none of them goes out.
//!
//! Without this, a client that was let through to one host could ask the far end for another that
//! lives at the same address.

use policy::{Denial, DenyReason, Destination, Host, HostName, Permit, StreamKind};
use tokio::net::TcpStream;

use crate::{
    answer,
    authority::{self, target_of},
    client::{Client, SPEAK_FIRST},
    client_hello::{self, HelloError, ServerName},
    exchange::Exchange,
    forward::{Forwarder, Judged},
    head::Head,
    proxy::{Proxy, other_kind, require},
    refusal::Refused,
    relay,
    route::Route,
    spoken::Spoken,
};

/// What was seen at the start of a tunnel, and fits.
enum Fitting {
    /// A stream that may be relayed as it is.
    Stream,
    /// Requests, each of which must be for the tunnel's host.
    Requests,
}

/// Serves an open tunnel to its end.
pub(crate) async fn run(
    client: &mut Client,
    mut upstream: TcpStream,
    permit: &Permit,
    proxy: &Proxy,
) {
    let target = target_of(permit.destination());
    proxy.account.allow(target.clone());
    let flow = proxy.account.flow(target.clone());
    match inspect(client, permit, proxy).await {
        Ok(Fitting::Stream) => {
            relay::run(client, &mut upstream, &flow, &proxy.buffers).await;
        }
        Ok(Fitting::Requests) => {
            if let Ok(exchange) = Exchange::open(upstream, permit.destination().clone(), flow).await
            {
                requests(
                    client,
                    Forwarder::new(proxy, Route::through(proxy, exchange), target),
                    permit,
                )
                .await;
            }
        }
        Err(Some(refused)) => {
            proxy.record(&refused);
            tell(client, &refused).await;
        }
        Err(None) => {}
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
                Ok(name) => check_name(&name, permit, proxy).map_err(Some)?,
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

async fn requests(client: &mut Client, mut forwarder: Forwarder<'_>, permit: &Permit) {
    let judge = |head: &Head| {
        let path = authority::within_tunnel(head, permit.destination())?;
        Ok(Some(Judged {
            permit: permit.clone(),
            path,
        }))
    };
    forwarder.serve(client, judge).await;
}

/// Explains a refusal in what the client speaks: bytes in another language would only confuse it.
pub(crate) async fn tell(client: &mut Client, refused: &Refused) {
    let sent = match Spoken::classify(&client.pending) {
        Some(Spoken::Tls) => client.send(&answer::tls_alert(&refused.refusal)).await,
        Some(Spoken::Http) => client.send(&answer::http(refused, answer::LAST)).await,
        Some(Spoken::Other) | None => Ok(()),
    };
    // Whether it could be told or not, the connection ends.
    let _ = sent;
}
