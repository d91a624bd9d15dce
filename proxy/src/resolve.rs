//! Turns names into addresses, with the resolvers that the container was given and nothing else.
//!
//! No hosts file, no search domains: a name means what the resolver says that it means, whoever can
//! write to files in the container.

mod known;

use std::{
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
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
    proto::rr::{Name, RData, RecordType},
};
use policy::{Host, HostName};
use tokio::time::timeout;

use crate::refusal::{Failure, is_exhaustion};
use known::Known;

/// Resolves names; answers are kept for as long as they say, from 1 s to 1 h.
#[derive(Clone)]
pub(crate) struct Resolver {
    resolver: TokioResolver,
    known: Arc<Known>,
}

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
        Ok(Self {
            resolver: builder.build()?,
            known: Arc::default(),
        })
    }

    /// Every address of `host`, of both families; never none.
    pub(crate) async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, Failure> {
        match host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => match self.known.get(name) {
                Some(addresses) => Ok(addresses),
                // Boxed: it needs much room, and seldom.
                None => Box::pin(self.resolve_name(name)).await,
            },
        }
    }

    /// The records of one type that `name` has, aliases followed; maybe none.
    pub(crate) async fn records(
        &self,
        name: &HostName,
        kind: RecordType,
    ) -> Result<Records, Failure> {
        let looked_up = self.resolver.lookup(absolute(name)?, kind);
        match timeout(RECORD_PATIENCE, looked_up).await {
            Ok(Ok(lookup)) => Ok(Records::of(&lookup, kind)),
            Ok(Err(error)) if error.is_nx_domain() => Err(Failure::NoSuchName),
            Ok(Err(error)) if error.is_no_records_found() => Ok(Records::default()),
            Ok(Err(error)) => Err(failure(&error)),
            Err(_) => Err(Failure::ResolverSilent),
        }
    }

    async fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, Failure> {
        let absolute = absolute(name)?;
        let mut v4 = pin!(self.resolver.lookup(absolute.clone(), RecordType::A));
        let mut v6 = pin!(self.resolver.lookup(absolute, RecordType::AAAA));
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
        let lasting = [&v6, &v4].map(|answer| lifetime(answer.as_ref()));
        let lasting = lasting.into_iter().min().flatten();
        let addresses = merge([v6, v4].into_iter().flatten())?;
        if let Some(lasting) = lasting {
            self.known.insert(name.clone(), addresses.clone(), lasting);
        }
        Ok(addresses)
    }
}

/// What a name has of one type.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) data: Vec<RData>,
    /// For how many seconds that may be believed, every alias on the way included.
    pub(crate) ttl: u32,
}

impl Records {
    fn of(lookup: &Lookup, kind: RecordType) -> Self {
        let answers = lookup.answers();
        let wanted = answers.iter().filter(|record| record.record_type() == kind);
        Self {
            data: wanted.map(|record| record.data.clone()).collect(),
            ttl: answers.iter().map(|record| record.ttl).min().unwrap_or(0),
        }
    }
}

fn absolute(name: &HostName) -> Result<Name, Failure> {
    let mut absolute =
        Name::from_ascii(name.as_str()).map_err(|e| Failure::Resolver(e.to_string()))?;
    absolute.set_fqdn(true);
    Ok(absolute)
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
    let mut cause = Failure::NoSuchName;
    for answer in answers {
        match answer {
            Ok(lookup) => found.extend(addresses(&lookup)),
            Err(error) if error.is_no_records_found() => {}
            Err(error) => cause = failure(&error),
        }
    }
    if found.is_empty() {
        Err(cause)
    } else {
        Ok(found)
    }
}

/// For how long what was answered for one family may be believed; `None` if nothing was.
fn lifetime(answer: Option<&Answer>) -> Option<Duration> {
    match answer? {
        Ok(lookup) => {
            let seconds = lookup.answers().iter().map(|record| record.ttl).min()?;
            Some(Duration::from_secs(seconds.into()))
        }
        Err(error) if error.is_no_records_found() => Some(NEGATIVE_TTL),
        Err(_) => None,
    }
}

/// What an error of asking means.
fn failure(error: &NetError) -> Failure {
    if matches!(error, NetError::Timeout | NetError::NoConnections) {
        return Failure::ResolverSilent;
    }
    let exhausted = matches!(error, NetError::Io(cause) if is_exhaustion(cause));
    if exhausted {
        Failure::Exhausted
    } else {
        Failure::Resolver(error.to_string())
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
    options.negative_min_ttl = Some(NEGATIVE_TTL);
    options.negative_max_ttl = Some(NEGATIVE_TTL);
}

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const NEGATIVE_TTL: Duration = Duration::from_secs(5);
const CACHED_ANSWERS: u64 = 4096;
/// Clients ask again after 5 s, of somebody else if they have heard nothing.
const RECORD_PATIENCE: Duration = Duration::from_millis(4500);
/// RFC 8305 §3 recommends 50 ms; a resolver that has to ask around deserves more.
const RESOLUTION_DELAY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{net::UdpSocket, task::JoinSet, time::Instant};

    use super::*;

    /// How a server treats the queries for one record type.
    #[test]
    fn an_error_of_asking_keeps_its_cause() {
        let io = |errno| NetError::from(std::io::Error::from_raw_os_error(errno));
        assert_eq!(failure(&NetError::Timeout), Failure::ResolverSilent);
        assert_eq!(failure(&io(libc::EMFILE)), Failure::Exhausted);
        assert!(matches!(
            failure(&io(libc::ECONNREFUSED)),
            Failure::Resolver(_)
        ));
    }

    #[derive(Clone, Copy)]
    enum Says {
        Addresses(&'static [&'static str]),
        NoSuchName,
        Failure,
        Nothing,
    }

    const V4: u8 = 1;

    /// A server that treats every name alike, and counts the queries.
    struct Server {
        resolver: Resolver,
        queries: Arc<AtomicUsize>,
        _answering: JoinSet<()>,
    }

    impl Server {
        async fn saying(v4: Says, v6: Says) -> Self {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let resolver = Resolver::new(&[socket.local_addr().unwrap()]).unwrap();
            let queries = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&queries);
            let mut answering = JoinSet::new();
            answering.spawn(async move {
                let mut query = [0; 512];
                while let Ok((_, peer)) = socket.recv_from(&mut query).await {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let end = 12 + query[12..].iter().position(|&b| b == 0).unwrap() + 1;
                    let says = if query[end + 1] == V4 { v4 } else { v6 };
                    if let Some(answer) = answer(&query[..end + 4], says) {
                        socket.send_to(&answer, peer).await.unwrap();
                    }
                }
            });
            Self {
                resolver,
                queries,
                _answering: answering,
            }
        }

        async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
            self.resolver.resolve(&Host::parse(name).unwrap()).await
        }
    }

    /// RFC 1035 §4.1: the question is repeated, answers point back to its name.
    fn answer(question: &[u8], says: Says) -> Option<Vec<u8>> {
        let (code, addresses) = match says {
            Says::Addresses(addresses) => (0, addresses),
            Says::NoSuchName => (3, &[][..]),
            Says::Failure => (2, &[][..]),
            Says::Nothing => return None,
        };
        let count = u8::try_from(addresses.len()).unwrap();
        let mut answer = vec![
            question[0],
            question[1],
            0x81,
            0x80 | code,
            0,
            1,
            0,
            count,
            0,
            0,
            0,
            0,
        ];
        answer.extend(&question[12..]);
        for address in addresses {
            let (kind, data) = match address.parse().unwrap() {
                IpAddr::V4(address) => (V4, address.octets().to_vec()),
                IpAddr::V6(address) => (28, address.octets().to_vec()),
            };
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0]);
            answer.push(u8::try_from(data.len()).unwrap());
            answer.extend(data);
        }
        Some(answer)
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn all_addresses_of_both_families_are_given() {
        let (v4, v6) = (&["192.0.2.1", "192.0.2.2"], &["2001:db8::1"]);
        let server = Server::saying(Says::Addresses(v4), Says::Addresses(v6)).await;
        let found = server.resolve("a.example").await.unwrap();
        assert_eq!(found, ips(&["2001:db8::1", "192.0.2.1", "192.0.2.2"]));
    }

    #[tokio::test]
    async fn one_family_is_enough() {
        let v6 = Says::Addresses(&["2001:db8::1"]);
        let server = Server::saying(Says::NoSuchName, v6).await;
        assert_eq!(
            server.resolve("a.example").await.unwrap(),
            ips(&["2001:db8::1"])
        );
    }

    #[tokio::test]
    async fn a_family_that_is_never_answered_does_not_hold_up_the_other() {
        let server = Server::saying(Says::Addresses(&["192.0.2.1"]), Says::Nothing).await;
        let began = Instant::now();
        assert_eq!(
            server.resolve("a.example").await.unwrap(),
            ips(&["192.0.2.1"])
        );
        assert!(began.elapsed() < QUERY_TIMEOUT, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn an_answer_is_asked_for_once() {
        let v4 = Says::Addresses(&["192.0.2.1"]);
        let server = Server::saying(v4, Says::Addresses(&["2001:db8::1"])).await;
        for _ in 0..3 {
            server.resolve("a.example").await.unwrap();
        }
        assert_eq!(server.queries.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_name_that_does_not_exist_is_told_from_a_resolver_that_fails() {
        let server = Server::saying(Says::NoSuchName, Says::NoSuchName).await;
        assert_eq!(server.resolve("a.example").await, Err(Failure::NoSuchName));
        let server = Server::saying(Says::Addresses(&[]), Says::Addresses(&[])).await;
        assert_eq!(server.resolve("a.example").await, Err(Failure::NoSuchName));
        let server = Server::saying(Says::Failure, Says::Failure).await;
        let failure = server.resolve("a.example").await.unwrap_err();
        assert!(matches!(failure, Failure::Resolver(_)), "{failure:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_does_not_answer_is_not_waited_for_for_long() {
        let server = Server::saying(Says::Nothing, Says::Nothing).await;
        let began = Instant::now();
        assert_eq!(
            server.resolve("a.example").await,
            Err(Failure::ResolverSilent)
        );
        assert!(
            began.elapsed() < crate::dial::PATIENCE,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn an_address_needs_no_resolver() {
        let server = Server::saying(Says::Failure, Says::Failure).await;
        assert_eq!(
            server.resolve("192.0.2.7").await.unwrap(),
            ips(&["192.0.2.7"])
        );
        assert_eq!(server.queries.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_name_is_known_only_once_both_families_were_answered() {
        let name = HostName::parse("a.example").unwrap();
        for (v6, is_known) in [
            (Says::Addresses(&["2001:db8::1"]), true),
            (Says::NoSuchName, true),
            (Says::Failure, false),
            (Says::Nothing, false),
        ] {
            let server = Server::saying(Says::Addresses(&["203.0.113.7"]), v6).await;
            assert!(server.resolve("a.example").await.is_ok());
            assert_eq!(server.resolver.known.get(&name).is_some(), is_known);
        }
    }
}
