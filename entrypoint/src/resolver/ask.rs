//! Asks for the addresses of a name, and for nothing else.
//!
//! No hosts file, no search domains, nothing kept: a name means what the container's resolvers say
//! that it means, each time anew.

use std::{net::IpAddr, time::Duration};

use hickory_resolver::{
    Resolver as HickoryResolver, TokioResolver,
    config::{
        NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
    },
    lookup::Lookup,
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{Name, RecordType},
};
use policy::HostName;

use super::words::MOST_ADDRESSES;

/// Who is asked.
#[derive(Clone)]
pub(super) struct Ask(TokioResolver);

/// Of which family addresses are asked for. Each has questions and answers of its own: there are
/// resolvers that never answer for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// What was heard of one name and family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Its addresses; none where it has none, or nobody answered.
    pub(super) addresses: Vec<IpAddr>,
    /// For how many seconds they may be believed.
    pub(super) ttl: u32,
}

impl Ask {
    /// Asks `servers` in their order, over UDP and, where an answer does not fit, TCP.
    pub(super) fn new(servers: &[(IpAddr, u16)]) -> Result<Self, NetError> {
        let servers = servers.iter().map(|&(address, port)| {
            let mut config = NameServerConfig::udp_and_tcp(address);
            for connection in &mut config.connections {
                connection.port = port;
            }
            config
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        let mut builder =
            HickoryResolver::builder_with_config(config, TokioRuntimeProvider::default());
        set(builder.options_mut());
        builder.build().map(Self)
    }

    /// What `name` resolves to, aliases followed.
    pub(super) async fn addresses(&self, name: &HostName, family: Family) -> Heard {
        let Ok(mut absolute) = Name::from_ascii(name.as_str()) else {
            return Heard::default();
        };
        absolute.set_fqdn(true);
        let kind = match family {
            Family::V4 => RecordType::A,
            Family::V6 => RecordType::AAAA,
        };
        let answer = self.0.lookup(absolute, kind).await;
        answer.map_or_else(|_| Heard::default(), |lookup| Heard::of(&lookup))
    }
}

impl Heard {
    fn of(lookup: &Lookup) -> Self {
        let records = lookup.answers();
        let addresses = records.iter().filter_map(|record| record.data.ip_addr());
        Self {
            addresses: addresses.take(MOST_ADDRESSES).collect(),
            ttl: records.iter().map(|record| record.ttl).min().unwrap_or(0),
        }
    }
}

fn set(options: &mut ResolverOpts) {
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = 2;
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    options.cache_size = 0;
}

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use tokio::{net::UdpSocket, task::JoinSet};

    use super::*;

    /// Answers every question with these records, given as type, seconds and data; of one that has
    /// none, says that there is no such name.
    async fn server(records: Vec<(u8, u8, Vec<u8>)>) -> (Ask, JoinSet<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let ask = Ask::new(&[(address.ip(), address.port())]).unwrap();
        let mut answering = JoinSet::new();
        answering.spawn(async move {
            let mut query = [0; 512];
            while let Ok((_, peer)) = socket.recv_from(&mut query).await {
                let end = 12 + query[12..].iter().position(|&b| b == 0).unwrap() + 5;
                let code = if records.is_empty() { 3 } else { 0 };
                let count = u8::try_from(records.len()).unwrap();
                let mut answer = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, count];
                answer.extend([0, 0, 0, 0]);
                answer.extend(&query[12..end]);
                for (kind, seconds, data) in &records {
                    answer.extend([0xc0, 12, 0, *kind, 0, 1, 0, 0, 0, *seconds, 0]);
                    answer.push(u8::try_from(data.len()).unwrap());
                    answer.extend(data);
                }
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
        (ask, answering)
    }

    fn name() -> HostName {
        HostName::parse("a.example").unwrap()
    }

    #[tokio::test]
    async fn an_answer_lasts_as_long_as_its_shortest_record() {
        let records = vec![(1, 60, vec![203, 0, 113, 7]), (1, 9, vec![203, 0, 113, 8])];
        let (ask, _answering) = server(records).await;
        let heard = ask.addresses(&name(), Family::V4).await;
        let expected: [IpAddr; 2] = [
            Ipv4Addr::new(203, 0, 113, 7).into(),
            Ipv4Addr::new(203, 0, 113, 8).into(),
        ];
        assert_eq!((&heard.addresses[..], heard.ttl), (&expected[..], 9));
    }

    #[tokio::test]
    async fn each_family_is_asked_for_by_itself() {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
        let (ask, _answering) = server(vec![(28, 60, address.octets().to_vec())]).await;
        let heard = ask.addresses(&name(), Family::V6).await;
        assert_eq!(heard.addresses, [IpAddr::from(address)]);
    }

    #[tokio::test]
    async fn a_name_that_does_not_exist_has_no_addresses() {
        let (ask, _answering) = server(Vec::new()).await;
        assert_eq!(ask.addresses(&name(), Family::V4).await, Heard::default());
    }

    #[tokio::test]
    async fn more_addresses_than_are_opened_are_left_out() {
        let records = (0..100).map(|n| (1, 60, vec![203, 0, 113, n])).collect();
        let (ask, _answering) = server(records).await;
        let heard = ask.addresses(&name(), Family::V4).await;
        assert!(
            heard.addresses.len() <= MOST_ADDRESSES,
            "{}",
            heard.addresses.len()
        );
    }

    #[tokio::test]
    async fn nothing_is_kept_between_two_questions() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let ask = Ask::new(&[(address.ip(), address.port())]).unwrap();
        let mut answering = JoinSet::new();
        answering.spawn(async move {
            let mut query = [0; 512];
            for last in 0..=u8::MAX {
                let (_, peer) = socket.recv_from(&mut query).await.unwrap();
                let end = 12 + query[12..].iter().position(|&b| b == 0).unwrap() + 5;
                let mut answer = vec![query[0], query[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
                answer.extend(&query[12..end]);
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, last]);
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
        let first = ask.addresses(&name(), Family::V4).await;
        let second = ask.addresses(&name(), Family::V4).await;
        assert_eq!(first.addresses.len(), 1);
        assert_ne!(first.addresses, second.addresses);
    }
}
