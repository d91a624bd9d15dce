//! Connections that nftables took off their way: what they are for is read from what they say.
//!
//! The name on the stream is decided on, never the address that the guest happened to dial; the
//! proxy resolves the name itself. Only where no name is allowed may an address rule still let the
//! dialled address through.

use std::{net::SocketAddr, ops::Deref, time::Duration};

use policy::{Denial, DenyReason, Destination, Host, HostName, Permit, StreamKind};

use crate::{
    authority::{self, target_of},
    client::{Client, SPEAK_FIRST},
    client_hello::{self, Greeting, HelloError},
    forward::{Course, Forwarder, Judged, Judgement},
    head::Head,
    proxy::{Proxy, by_address, other_kind, require},
    refusal::Refused,
    route::Route,
    spoken::Spoken,
    tunnel::{self, Stream},
    window,
};

/// Serves one connection, which the guest meant for `dialled`, to its end.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn holds its arguments twice, and every open tunnel would hold that"
)]
pub(crate) fn serve(
    mut client: Client,
    dialled: SocketAddr,
    proxy: impl Deref<Target = Proxy>,
) -> impl Future<Output = ()> {
    async move {
        if is_direct(&client, dialled) {
            // Dialling what it asks for would lead back to this listener.
            return proxy.record(&Refused::new(
                target_of(&by_address(dialled)),
                Denial::new(DenyReason::AddressLiteral),
            ));
        }
        // Boxed: a relay must not hold the room for what led to it.
        let mut stream = Box::pin(admitted(&mut client, dialled, &proxy)).await;
        // Lent: what is taken out of it would be held twice.
        if let Some(stream) = &mut stream {
            stream.relay(&mut client, &proxy).await;
        }
        client.finish().await;
    }
}

/// Serves a connection until all that is left to do is to relay it; `None` if that is nothing.
pub(crate) async fn admitted(
    client: &mut Client,
    dialled: SocketAddr,
    proxy: &Proxy,
) -> Option<Stream> {
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
            requests(client, dialled, proxy).await;
            return None;
        }
        Some(Spoken::Tls) => tls(client, dialled, proxy).await,
        Some(Spoken::Other) | None => stream(dialled, proxy),
    };
    match open(permit, proxy).await {
        Ok(stream) => Some(stream),
        Err(refused) => {
            proxy.record(&refused);
            tunnel::tell(client, &refused).await;
            None
        }
    }
}

/// Whether nobody redirected the connection: it was made to this listener.
fn is_direct(client: &Client, dialled: SocketAddr) -> bool {
    client
        .stream
        .local_addr()
        .is_ok_and(|own| by_address(own) == by_address(dialled))
}

async fn requests(client: &mut Client, dialled: SocketAddr, proxy: &Proxy) {
    let unnamed = target_of(&by_address(dialled));
    let mut forwarder = Forwarder::new(proxy, Route::to_origins(proxy), unnamed);
    forwarder
        .serve(client, |head| judge(head, dialled, proxy))
        .await;
}

/// Decides on a request by its Host.
fn judge(head: &Head, dialled: SocketAddr, proxy: &Proxy) -> Judgement {
    let (named, path) = authority::of_origin(head, dialled.port())?;
    if named.as_ref().is_some_and(window::is_at) && dialled.port() == window::PORT {
        return Ok(Course::Window(path));
    }
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
    Ok(Course::Origin(Judged {
        permit: permit.map_err(refused)?,
        path,
    }))
}

/// Decides on a TLS stream by the name in its `ClientHello`.
async fn tls(client: &mut Client, dialled: SocketAddr, proxy: &Proxy) -> Result<Permit, Refused> {
    let by_address = target_of(&by_address(dialled));
    let Greeting { name, offers_ech } = match client_hello::read(client).await {
        Ok(greeting) => greeting,
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
    .inspect(|permit| proxy.account.note_ech(offers_ech, permit))
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

/// Connects to what was permitted.
async fn open(permit: Result<Permit, Refused>, proxy: &Proxy) -> Result<Stream, Refused> {
    let permit = permit?;
    let target = target_of(permit.destination());
    let upstream = proxy.reach(&permit).await.map_err(|refusal| Refused {
        target: target.clone(),
        refusal,
    })?;
    proxy.account.allow(target.clone());
    let flow = proxy.account.flow(target);
    Ok(Stream { upstream, flow })
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{
        client::soon,
        client_hello::samples::{hello, nameless_hello},
    };

    const DIALLED: &str = "203.0.113.9:443";

    /// What a client that dialled [`DIALLED`] gets, and what is counted, when it sends `first`.
    async fn redirected(list: &str, first: &[u8]) -> (Vec<u8>, Vec<(String, DenyReason)>) {
        let proxy = Proxy::allowing(list);
        let (client, mut guest) = Client::pair().await;
        let said = async {
            guest.write_all(first).await.unwrap();
            guest.shutdown().await.unwrap();
            let mut said = Vec::new();
            guest.read_to_end(&mut said).await.unwrap();
            said
        };
        let serving = serve(client, DIALLED.parse().unwrap(), &proxy);
        let (said, ()) = soon(async { tokio::join!(said, serving) }).await;
        let denials = proxy.denials();
        (said, denials)
    }

    async fn denied(list: &str, first: &[u8]) -> (String, DenyReason) {
        let (_, mut denials) = redirected(list, first).await;
        let denial = denials.pop().expect("a denial");
        assert_eq!(denials, [], "one attempt is one denial");
        denial
    }

    fn of(target: &str, reason: DenyReason) -> (String, DenyReason) {
        (target.to_owned(), reason)
    }

    fn get(host: &str) -> Vec<u8> {
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
    }

    #[tokio::test]
    async fn a_tls_name_is_decided_on_with_the_port_that_was_dialled() {
        let list = "a.example:8443/tls";
        assert_eq!(
            denied(list, &hello("a.example")).await,
            of("a.example", DenyReason::PortNotAllowed)
        );
        assert_eq!(
            denied(list, &hello("b.example")).await,
            of("b.example", DenyReason::NotAllowed)
        );
    }

    #[tokio::test]
    async fn tls_without_a_name_has_none() {
        let (said, denials) = redirected("a.example", &nameless_hello()).await;
        assert_eq!(said, [21, 3, 3, 0, 2, 2, 112]);
        assert_eq!(denials, [of("203.0.113.9", DenyReason::NoName)]);
    }

    #[tokio::test]
    async fn a_hello_that_is_cut_short_has_no_name() {
        let cut = &hello("a.example")[..40];
        assert_eq!(
            denied("a.example", cut).await,
            of("203.0.113.9", DenyReason::NoName)
        );
    }

    #[tokio::test]
    async fn a_stream_that_names_nothing_has_no_name() {
        for first in [
            &b"SSH-2.0-x\r\n"[..],
            b"",
            b"\0",
            &[22, 3, 1, 0, 4, 2, 0, 0, 0],
        ] {
            let denial = denied("a.example", first).await;
            assert_eq!(denial, of("203.0.113.9", DenyReason::NoName), "{first:?}");
        }
    }

    #[tokio::test]
    async fn a_denied_address_is_denied_whatever_is_said() {
        let list = "a.example, !203.0.113.0/24";
        for first in [&nameless_hello()[..], b"SSH-2.0-x\r\n"] {
            assert_eq!(
                denied(list, first).await,
                of("203.0.113.9", DenyReason::DeniedByRule)
            );
        }
    }

    #[tokio::test]
    async fn tls_to_an_entry_for_http_is_not_http() {
        let list = "a.example:443/http";
        assert_eq!(
            denied(list, &hello("a.example")).await,
            of("a.example", DenyReason::NotHttp)
        );
    }

    #[tokio::test]
    async fn a_request_to_an_entry_for_tls_is_not_tls() {
        assert_eq!(
            denied("a.example", &get("a.example")).await,
            of("a.example", DenyReason::NotTls)
        );
    }

    #[tokio::test]
    async fn a_request_for_another_address_than_was_dialled_is_a_mismatch() {
        let list = "203.0.113.0/24:443/http";
        assert_eq!(
            denied(list, &get("203.0.113.8")).await,
            of("203.0.113.8", DenyReason::NameMismatch)
        );
    }

    #[tokio::test]
    async fn a_request_that_cannot_be_read_is_malformed() {
        let (said, denials) = redirected("a.example", b"GET / HTTP/1.1\r\nX : y\r\n\r\n").await;
        assert!(said.starts_with(b"HTTP/1.1 400 "));
        assert_eq!(denials, [of("203.0.113.9", DenyReason::Malformed)]);
    }

    #[tokio::test]
    async fn http_2_in_the_clear_is_refused_with_words() {
        let (said, _) = redirected("a.example", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert!(
            String::from_utf8(said)
                .unwrap()
                .contains("HTTP/2 without TLS is not passed on")
        );
    }

    #[tokio::test]
    async fn a_connect_is_for_the_proxys_own_port() {
        let connect = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(denied("a.example", connect).await.1, DenyReason::Malformed);
    }

    #[tokio::test]
    async fn a_connection_to_the_listener_itself_is_refused_without_a_look() {
        let proxy = Proxy::allowing("127.0.0.0/8:*/tcp");
        let (client, _guest) = Client::pair().await;
        let own = client.stream.local_addr().unwrap();
        serve(client, own, &proxy).await;
        assert_eq!(
            proxy.denials(),
            [of("127.0.0.1", DenyReason::AddressLiteral)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_waited_for_where_it_must_speak_first() {
        let proxy = Proxy::allowing("a.example");
        let (client, _guest) = Client::pair().await;
        let began = tokio::time::Instant::now();
        serve(client, DIALLED.parse().unwrap(), &proxy).await;
        assert!(began.elapsed() >= SPEAK_FIRST, "{:?}", began.elapsed());
        assert_eq!(proxy.denials(), [of("203.0.113.9", DenyReason::NoName)]);
    }

    #[tokio::test]
    async fn an_open_connection_takes_little_room() {
        let proxy = Proxy::allowing("a.example");
        let (client, _guest) = Client::pair().await;
        let size = size_of_val(&serve(client, DIALLED.parse().unwrap(), &proxy));
        // With the 104 of its task it is rounded up to a multiple of 128.
        assert!(size <= 792, "the state of a connection takes {size} bytes");
    }
}
