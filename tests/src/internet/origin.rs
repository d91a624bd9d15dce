//! The servers of the fake internet. Each writes down what it was asked before it answers.

mod calls;
mod content;
mod dial;
mod shell;

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use hyper::{
    Request, Response, StatusCode, body::Incoming, header::HOST, server::conn::http1,
    service::service_fn, upgrade,
};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use content::Reply;

use super::{authority::Identity, plan::Service, site::Site};

/// The requests that all origins of one internet served, in the order in which they came:
/// `ORIGIN:PORT METHOD scheme://HOST/path`, or `ORIGIN:PORT tcp` for a bare connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Visits(Arc<Mutex<Vec<String>>>);

impl Visits {
    pub(crate) fn take(&self) -> Vec<String> {
        self.0
            .lock()
            .map(|mut visits| std::mem::take(&mut *visits))
            .unwrap_or_default()
    }

    fn add(&self, visit: String) {
        if let Ok(mut visits) = self.0.lock() {
            visits.push(visit);
        }
    }
}

/// One host's server on one port.
#[derive(Clone)]
pub(crate) struct Origin {
    /// `name:port`.
    pub(crate) place: String,
    pub(crate) service: Service,
    pub(crate) identity: Identity,
    pub(crate) site: Arc<Site>,
    pub(crate) visits: Visits,
}

impl Origin {
    pub(crate) async fn serve(self, listener: TcpListener) -> anyhow::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.context("accept at an origin")?;
            connections.spawn(self.clone().converse(stream));
            while connections.try_join_next().is_some() {}
        }
    }

    async fn converse(self, mut stream: TcpStream) -> anyhow::Result<()> {
        let peer = stream.peer_addr().context("ask who visits")?.ip();
        match self.service {
            Service::Tls => {
                let stream = accept(&self.identity.http, stream).await?;
                let sni = stream.get_ref().1.server_name().map(str::to_owned);
                self.converse_http(stream, "https", sni, peer).await
            }
            Service::Grpc => {
                let stream = accept(&self.identity.http2, stream).await?;
                calls::serve(stream, |call| {
                    self.visits.add(format!("{} grpc {call}", self.place));
                })
                .await
            }
            Service::Ssh => {
                self.visits.add(format!("{} ssh", self.place));
                shell::serve(stream, &self.site).await
            }
            Service::Http => self.converse_http(stream, "http", None, peer).await,
            Service::Tcp => {
                self.visits.add(format!("{} tcp", self.place));
                stream.write_all(b"SSH-2.0-fake\r\n").await?;
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await?;
                Ok(writer.shutdown().await?)
            }
        }
    }

    async fn converse_http(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        scheme: &str,
        sni: Option<String>,
        peer: IpAddr,
    ) -> anyhow::Result<()> {
        let opened = Mutex::new(None);
        let respond = service_fn(|request: Request<Incoming>| {
            let visit = self.describe(&request, scheme, sni.as_deref());
            self.visits.add(visit.clone());
            let response = content::respond(&request, &visit, &self.site);
            let path = request.uri().path().to_owned();
            if response.status() == StatusCode::SWITCHING_PROTOCOLS
                && let Ok(mut opened) = opened.lock()
            {
                *opened = Some(upgrade::on(request));
            }
            async move {
                let response = match dial::back(&path, peer).await {
                    Some(outcome) => Response::new(Reply::whole(outcome)),
                    None => response,
                };
                Ok::<_, Infallible>(response)
            }
        });
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), respond)
            .with_upgrades()
            .await?;
        match opened.into_inner() {
            Ok(Some(opened)) => content::echo(opened).await,
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// The SNI is told only where it is not the host: that is what a test would look for.
    fn describe(&self, request: &Request<Incoming>, scheme: &str, sni: Option<&str>) -> String {
        let host = request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or("-");
        let line = format!(
            "{} {} {scheme}://{host}{}",
            self.place,
            request.method(),
            request.uri()
        );
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        match sni {
            Some(sni) if sni != name => format!("{line} sni={sni}"),
            Some(_) | None => line,
        }
    }
}

async fn accept(
    identity: &Arc<ServerConfig>,
    stream: TcpStream,
) -> anyhow::Result<TlsStream<TcpStream>> {
    TlsAcceptor::from(Arc::clone(identity))
        .accept(stream)
        .await
        .context("accept a TLS handshake")
}
