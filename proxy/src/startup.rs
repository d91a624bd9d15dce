//! From a link to a proxy that serves; what stands in the way is told to PID 1 in one line.

use std::{io, sync::Arc};

use hickory_resolver::net::NetError;
use procwatch::Program;
use report::RunClock;

use crate::{
    account::Account,
    confine,
    control::{Link, LinkError, Listener},
    fan_out::FanOut,
    openings::Openings,
    proxy::Proxy,
    relay::Spares,
    reporter::ReportError,
    resolve::Resolver,
    ruling::{Ruling, Rulings},
    server::Server,
    settings::{Settings, SettingsError},
    upstream::{Upstream, UpstreamError},
};

/// Everything that a proxy needs to serve.
#[derive(Debug)]
pub struct Startup {
    /// What is served.
    pub settings: Settings,
    listeners: Vec<Listener>,
    link: Link,
}

/// Why a proxy does not serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It was not handed what it needs.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What it was handed cannot be served.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The proxy to dial through cannot be found.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Names cannot be resolved.
    #[error("no resolver")]
    Resolver(#[from] NetError),
    /// There is no runtime.
    #[error("no event loop")]
    Runtime(#[source] io::Error),
    /// PID 1 went away while it served.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Receives what PID 1 hands over, and serves until PID 1 wants no more.
pub fn run(link: Link) -> Result<(), StartError> {
    // The first look at the clock finds out how to read it without a call, for which a process that
    // may open nothing would be too late.
    let _ = RunClock::start();
    let degradations = confine::process();
    Startup::receive(link)?.serve(degradations)
}

impl Startup {
    /// Receives and checks what PID 1 hands over. What is wrong is told to PID 1.
    pub fn receive(mut link: Link) -> Result<Self, StartError> {
        let received = link.receive().map_err(StartError::from);
        let checked =
            received.and_then(|(listeners, start)| Ok((listeners, Settings::new(start)?)));
        match checked {
            Ok((listeners, settings)) => Ok(Self {
                settings,
                listeners,
                link,
            }),
            Err(error) => {
                link.fail(&error);
                Err(error)
            }
        }
    }

    /// Serves on an event loop of its own until PID 1 wants no more.
    ///
    /// # Errors
    /// What stood in the way of serving, which PID 1 was told, or that PID 1 is gone.
    pub fn serve(mut self, mut degradations: Vec<String>) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                self.link.fail(&error);
                return Err(StartError::Runtime(error));
            }
        };
        let (max_connections, missing) = confine::connections(self.settings.max_connections);
        degradations.extend(missing);
        // Before /proc is out of reach.
        let program = Program::find();
        // Here, since all that was read so far is PID 1's word, and what comes next, the answer of a
        // resolver or a client's first byte, is anybody's. Everything that must be made with other
        // calls is made: the sockets were handed over, and the event loop has its descriptors.
        degradations.extend(confine::serving(self.settings.unforeseen_calls));
        runtime.block_on(async {
            let proxy = match prepare(&self.settings).await {
                Ok(proxy) => proxy,
                Err(error) => {
                    self.link.fail(&error);
                    return Err(error);
                }
            };
            let server = Server::new(proxy, max_connections, self.settings.original_destination);
            let (orders, replies) = self.link.serve().map_err(ReportError::Link)?;
            if let Ok(program) = program {
                program.release();
            }
            Ok(server
                .run(self.listeners, degradations, orders, replies)
                .await?)
        })
    }
}

async fn prepare(settings: &Settings) -> Result<Proxy, StartError> {
    let resolver = Resolver::new(&settings.resolvers)?;
    let upstream = match &settings.upstream_proxy {
        Some(given) => Some(Upstream::find(given, &resolver).await?),
        None => None,
    };
    Ok(Proxy {
        rulings: Rulings::new(
            Ruling::new(settings.generation, settings.policy.clone()),
            settings.guard.clone(),
        ),
        resolver,
        upstream,
        account: Arc::new(Account::new(settings.clock, settings.seed)),
        spares: Spares::default(),
        fan_out: FanOut::default(),
        openings: Openings::default(),
    })
}
