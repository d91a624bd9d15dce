//! Turns names into addresses, with the resolvers that the container was given and nothing else.
//!
//! No hosts file, no search domains: a name means what the resolver says that it means, whoever can
//! write to files in the container.

use std::{
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    time::Duration,
};

use hickory_resolver::{
    Resolver as HickoryResolver, TokioResolver,
    config::{
        LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
        ServerOrderingStrategy,
    },
    lookup::Lookup,
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{Name, RecordType},
};
use policy::{Host, HostName};
use tokio::time::timeout;

use crate::refusal::Failure;

/// Resolves names; answers are kept for as long as they say, from 1 s to 1 h.
#[derive(Clone)]
pub(crate) struct Resolver(TokioResolver);

impl Resolver {
    /// A resolver that asks `servers` in their order, over UDP and, where an answer does not fit, TCP.
    pub(crate) fn new(servers: &[SocketAddr]) -> Result<Self, NetError> {
        let servers = servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut config.connections {
                connection.port = server.port();
            }
            config
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        let mut builder =
            HickoryResolver::builder_with_config(config, TokioRuntimeProvider::default());
        set(builder.options_mut());
        Ok(Self(builder.build()?))
    }

    /// Every address of `host`, of both families; never none.
    pub(crate) async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, Failure> {
        match host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => self.resolve_name(name).await,
        }
    }

    async fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, Failure> {
        let mut absolute =
            Name::from_ascii(name.as_str()).map_err(|e| Failure::Resolver(e.to_string()))?;
        absolute.set_fqdn(true);
        let mut v4 = pin!(self.0.lookup(absolute.clone(), RecordType::A));
        let mut v6 = pin!(self.0.lookup(absolute, RecordType::AAAA));
        let (v4, v6) = tokio::select! {
            v4 = &mut v4 => {
                let v6 = patient_if_alone(v6, &v4).await;
                (Some(v4), v6)
            }
            v6 = &mut v6 => {
                let v4 = patient_if_alone(v4, &v6).await;
                (v4, Some(v6))
            }
        };
        merge([v6, v4].into_iter().flatten())
    }
}

type Answer = Result<Lookup, NetError>;

/// Waits for the other family: shortly if the first gave addresses to go on with, as there are
/// resolvers that never answer for one of them (RFC 8305 §3).
async fn patient_if_alone(
    other: Pin<&mut impl Future<Output = Answer>>,
    first: &Answer,
) -> Option<Answer> {
    let has_addresses = first
        .as_ref()
        .is_ok_and(|lookup| addresses(lookup).next().is_some());
    if has_addresses {
        timeout(RESOLUTION_DELAY, other).await.ok()
    } else {
        Some(other.await)
    }
}

/// All addresses, or the most telling of the errors.
fn merge(answers: impl Iterator<Item = Answer>) -> Result<Vec<IpAddr>, Failure> {
    let mut found = Vec::new();
    let mut failure = Failure::NoSuchName;
    for answer in answers {
        match answer {
            Ok(lookup) => found.extend(addresses(&lookup)),
            Err(error) if error.is_no_records_found() => {}
            Err(NetError::Timeout | NetError::NoConnections) => failure = Failure::ResolverSilent,
            Err(error) => failure = Failure::Resolver(error.to_string()),
        }
    }
    if found.is_empty() {
        Err(failure)
    } else {
        Ok(found)
    }
}

fn addresses(lookup: &Lookup) -> impl Iterator<Item = IpAddr> + '_ {
    lookup
        .answers()
        .iter()
        .filter_map(|record| record.data.ip_addr())
}

fn set(options: &mut ResolverOpts) {
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = 2;
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    options.cache_size = CACHED_ANSWERS;
    options.positive_min_ttl = Some(Duration::from_secs(1));
    options.positive_max_ttl = Some(Duration::from_secs(3600));
    options.negative_min_ttl = Some(Duration::from_secs(5));
    options.negative_max_ttl = Some(Duration::from_secs(5));
}

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const CACHED_ANSWERS: u64 = 4096;
/// RFC 8305 §3 recommends 50 ms; a resolver that has to ask around deserves more.
const RESOLUTION_DELAY: Duration = Duration::from_millis(250);
