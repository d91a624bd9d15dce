//! A fake internet in a network namespace of its own: names, TLS and HTTP origins, v4 and v6, and
//! an account of everything that reached it.
//!
//! It is connected to nothing but the guests of one lab, so that an attempt which must be refused
//! stays in it even if nothing refuses it.

mod authority;
mod dns;
mod ledger;
mod origin;
mod plan;
mod resolver;
mod site;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use anyhow::{Context, anyhow};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::oneshot,
    task::JoinSet,
};

use self::{
    authority::{Authority, Identity},
    dns::NameServer,
    origin::{Origin, Visits},
    plan::Plan,
};
pub use self::{ledger::Arrival, plan::Subnet, resolver::Resolver, site::Site};
use crate::namespace::{Namespace, unique};

/// A running internet. It ends, with everything it made, when it is dropped.
#[derive(Debug)]
pub struct Internet {
    namespace: Namespace,
    subnet: Subnet,
    root_certificate: String,
    names: HashMap<IpAddr, String>,
    visits: Visits,
    server: NameServer,
    /// Dropping it ends the thread of the servers.
    stop: Option<oneshot::Sender<()>>,
    servers: Option<JoinHandle<()>>,
}

/// What reached the internet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// What was opened or tried to be, as `name:port/protocol`, questions to the name server left
    /// out. A set, since how often a client tries again is its own affair.
    pub reached: BTreeSet<String>,
    /// What the origins served, sorted.
    pub requests: Vec<String>,
    /// What the name server was asked, sorted, each question once.
    pub asked: BTreeSet<String>,
}

impl Internet {
    /// Starts one on `subnet`; it serves when this returns.
    pub fn start(subnet: Subnet) -> anyhow::Result<Self> {
        Self::start_with(subnet, Site::default())
    }

    /// Starts one whose origins have more to serve than their own words.
    pub fn start_with(subnet: Subnet, site: Site) -> anyhow::Result<Self> {
        let plan = Plan::read()?;
        let namespace = Namespace::create("internet")?;
        lay_network(&namespace, &plan, subnet)?;
        ledger::open(&namespace)?;

        let zone = plan.zone(subnet);
        let authority = Authority::create(zone.keys().cloned().collect())?;
        let visits = Visits::default();
        let server = NameServer::new(zone);
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let work = Servers {
            origins: origins(&plan, subnet, &authority.identity, &visits, &Arc::new(site)),
            resolver: subnet.resolver(),
            server: server.clone(),
        };
        let door = namespace.door()?;
        let servers = thread::spawn(move || {
            let outcome = door.enter().and_then(|()| work.run(&ready, stopped));
            // Whoever waits for readiness learns why there will be none.
            let _ = ready.try_send(outcome);
        });
        is_ready.recv().context("wait for the servers")??;
        let names = plan.hosts().iter().flat_map(|host| {
            host.all_addresses(subnet)
                .map(|address| (address, host.name.clone()))
        });
        Ok(Self {
            names: names.collect(),
            root_certificate: authority.root,
            namespace,
            subnet,
            visits,
            server,
            stop: Some(stop),
            servers: Some(servers),
        })
    }

    /// Its networks.
    #[must_use]
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// The root certificate that clients must trust, in PEM.
    #[must_use]
    pub fn root_certificate(&self) -> &str {
        &self.root_certificate
    }

    /// Makes an interface that leads to this internet, on the machine itself or in a namespace, and
    /// returns its name.
    pub fn plug(&self, place: Option<&Namespace>) -> anyhow::Result<String> {
        let (port, outside) = (format!("p{}", unique()), format!("e{}", unique()));
        // Process 1 is in the machine's own namespace.
        let place = place.map_or("1", Namespace::name);
        self.namespace.ip(&format!(
            "link add {port} type veth peer name {outside} netns {place}"
        ))?;
        self.namespace
            .ip(&format!("link set {port} master lan0 up"))?;
        Ok(outside)
    }

    /// Connects a guest's namespace, with the address `last` in both networks and a default route.
    pub fn plug_guest(&self, guest: &Namespace, last: u8) -> anyhow::Result<()> {
        let (port, peer) = (format!("p{}", unique()), guest.name());
        self.namespace.ip(&format!(
            "link add {port} type veth peer name eth0 netns {peer}"
        ))?;
        self.namespace
            .ip(&format!("link set {port} master lan0 up"))?;
        let (gateway4, gateway6) = self.subnet.gateway();
        guest.ip(&format!("addr add {}/24 dev eth0", self.subnet.v4(last)))?;
        guest.ip(&format!(
            "addr add {}/64 dev eth0 nodad",
            self.subnet.v6(last)
        ))?;
        guest.ip("link set eth0 up")?;
        guest.ip(&format!("route add default via {gateway4}"))?;
        guest.ip(&format!("-6 route add default via {gateway6}"))
    }

    /// Decides what becomes of questions, until the next reset.
    pub fn set_resolver(&self, state: Resolver) -> anyhow::Result<()> {
        resolver::set(&self.namespace, state)
    }

    /// Forgets what was seen, and answers questions.
    pub fn reset(&self) -> anyhow::Result<()> {
        self.set_resolver(Resolver::Answers)?;
        self.visits.take();
        self.server.take_asked();
        ledger::reset(&self.namespace)
    }

    /// What was seen since the last reset.
    pub fn account(&self) -> anyhow::Result<Account> {
        let resolver = self.subnet.resolver();
        let reached = ledger::read(&self.namespace)?
            .into_iter()
            .filter(|arrival| !(arrival.port == Some(53) && resolver.contains(&arrival.address)))
            .map(|arrival| self.describe(&arrival));
        let mut requests = self.visits.take();
        requests.sort_unstable();
        Ok(Account {
            reached: reached.collect(),
            requests,
            asked: self.server.take_asked().into_iter().collect(),
        })
    }

    fn describe(&self, arrival: &Arrival) -> String {
        let Arrival {
            address,
            protocol,
            port,
        } = arrival;
        let name = self
            .names
            .get(address)
            .cloned()
            .unwrap_or_else(|| address.to_string());
        match port {
            Some(port) => format!("{name}:{port}/{protocol}"),
            None => format!("{name}/{protocol}"),
        }
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(servers) = self.servers.take() {
            // A server that panicked has failed its test already.
            let _ = servers.join();
        }
    }
}

/// What the internet's thread does.
struct Servers {
    origins: Vec<(IpAddr, u16, Origin)>,
    resolver: [IpAddr; 2],
    server: NameServer,
}

impl Servers {
    fn run(
        self,
        ready: &mpsc::SyncSender<anyhow::Result<()>>,
        stopped: oneshot::Receiver<()>,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for (address, port, origin) in self.origins {
                let listener = TcpListener::bind((address, port))
                    .await
                    .with_context(|| format!("listen on {address} port {port}"))?;
                tasks.spawn(origin.serve(listener));
            }
            for address in self.resolver {
                tasks.spawn(
                    self.server
                        .clone()
                        .serve_udp(UdpSocket::bind((address, 53)).await?),
                );
                tasks.spawn(
                    self.server
                        .clone()
                        .serve_tcp(TcpListener::bind((address, 53)).await?),
                );
            }
            ready
                .send(Ok(()))
                .context("say that the servers are ready")?;
            tokio::select! {
                _ = stopped => Ok(()),
                Some(ended) = tasks.join_next() => Err(anyhow!("a server ended: {ended:?}")),
            }
        })
    }
}

fn origins(
    plan: &Plan,
    subnet: Subnet,
    identity: &Identity,
    visits: &Visits,
    site: &Arc<Site>,
) -> Vec<(IpAddr, u16, Origin)> {
    let mut origins = Vec::new();
    for host in plan.hosts() {
        for (port, service) in host.services() {
            let origin = Origin {
                place: format!("{}:{port}", host.name),
                service,
                identity: identity.clone(),
                site: Arc::clone(site),
                visits: visits.clone(),
            };
            origins.extend(
                host.all_addresses(subnet)
                    .map(|at| (at, port, origin.clone())),
            );
        }
    }
    origins
}

/// A bridge that every guest is plugged into, with the addresses of all hosts.
fn lay_network(namespace: &Namespace, plan: &Plan, subnet: Subnet) -> anyhow::Result<()> {
    namespace.ip("link add lan0 type bridge")?;
    let (gateway4, gateway6) = subnet.gateway();
    let hosts = plan
        .hosts()
        .iter()
        .flat_map(|host| host.all_addresses(subnet));
    let rest = [gateway4.into(), gateway6.into()]
        .into_iter()
        .chain(subnet.resolver());
    for address in hosts.chain(rest) {
        match address {
            IpAddr::V4(v4) => namespace.ip(&format!("addr add {v4}/24 dev lan0"))?,
            IpAddr::V6(v6) => namespace.ip(&format!("addr add {v6}/64 dev lan0 nodad"))?,
        }
    }
    namespace.ip("link set lan0 up")
}
