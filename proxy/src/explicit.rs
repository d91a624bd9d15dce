//! Clients that were told of the proxy: `CONNECT`, and requests with an absolute target.

use http::Method;
use policy::{Permit, StreamKind};
use report::Target;
use tokio::net::TcpStream;

use crate::{
    answer,
    authority::{self, target_of},
    client::Client,
    forward::{Forwarder, Judged, Judgement},
    head::{Framing, Head},
    proxy::{Proxy, require},
    refusal::{Refusal, Refused},
    route::Route,
    tunnel,
};

/// Serves one connection to its end.
pub(crate) async fn serve(mut client: Client, proxy: &Proxy) {
    let mut forwarder = Forwarder::new(proxy, Route::to_origins(proxy), Target::default());
    let connect = forwarder
        .serve(&mut client, |head| judge(head, proxy))
        .await;
    drop(forwarder);
    if let Some(head) = connect {
        match open(&head, proxy).await {
            Ok((permit, upstream)) => establish(&mut client, &permit, upstream, proxy).await,
            Err(refused) => {
                proxy.record(&refused);
                // Whether it could be told or not, the connection ends.
                let _ = client.send(&answer::http(&refused, answer::LAST)).await;
            }
        }
    }
    client.finish().await;
}

fn judge(head: &Head, proxy: &Proxy) -> Judgement {
    if head.method == Method::CONNECT {
        return Ok(None);
    }
    let asked = authority::of_absolute(head)?;
    let permit = proxy.decide(&asked.destination);
    let permit = permit.and_then(|permit| require(&permit, StreamKind::Http).map(|()| permit));
    let permit = permit.map_err(|denial| Refused::new(target_of(&asked.destination), denial))?;
    Ok(Some(Judged {
        permit,
        path: asked.path,
    }))
}

/// Decides on a `CONNECT` and connects to what it names.
async fn open(head: &Head, proxy: &Proxy) -> Result<(Permit, TcpStream), Refused> {
    let destination = authority::of_connect(head)?;
    let target = target_of(&destination);
    if head.framing != Framing::Empty {
        return Err(Refused {
            target,
            refusal: Refusal::Unclear("CONNECT has no body".to_owned()),
        });
    }
    let permit = proxy
        .decide(&destination)
        .map_err(|denial| Refused::new(target.clone(), denial))?;
    let upstream = proxy
        .reach(&permit)
        .await
        .map_err(|refusal| Refused { target, refusal })?;
    Ok((permit, upstream))
}

/// Says `200` only now that the far end is connected: a client that reads it may rely on it.
async fn establish(client: &mut Client, permit: &Permit, upstream: TcpStream, proxy: &Proxy) {
    if client.send(ESTABLISHED).await.is_ok() {
        tunnel::run(client, upstream, permit, proxy).await;
    }
}

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
