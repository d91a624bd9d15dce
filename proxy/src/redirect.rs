//! Connections that nftables took off their way: what they are for is read from what they say.
//!
//! The name on the stream is decided on, never the address that the guest happened to dial; the
//! proxy resolves the name itself. Only where no name is allowed may an address rule still let the
//! dialled address through.

use std::{net::SocketAddr, time::Duration};

use policy::{Denial, DenyReason, Destination, Host, HostName, Permit, StreamKind};

use crate::{
    authority::{self, target_of},
    client::{Client, SPEAK_FIRST},
    client_hello::{self, HelloError},
    forward::{Forwarder, Judged, Judgement},
    head::Head,
    proxy::{Proxy, by_address, other_kind, require},
    refusal::Refused,
    relay,
    route::Route,
    spoken::Spoken,
    tunnel,
};

/// Serves one connection, which the guest meant for `dialled`, to its end.
pub(crate) async fn serve(mut client: Client, dialled: SocketAddr, proxy: &Proxy) {
    if is_direct(&client, dialled) {
        // Dialling what it asks for would lead back to this listener.
        return proxy.record(&Refused::new(
            target_of(&by_address(dialled)),
            Denial::new(DenyReason::AddressLiteral),
        ));
    }
    let address_permit = proxy.decide(&by_address(dialled));
    let opaque = address_permit
        .as_ref()
        .is_ok_and(|permit| permit.kinds().is_opaque());
    // Where any stream may pass, the far end may be the one that speaks first.
    let patience = if opaque {
        SERVER_MAY_SPEAK_FIRST
    } else {
        SPEAK_FIRST
    };
    let permit = match client.spoken(patience).await {
        Some(Spoken::Http) => {
            let unnamed = target_of(&by_address(dialled));
            Forwarder::new(proxy, Route::to_origins(proxy), unnamed)
                .serve(&mut client, |head| judge(head, dialled, proxy))
                .await;
            return client.finish().await;
        }
        Some(Spoken::Tls) => tls(&mut client, dialled, proxy).await,
        Some(Spoken::Other) | None => stream(dialled, proxy),
    };
    if let Err(refused) = pass(&mut client, permit, proxy).await {
        proxy.record(&refused);
        tunnel::tell(&mut client, &refused).await;
    }
    client.finish().await;
}

/// Whether nobody redirected the connection: it was made to this listener.
fn is_direct(client: &Client, dialled: SocketAddr) -> bool {
    client
        .stream
        .local_addr()
        .is_ok_and(|own| by_address(own) == by_address(dialled))
}

/// Decides on a request by its Host.
fn judge(head: &Head, dialled: SocketAddr, proxy: &Proxy) -> Judgement {
    let (named, path) = authority::of_origin(head, dialled.port())?;
    let permit = match &named {
        None => proxy.decide_redirected(None, dialled),
        Some(asked) if asked.port != dialled.port() => Err(other_than(asked, dialled)),
        Some(Destination {
            host: Host::Name(name),
            ..
        }) => proxy.decide_redirected(Some(name), dialled),
        Some(asked) if *asked == by_address(dialled) => proxy.decide(asked),
        Some(asked) => Err(other_than(asked, dialled)),
    };
    let asked = named.unwrap_or_else(|| by_address(dialled));
    let refused = |denial| Refused::new(target_of(&asked), denial);
    let permit = permit.and_then(|permit| require(&permit, StreamKind::Http).map(|()| permit));
    Ok(Some(Judged {
        permit: permit.map_err(refused)?,
        path,
    }))
}

/// Decides on a TLS stream by the name in its `ClientHello`.
async fn tls(client: &mut Client, dialled: SocketAddr, proxy: &Proxy) -> Result<Permit, Refused> {
    let by_address = target_of(&by_address(dialled));
    let name = match client_hello::read(client).await {
        Ok(name) => name,
        Err(HelloError::NotTls) => return stream(dialled, proxy),
        Err(HelloError::Gone) => {
            return Err(Refused::new(by_address, Denial::new(DenyReason::NoName)));
        }
        Err(HelloError::BadName) => {
            return Err(Refused::new(by_address, Denial::new(DenyReason::Malformed)));
        }
    };
    let target = name.as_deref().map_or(by_address, |raw| {
        authority::target(raw, Some(dialled.port()))
    });
    let name = name.as_deref().map(HostName::parse).transpose();
    name.map_err(|error| Denial {
        hint: Some(error.to_string()),
        ..Denial::new(DenyReason::Malformed)
    })
    .and_then(|name| proxy.decide_redirected(name.as_ref(), dialled))
    .and_then(|permit| require(&permit, StreamKind::Tls).map(|()| permit))
    .map_err(|denial| Refused::new(target, denial))
}

/// Decides on a stream that names nothing: an address rule must let any stream through.
fn stream(dialled: SocketAddr, proxy: &Proxy) -> Result<Permit, Refused> {
    let permit = proxy.decide_redirected(None, dialled);
    permit
        .and_then(|permit| {
            if permit.kinds().is_opaque() {
                Ok(permit)
            } else {
                Err(other_kind(&permit))
            }
        })
        .map_err(|denial| Refused::new(target_of(&by_address(dialled)), denial))
}

/// Connects to what was permitted, and relays to the end.
async fn pass(
    client: &mut Client,
    permit: Result<Permit, Refused>,
    proxy: &Proxy,
) -> Result<(), Refused> {
    let permit = permit?;
    let target = target_of(permit.destination());
    let mut upstream = proxy.reach(&permit).await.map_err(|refusal| Refused {
        target: target.clone(),
        refusal,
    })?;
    proxy.account.allow(target.clone());
    let flow = proxy.account.flow(target);
    relay::run(client, &mut upstream, &flow, &proxy.buffers).await;
    Ok(())
}

fn other_than(asked: &Destination, dialled: SocketAddr) -> Denial {
    let hint = Some(format!(
        "the request names `{asked}`, and the connection was made to `{dialled}`"
    ));
    Denial {
        hint,
        ..Denial::new(DenyReason::NameMismatch)
    }
}

/// How long a client is waited for where it need not speak first.
const SERVER_MAY_SPEAK_FIRST: Duration = Duration::from_millis(300);
