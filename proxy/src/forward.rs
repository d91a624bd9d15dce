//! Forwards the requests of one client connection, each of them decided anew.

use std::time::Duration;

use http::{Response, StatusCode, uri::PathAndQuery};
use hyper::body::Incoming;
use policy::Permit;
use report::Target;

use crate::{
    answer::{self, After, Body, Manner},
    authority::target_of,
    body::{self, BodyError},
    client::{BETWEEN_REQUESTS, Client, SPEAK_FIRST, Unheard},
    exchange::Exchange,
    head::{Framing, Head},
    incoming::{self, Requester},
    outgoing,
    proxy::Proxy,
    refusal::{Failure, Refusal, Refused},
    relay,
    upload::Upload,
};

/// A request that was let through.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) permit: Permit,
    pub(crate) path: PathAndQuery,
}

/// What is decided on a request. `None`: it is no request to forward.
pub(crate) type Judgement = Result<Option<Judged>, Refused>;

/// Forwards requests, one after the other.
pub(crate) struct Forwarder<'p> {
    proxy: &'p Proxy,
    route: Route,
    /// The origin's connection that the last request has left usable.
    kept: Option<Exchange>,
    /// What to report of a head that names nothing.
    unnamed: Target,
}

/// Where requests go.
enum Route {
    /// To the origin that each names, by a connection that is dialled when there is none.
    Dial,
    /// To the one connection of a tunnel.
    Tunnel,
}

/// Why a request goes no further.
enum Stop {
    /// It was refused, or its destination could not be reached. Not counted yet.
    Refused(Refused),
    /// It was let through and counted, and failed then.
    Broken(Target, Failure),
    /// There is nobody to tell.
    Gone,
}

impl<'p> Forwarder<'p> {
    /// For requests that may go to different origins.
    pub(crate) fn dialling(proxy: &'p Proxy, unnamed: Target) -> Self {
        Self {
            proxy,
            route: Route::Dial,
            kept: None,
            unnamed,
        }
    }

    /// For requests in a tunnel.
    pub(crate) fn tunnelling(proxy: &'p Proxy, exchange: Exchange, unnamed: Target) -> Self {
        Self {
            proxy,
            route: Route::Tunnel,
            kept: Some(exchange),
            unnamed,
        }
    }

    /// Serves requests until the connection is of no more use, or until one that `judge` wants
    /// given back because it is no request to forward.
    pub(crate) async fn serve(
        &mut self,
        client: &mut Client,
        judge: impl Fn(&Head) -> Judgement,
    ) -> Option<Head> {
        let mut patience = SPEAK_FIRST;
        loop {
            let head = self.next(client, patience).await?;
            let requester = Requester::of(&head);
            let outcome = match judge(&head) {
                Ok(Some(judged)) => {
                    // Boxed: a connection that becomes a tunnel must not hold the room for this.
                    Box::pin(self.forward(client, &head, &judged, requester)).await
                }
                Ok(None) => return Some(head),
                Err(refused) => Err(Stop::Refused(refused)),
            };
            let after = match outcome {
                Ok(after) => after,
                Err(stop) => self.explain(client, stop, &head, requester).await,
            };
            if after == After::Close {
                return None;
            }
            patience = BETWEEN_REQUESTS;
        }
    }

    async fn next(&self, client: &mut Client, patience: Duration) -> Option<Head> {
        match client.head(patience).await {
            Ok(head) => head,
            Err(Unheard::Gone) => None,
            Err(Unheard::Head(error)) => {
                let refusal = Refusal::Unclear(error.to_string());
                let refused = Refused {
                    target: self.unnamed.clone(),
                    refusal,
                };
                self.proxy.record(&refused);
                // Whether it could be told or not, the connection ends.
                let _ = client.send(&answer::http(&refused, answer::LAST)).await;
                None
            }
        }
    }

    /// Sends one request on and its response back.
    async fn forward(
        &mut self,
        client: &mut Client,
        head: &Head,
        judged: &Judged,
        requester: Requester,
    ) -> Result<After, Stop> {
        let mut exchange = self.exchange(&judged.permit).await?;
        if requester.waits && head.framing != Framing::Empty {
            client.send(CONTINUE).await.map_err(|_| Stop::Gone)?;
        }
        let to = judged.permit.destination();
        let (request, feed) = outgoing::request(head, &judged.path, to);
        let (mut from_client, mut to_client) = client.stream.split();
        let mut upload =
            Upload::new(feed.map(|feed| {
                body::carry(&mut from_client, &mut client.pending, head.framing, feed)
            }));
        let sent = upload
            .beside(exchange.send(request))
            .await
            .map_err(|error| not_sent(&error, judged))?;
        let response = match sent {
            Ok(response) => response,
            Err(_) if exchange.was_used() && may_be_repeated(head) => {
                exchange = self.dial(&judged.permit).await?;
                let (request, _) = outgoing::request(head, &judged.path, to);
                exchange
                    .send(request)
                    .await
                    .map_err(|failure| broken(judged, failure))?
            }
            Err(failure) => return Err(broken(judged, failure)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            drop(upload);
            return self
                .switch(client, exchange, response, judged, requester)
                .await;
        }
        let sending = incoming::send(&mut to_client, response, requester);
        let Ok(Ok(after)) = upload.beside(sending).await else {
            drop(upload);
            client.abort();
            return Err(Stop::Gone);
        };
        if after == After::Close || !upload.is_whole() {
            return Ok(After::Close);
        }
        self.kept = Some(exchange);
        Ok(After::Keep)
    }

    /// The connection for a request: the one that was kept, if it leads there.
    async fn exchange(&mut self, permit: &Permit) -> Result<Exchange, Stop> {
        if let Some(mut kept) = self.kept.take()
            && kept.serves(permit.destination()).await
        {
            if matches!(self.route, Route::Dial) {
                self.proxy.account.allow(target_of(permit.destination()));
            }
            return Ok(kept);
        }
        match self.route {
            Route::Dial => {
                let exchange = self.dial(permit).await?;
                self.proxy.account.allow(target_of(permit.destination()));
                Ok(exchange)
            }
            Route::Tunnel => Err(Stop::Gone),
        }
    }

    async fn dial(&self, permit: &Permit) -> Result<Exchange, Stop> {
        let target = target_of(permit.destination());
        let refused = |refusal| {
            Stop::Refused(Refused {
                target: target.clone(),
                refusal,
            })
        };
        let stream = self.proxy.reach(permit).await.map_err(refused)?;
        let flow = self.proxy.account.flow(target.clone());
        let exchange = Exchange::open(stream, permit.destination().clone(), flow).await;
        exchange.map_err(|failure| refused(failure.into()))
    }

    /// Relays what follows `101 Switching Protocols`.
    async fn switch(
        &self,
        client: &mut Client,
        exchange: Exchange,
        response: Response<Incoming>,
        judged: &Judged,
        requester: Requester,
    ) -> Result<After, Stop> {
        if !requester.upgrades {
            let words = "it switches protocols although nobody asked".to_owned();
            return Err(broken(judged, Failure::Response(words)));
        }
        let head = incoming::switching(&response);
        let mut switched = exchange
            .switch(response)
            .await
            .map_err(|failure| broken(judged, failure))?;
        client.send(&head).await.map_err(|_| Stop::Gone)?;
        client.send(&switched.early).await.map_err(|_| Stop::Gone)?;
        relay::run(
            client,
            &mut switched.stream,
            &switched.flow,
            &self.proxy.buffers,
        )
        .await;
        Ok(After::Close)
    }

    /// Counts and answers a request that goes no further.
    async fn explain(
        &self,
        client: &mut Client,
        stop: Stop,
        head: &Head,
        requester: Requester,
    ) -> After {
        let refused = match stop {
            Stop::Gone => return After::Close,
            Stop::Refused(refused) => {
                self.proxy.record(&refused);
                refused
            }
            Stop::Broken(target, failure) => {
                self.proxy.account.fail(target.clone());
                Refused {
                    target,
                    refusal: failure.into(),
                }
            }
        };
        // A body that nobody wants is not read, so that no next request could be found behind it.
        let after = if head.framing == Framing::Empty {
            requester.after()
        } else {
            After::Close
        };
        let body = if requester.is_head() {
            Body::Withheld
        } else {
            Body::Sent
        };
        let sent = client
            .send(&answer::http(&refused, Manner { body, after }))
            .await;
        if sent.is_ok() { after } else { After::Close }
    }
}

fn broken(judged: &Judged, failure: Failure) -> Stop {
    Stop::Broken(target_of(judged.permit.destination()), failure)
}

fn not_sent(error: &BodyError, judged: &Judged) -> Stop {
    match error {
        BodyError::Gone(_) => Stop::Gone,
        BodyError::Chunks => {
            let target = target_of(judged.permit.destination());
            Stop::Refused(Refused {
                target,
                refusal: Refusal::Unclear(error.to_string()),
            })
        }
    }
}

/// A connection may be closed the moment it is used again; what is safe to repeat goes out once
/// more, on a new one (RFC 9110 §9.2.2).
fn may_be_repeated(head: &Head) -> bool {
    head.framing == Framing::Empty && head.method.is_idempotent()
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
