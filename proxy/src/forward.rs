//! Forwards the requests of one client connection, each of them decided anew.

use std::{sync::atomic::AtomicBool, time::Duration};

use http::{Request, Response, StatusCode, uri::PathAndQuery};
use hyper::body::Incoming;
use policy::Permit;
use report::Target;

use crate::{
    answer::{self, After},
    authority::target_of,
    body::{BodyError, Feed, RequestBody},
    client::{BETWEEN_REQUESTS, Client, SPEAK_FIRST, Unheard},
    exchange::Exchange,
    head::{Framing, Head, HeadError},
    incoming::{self, Requester},
    interim::Interims,
    outgoing,
    proxy::Proxy,
    refusal::{Failure, Refusal, Refused},
    relay,
    route::{NoRoute, Route},
    upload::{self, Upload},
    window,
};

/// A request that was let through.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) permit: Permit,
    pub(crate) path: PathAndQuery,
}

/// Where a request goes that was not refused.
#[derive(Debug)]
pub(crate) enum Course {
    /// To its origin.
    Origin(Judged),
    /// To the guest's own window, for this page.
    Window(PathAndQuery),
    /// Back to whoever has the connection served: it is no request to forward.
    Back,
}

/// What is decided on a request.
pub(crate) type Judgement = Result<Course, Refused>;

/// Forwards requests, one after the other.
pub(crate) struct Forwarder<'p> {
    proxy: &'p Proxy,
    route: Route<'p>,
    /// What to report of a head that names nothing.
    unnamed: Target,
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
    pub(crate) fn new(proxy: &'p Proxy, route: Route<'p>, unnamed: Target) -> Self {
        Self {
            proxy,
            route,
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
                Ok(Course::Origin(judged)) => {
                    // Boxed: a connection that becomes a tunnel must not hold the room for this.
                    Box::pin(self.forward(client, &head, &judged, requester)).await
                }
                Ok(Course::Window(path)) => {
                    let manner = requester.manner(head.framing);
                    let page = window::answer(&head, &path, manner, self.proxy);
                    let sent = client.send(&page).await;
                    sent.map(|()| manner.after).map_err(|_| Stop::Gone)
                }
                Ok(Course::Back) => return Some(head),
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
                let answer = if error == HeadError::Http2 {
                    answer::http2(&refused.refusal)
                } else {
                    answer::http(&refused, answer::LAST)
                };
                // Whether it could be told or not, the connection ends.
                let _ = client.send(&answer).await;
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
        let exchange = self.route.exchange(&judged.permit).await;
        let mut exchange = exchange.map_err(|none| judged.not_reached(none))?;
        let (mut request, feed) = judged.outgoing(head);
        let mut interims = Interims::before(&mut request, requester.version());
        let (mut from_client, mut to_client) = client.stream.split();
        let (pending, flow) = (&mut client.pending, exchange.flow());
        let is_whole = AtomicBool::new(false);
        let body = feed.map(|feed| (head.framing, feed));
        let attending = upload::attend(&mut from_client, pending, body, &flow, &is_whole);
        let mut upload = Upload::new(attending, &is_whole);
        let answered = interims.passed_on(&mut to_client, exchange.send(request));
        let answered = upload.beside(answered).await;
        let answered = answered.map_err(|error| judged.not_sent(&error))?;
        let response = match answered.map_err(|_gone| Stop::Gone)? {
            Ok(response) => response,
            Err(_) if self.may_repeat(&exchange, head) => {
                exchange = self
                    .route
                    .dial(&judged.permit)
                    .await
                    .map_err(|refusal| judged.failed_again(refusal))?;
                let repeated = upload.beside(exchange.send(judged.outgoing(head).0)).await;
                let repeated = repeated.map_err(|error| judged.not_sent(&error))?;
                repeated.map_err(|failure| judged.broken(failure))?
            }
            Err(failure) => return Err(judged.broken(failure)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            drop(upload);
            return self
                .switch(client, exchange, response, judged, requester)
                .await;
        }
        // Who was not told to send the body need not, and then nobody knows what comes next.
        let sends_no_body = requester.waits && !interims.continued() && !upload.is_whole();
        let requester = if sends_no_body {
            requester.closing()
        } else {
            requester
        };
        let sending = incoming::send(&mut to_client, response, requester);
        let Ok(Ok(after)) = upload.beside(sending).await else {
            drop(upload);
            client.abort();
            return Err(Stop::Gone);
        };
        if after == After::Close || !upload.is_whole() {
            return Ok(After::Close);
        }
        self.route.keep(exchange);
        Ok(After::Keep)
    }

    /// A connection may be closed the moment it is used again; what is safe to repeat goes out once
    /// more, on a new one (RFC 9110 §9.2.2).
    fn may_repeat(&self, exchange: &Exchange, head: &Head) -> bool {
        let safe = head.framing == Framing::Empty && head.method.is_idempotent();
        safe && exchange.was_used() && self.route.can_dial()
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
            return Err(judged.broken(Failure::Response(words)));
        }
        let head = incoming::switching(&response);
        let mut switched = exchange
            .switch(response)
            .await
            .map_err(|failure| judged.broken(failure))?;
        client.send(&head).await.map_err(|_| Stop::Gone)?;
        client.send(&switched.early).await.map_err(|_| Stop::Gone)?;
        relay::run(
            client,
            &mut switched.stream,
            &switched.flow,
            &self.proxy.spares,
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
        let manner = requester.manner(head.framing);
        let sent = client.send(&answer::http(&refused, manner)).await;
        if sent.is_ok() {
            manner.after
        } else {
            After::Close
        }
    }
}

impl Judged {
    fn outgoing(&self, head: &Head) -> (Request<RequestBody>, Option<Feed>) {
        outgoing::request(head, &self.path, self.permit.destination())
    }

    fn not_reached(&self, none: NoRoute) -> Stop {
        match none {
            NoRoute::Refused(refusal) => self.refused(refusal),
            NoRoute::Over => Stop::Gone,
        }
    }

    fn not_sent(&self, error: &BodyError) -> Stop {
        match error {
            BodyError::Gone(_) => Stop::Gone,
            BodyError::Chunks => self.refused(Refusal::Unclear(error.to_string())),
        }
    }

    /// What was counted as let through fails now, unless the guard has become stricter.
    fn failed_again(&self, refusal: Refusal) -> Stop {
        match refusal {
            Refusal::Failed(failure) => self.broken(failure),
            Refusal::Denied(_) | Refusal::Unclear(_) | Refusal::Busy => self.refused(refusal),
        }
    }

    fn broken(&self, failure: Failure) -> Stop {
        Stop::Broken(target_of(self.permit.destination()), failure)
    }

    fn refused(&self, refusal: Refusal) -> Stop {
        Stop::Refused(Refused {
            target: target_of(self.permit.destination()),
            refusal,
        })
    }
}
