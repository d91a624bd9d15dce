//! Clients that were told of the proxy: `CONNECT`, requests with an absolute target, and SOCKS.

use std::{ops::Deref, time::Duration};

use http::Method;
use policy::StreamKind;
use report::Target;

use crate::{
    answer,
    authority::{self, target_of},
    client::{Client, SPEAK_FIRST},
    forward::{Course, Forwarder, Judged, Judgement},
    head::{Framing, Head},
    negotiation,
    proxy::{Proxy, require},
    redirect,
    refusal::{Refusal, Refused},
    route::Route,
    socks,
    tunnel::{self, Opened, Stream},
    window,
};

/// Serves one connection to its end.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn holds its arguments twice, and every open tunnel would hold that"
)]
pub(crate) fn serve(
    mut client: Client,
    proxy: impl Deref<Target = Proxy>,
) -> impl Future<Output = ()> {
    async move {
        // Boxed: an open tunnel must not hold the room for what led to it.
        let mut stream = Box::pin(tunnel(&mut client, &proxy)).await;
        // Lent: what is taken out of it would be held twice.
        if let Some(stream) = &mut stream {
            stream.relay(&mut client, &proxy).await;
        }
        client.finish().await;
    }
}

/// Tells a client that it is one too many, in what it speaks.
pub(crate) async fn turn_away(mut client: Client, refused: &Refused) {
    let answer = match client.first(FAREWELL).await {
        Some(socks::VERSION) => socks::NO_METHOD.to_vec(),
        Some(socks::OLD_VERSION) => socks::OLD_REJECTED.to_vec(),
        Some(_) | None => answer::http(refused, answer::LAST),
    };
    // Whether it could be told or not, the connection ends.
    let _ = client.send(&answer).await;
    client.finish().await;
}

/// Serves requests, and a tunnel until all that is left to do is to relay it.
async fn tunnel(client: &mut Client, proxy: &Proxy) -> Option<Stream> {
    let opened = match client.first(SPEAK_FIRST).await? {
        socks::VERSION => negotiation::open(client, proxy).await?,
        socks::OLD_VERSION => {
            negotiation::decline(client, proxy).await;
            return None;
        }
        _ => {
            let connect = requests(client, proxy).await?;
            establish(client, connect, proxy).await?
        }
    };
    match opened {
        Opened::FarEnd(permit, upstream) => tunnel::open(client, upstream, permit, proxy).await,
        Opened::Unnamed(dialled) => redirect::admitted(client, dialled, proxy).await,
        Opened::Window => {
            tunnel::to_window(client, proxy).await;
            None
        }
    }
}

/// Serves requests up to a `CONNECT`.
async fn requests(client: &mut Client, proxy: &Proxy) -> Option<Head> {
    let mut forwarder = Forwarder::new(proxy, Route::to_origins(proxy), Target::default());
    forwarder.serve(client, |head| judge(head, proxy)).await
}

fn judge(head: &Head, proxy: &Proxy) -> Judgement {
    if head.method == Method::CONNECT {
        return Ok(Course::Back);
    }
    let asked = authority::of_absolute(head)?;
    if window::is_at(&asked.destination) {
        return Ok(Course::Window(asked.path));
    }
    let permit = proxy.decide(&asked.destination);
    let permit = permit.and_then(|permit| require(&permit, StreamKind::Http).map(|()| permit));
    let permit = permit.map_err(|denial| Refused::new(target_of(&asked.destination), denial))?;
    Ok(Course::Origin(Judged {
        permit,
        path: asked.path,
    }))
}

/// Answers a `CONNECT`: with `200` only once the far end is connected, so that a client that reads
/// it may rely on it.
async fn establish(client: &mut Client, connect: Head, proxy: &Proxy) -> Option<Opened> {
    match open(&connect, proxy).await {
        Ok(opened) => client.send(ESTABLISHED).await.is_ok().then_some(opened),
        Err(refused) => {
            proxy.record(&refused);
            // Whether it could be told or not, the connection ends.
            let _ = client.send(&answer::http(&refused, answer::LAST)).await;
            None
        }
    }
}

/// Decides on a `CONNECT` and connects to what it names.
async fn open(head: &Head, proxy: &Proxy) -> Result<Opened, Refused> {
    let destination = authority::of_connect(head)?;
    if head.framing != Framing::Empty {
        return Err(Refused {
            target: target_of(&destination),
            refusal: Refusal::Unclear("CONNECT has no body".to_owned()),
        });
    }
    tunnel::reach(&destination, proxy).await
}

/// How long a client that is turned away is waited for, to learn what it speaks.
const FAREWELL: Duration = Duration::from_secs(1);
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

#[cfg(test)]
mod tests {
    use policy::DenyReason;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::client::soon;

    /// What a client that sends `request` gets, and what is counted.
    async fn asked(list: &str, request: &str) -> (String, Vec<(String, DenyReason)>) {
        let proxy = Proxy::allowing(list);
        let (client, mut guest) = Client::pair().await;
        let said = async {
            guest.write_all(request.as_bytes()).await.unwrap();
            let mut said = String::new();
            guest.read_to_string(&mut said).await.unwrap();
            drop(guest);
            said
        };
        let serving = serve(client, &proxy);
        let (said, ()) = soon(async { tokio::join!(said, serving) }).await;
        let denials = proxy.denials();
        (said, denials)
    }

    #[tokio::test]
    async fn a_connect_with_a_body_is_refused() {
        let (said, denials) = asked(
            "a.example",
            "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
        )
        .await;
        assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
        assert_eq!(denials, [("a.example".to_owned(), DenyReason::Malformed)]);
    }

    #[tokio::test]
    async fn a_request_to_a_denied_name_is_refused_before_anything_is_resolved() {
        let request =
            "GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n";
        let (said, denials) = asked("a.example, !b.example", request).await;
        assert!(
            said.starts_with("HTTP/1.1 403 egress denied: denied_by_rule\r\n"),
            "{said}"
        );
        assert_eq!(
            denials,
            [("b.example".to_owned(), DenyReason::DeniedByRule)]
        );
    }

    #[tokio::test]
    async fn a_guarded_address_is_refused_and_not_dialled() {
        let request = "CONNECT localhost:7 HTTP/1.1\r\n\r\n";
        let (said, denials) = asked("localhost:7", request).await;
        assert!(
            said.starts_with("HTTP/1.1 403 egress denied: private_address\r\n"),
            "{said}"
        );
        assert!(said.contains("error=destination_ip_prohibited"), "{said}");
        assert_eq!(
            denials,
            [("localhost".to_owned(), DenyReason::PrivateAddress)]
        );
    }

    #[tokio::test]
    async fn what_is_not_http_is_answered_and_counted() {
        let (said, denials) = asked("a.example", "\u{6}\u{1}\0").await;
        assert!(
            said.starts_with("HTTP/1.1 400 egress denied: malformed\r\n"),
            "{said}"
        );
        assert_eq!(denials, [(String::new(), DenyReason::Malformed)]);
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_no_attempt() {
        let proxy = Proxy::allowing("a.example");
        let (client, guest) = Client::pair().await;
        drop(guest);
        serve(client, &proxy).await;
        assert_eq!(proxy.denials(), []);
    }

    #[test]
    fn an_open_connection_takes_little_room() {
        let proxy = Proxy::allowing("a.example");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (client, _guest) = runtime.block_on(Client::pair());
        let _within = runtime.enter();
        let size = size_of_val(&serve(client, &proxy));
        // With the 104 of its task it is rounded up to a multiple of 128.
        assert!(size <= 792, "the state of a connection takes {size} bytes");
    }

    #[tokio::test]
    async fn the_first_byte_tells_socks_from_http() {
        let (said, denials) =
            asked("a.example", "\u{5}\u{1}\0\u{5}\u{1}\0\u{3}\u{1}b\0\u{7}").await;
        assert_eq!(said.as_bytes()[..4], [5, 0, 5, 2]);
        assert_eq!(denials, [("b".to_owned(), DenyReason::NotAllowed)]);
        let (said, denials) = asked("a.example", "\u{4}\u{1}\0\u{7}").await;
        assert_eq!(said.as_bytes(), [0, 91, 0, 0, 0, 0, 0, 0]);
        assert_eq!(denials, [(String::new(), DenyReason::Malformed)]);
    }

    #[tokio::test]
    async fn one_too_many_is_told_so_in_what_it_speaks() {
        for (sent, starts) in [
            (&b"\x05\x01\0"[..], &[5, 0xff][..]),
            (b"\x04\x01", &[0, 91]),
            (b"CONNECT", b"HTTP/1.1 503 "),
            (b"", b"HTTP/1.1 503 "),
        ] {
            let (client, mut guest) = Client::pair().await;
            guest.write_all(sent).await.unwrap();
            guest.shutdown().await.unwrap();
            let refused = Refused {
                target: Target::default(),
                refusal: Refusal::Busy,
            };
            let mut said = Vec::new();
            let reading = guest.read_to_end(&mut said);
            let (read, ()) =
                soon(async { tokio::join!(reading, turn_away(client, &refused)) }).await;
            read.unwrap();
            assert!(said.starts_with(starts), "{sent:?}: {said:?}");
        }
    }
}
