//! The servers of the fake internet. Each writes down what it was asked before it answers.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::HOST,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::plan::Service;

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
    pub(crate) tls: Arc<ServerConfig>,
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
        match self.service {
            Service::Tls => {
                let stream = TlsAcceptor::from(Arc::clone(&self.tls))
                    .accept(stream)
                    .await?;
                let sni = stream.get_ref().1.server_name().map(str::to_owned);
                self.converse_http(stream, "https", sni).await
            }
            Service::Http => self.converse_http(stream, "http", None).await,
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
        stream: impl AsyncRead + AsyncWrite + Unpin,
        scheme: &str,
        sni: Option<String>,
    ) -> anyhow::Result<()> {
        let respond = service_fn(|request: Request<Incoming>| {
            let visit = self.describe(&request, scheme, sni.as_deref());
            self.visits.add(visit.clone());
            let body = Full::new(Bytes::from(format!("served {visit}\n")));
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        Ok(http1::Builder::new()
            .serve_connection(TokioIo::new(stream), respond)
            .await?)
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
