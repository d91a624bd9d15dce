//! Responses that come before the response (RFC 9110 §15.2), passed on as they come: `100 Continue`
//! is the origin's to say, and early hints are early or useless.

use std::io;

use http::{Request, Version};
use hyper::ext::on_informational;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::incoming;

/// What an origin says before it answers one request.
#[derive(Debug)]
pub(crate) struct Interims {
    heads: mpsc::Receiver<Interim>,
    continued: bool,
}

#[derive(Debug)]
struct Interim {
    head: Vec<u8>,
    continues: bool,
}

impl Interims {
    /// Listens for what comes before the response to `request`. A client of HTTP/1.0 knows no such
    /// responses and is sent none.
    pub(crate) fn before<B>(request: &mut Request<B>, client: Version) -> Self {
        let (sender, heads) = mpsc::channel(MAX_WAITING);
        if client == Version::HTTP_11 {
            on_informational(request, move |response| {
                let interim = Interim {
                    head: incoming::interim(response.status(), response.headers()),
                    continues: response.status() == http::StatusCode::CONTINUE,
                };
                // An origin that says so many at once says nothing that is waited for.
                let _ = sender.try_send(interim);
            });
        }
        Self {
            heads,
            continued: false,
        }
    }

    /// Waits for `response`, and passes on to `client` what comes before it.
    ///
    /// # Errors
    /// When the client does not take it; `response` is given up then.
    pub(crate) async fn passed_on<W: AsyncWrite + Unpin, T>(
        &mut self,
        client: &mut W,
        response: impl Future<Output = T>,
    ) -> io::Result<T> {
        let mut response = std::pin::pin!(response);
        let response = loop {
            tokio::select! {
                biased;
                Some(interim) = self.heads.recv() => self.pass(client, &interim).await?,
                response = &mut response => break response,
            }
        };
        while let Ok(interim) = self.heads.try_recv() {
            self.pass(client, &interim).await?;
        }
        Ok(response)
    }

    /// Whether the client was told to send its body.
    pub(crate) fn continued(&self) -> bool {
        self.continued
    }

    async fn pass<W: AsyncWrite + Unpin>(
        &mut self,
        client: &mut W,
        interim: &Interim,
    ) -> io::Result<()> {
        self.continued |= interim.continues;
        client.write_all(&interim.head).await
    }
}

/// How many may wait for a client at once; more are not passed on.
const MAX_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn interim(head: &str, continues: bool) -> Interim {
        Interim {
            head: head.as_bytes().to_vec(),
            continues,
        }
    }

    #[tokio::test]
    async fn what_came_before_the_response_is_passed_on_before_it() {
        let (sender, heads) = mpsc::channel(MAX_WAITING);
        let mut interims = Interims {
            heads,
            continued: false,
        };
        sender.try_send(interim("one ", false)).unwrap();
        let response = async {
            sender.try_send(interim("two ", true)).unwrap();
            7
        };
        let mut seen = Vec::new();
        assert_eq!(interims.passed_on(&mut seen, response).await.unwrap(), 7);
        assert_eq!(seen, b"one two ");
        assert!(interims.continued());
    }

    #[tokio::test]
    async fn where_nobody_listens_the_response_alone_is_waited_for() {
        let mut request = Request::new(());
        let mut interims = Interims::before(&mut request, Version::HTTP_10);
        let mut seen = Vec::new();
        let response = tokio::task::yield_now();
        interims.passed_on(&mut seen, response).await.unwrap();
        assert!(seen.is_empty() && !interims.continued());
    }

    #[tokio::test]
    async fn a_client_that_is_gone_ends_the_waiting() {
        let (sender, heads) = mpsc::channel(MAX_WAITING);
        let mut interims = Interims {
            heads,
            continued: false,
        };
        sender.try_send(interim("one", false)).unwrap();
        let (mut near, far) = tokio::io::duplex(1);
        drop(far);
        let never = std::future::pending::<()>();
        assert!(interims.passed_on(&mut near, never).await.is_err());
    }
}
