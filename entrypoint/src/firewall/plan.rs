//! Everything that the rules depend on, whichever part of the kernel they are loaded into.

use std::{
    collections::BTreeSet,
    net::{self, IpAddr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use policy::{AddressRule, NameRule, Policy, PortRange};

use crate::{
    allow::ALLOW, failure::Failure, ingress::IngressPort, listeners::DnsPorts,
    surroundings::Surroundings,
};

/// Everything that the rules depend on.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Who may dial.
    pub(crate) proxy_uid: u32,
    /// The listener that redirected connections over IPv4 arrive at.
    pub(crate) redirect4: u16,
    /// The same over IPv6, where the container has it.
    pub(crate) redirect6: Option<u16>,
    /// Where DNS over IPv4 is answered.
    pub(crate) dns4: DnsPorts,
    /// The same over IPv6.
    pub(crate) dns6: Option<DnsPorts>,
    /// Ports whose streams carry a name.
    pub(crate) stream_ports: BTreeSet<u16>,
    /// What may be reached by address.
    pub(crate) ranges: Vec<AddressRule>,
    /// Guarded ranges that an entry names.
    pub(crate) lifted: Vec<IpNet>,
    /// What the proxy must not dial.
    pub(crate) guarded: Vec<IpNet>,
    /// The port of the proxy that this network demands, if it does.
    pub(crate) upstream_port: Option<u16>,
    /// What may be dialled from outside.
    pub(crate) ingress: Vec<IngressPort>,
    /// The container's addresses, gateways and resolvers.
    pub(crate) here: Surroundings,
}

impl Plan {
    /// The same with another list.
    pub(super) fn following(&self, policy: &Policy) -> Self {
        Self {
            stream_ports: policy.stream_ports(),
            ranges: policy.address_rules(),
            lifted: policy.lifted_ranges(),
            ..self.clone()
        }
    }

    /// Where lifting the guard makes a difference.
    pub(super) fn lifted_and_guarded(&self) -> Vec<IpNet> {
        guarded_of(&self.lifted, &self.guarded)
    }

    /// Root, as this namespace sees it: the daemon's root too, where the container's is another.
    pub(super) fn root_uids(&self) -> impl Iterator<Item = u32> + use<> {
        root_uids(&self.here)
    }
}

/// Everything that these rules depend on.
#[derive(Debug, Clone)]
pub(crate) struct AddressPlan {
    /// The ports that some name may be reached on.
    pub(crate) ports: BTreeSet<PortRange>,
    /// What may be reached by address.
    pub(crate) ranges: Vec<AddressRule>,
    /// What must not be, whatever resolves to it.
    pub(crate) denied: Vec<AddressRule>,
    /// Guarded ranges that an entry names.
    pub(crate) lifted: Vec<IpNet>,
    /// What no name may lead to.
    pub(crate) guarded: Vec<IpNet>,
    /// What may be dialled from outside.
    pub(crate) ingress: Vec<IngressPort>,
    /// The container's addresses, gateways and resolvers.
    pub(crate) here: Surroundings,
}

impl AddressPlan {
    /// The plan of this list, here.
    ///
    /// # Errors
    /// Where it takes more rules than a packet should have to pass.
    pub(crate) fn of(
        policy: &Policy,
        ingress: Vec<IngressPort>,
        here: Surroundings,
    ) -> Result<Self, Failure> {
        let mut guarded = policy::guarded_ranges();
        guarded.extend(here.guarded());
        let names = policy.name_rules();
        let ports: BTreeSet<_> = names.iter().flat_map(NameRule::ports).collect();
        if ports.len() > MOST_PORT_RANGES {
            return Err(Failure::config(
                ALLOW,
                format_args!("{} different ranges of ports on names", ports.len()),
                format!("name at most {MOST_PORT_RANGES} where addresses decide"),
            ));
        }
        Ok(Self {
            ports,
            ranges: policy.address_rules(),
            denied: policy.denied_addresses(),
            lifted: policy.lifted_ranges(),
            guarded,
            ingress,
            here,
        })
    }

    /// The same with another list.
    pub(super) fn following(&self, policy: &Policy) -> Result<Self, Failure> {
        Self::of(policy, self.ingress.clone(), self.here.clone())
    }
}

/// Those of the ranges that have something in common with what is guarded: a list may name a hundred
/// thousand that have not.
pub(super) fn guarded_of(ranges: &[IpNet], guarded: &[IpNet]) -> Vec<IpNet> {
    let overlaps = |range: &&IpNet| {
        let mut guarded = guarded.iter();
        guarded.any(|guarded| guarded.contains(*range) || range.contains(guarded))
    };
    ranges.iter().filter(overlaps).copied().collect()
}

/// Root, as this namespace sees it: the daemon's root too, where the container's is another.
pub(super) fn root_uids(here: &Surroundings) -> impl Iterator<Item = u32> + use<> {
    let overflow = here.remapped.then_some(OVERFLOW_UID);
    [0].into_iter().chain(overflow)
}

/// What never leaves, by destination.
pub(super) const LOOPBACK: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(net::Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(net::Ipv6Addr::LOCALHOST, 128)),
];
/// Resolvers of the engine's that have an address of loopback for themselves, and so listen
/// there at a port that is not 53 and that anybody can find.
pub(super) fn resolvers_apart(here: &Surroundings) -> BTreeSet<IpAddr> {
    let resolvers = here.resolvers.iter().copied();
    let apart = resolvers.filter(|&resolver| {
        resolver.is_loopback() && ![V4_LOCALHOST, V6_LOCALHOST].contains(&resolver)
    });
    apart.chain([DOCKERS_RESOLVER]).collect()
}

const V4_LOCALHOST: IpAddr = IpAddr::V4(net::Ipv4Addr::LOCALHOST);
const V6_LOCALHOST: IpAddr = IpAddr::V6(net::Ipv6Addr::LOCALHOST);
/// Where docker's listens on networks that users make, whatever /etc/resolv.conf has come to say.
const DOCKERS_RESOLVER: IpAddr = IpAddr::V4(net::Ipv4Addr::new(127, 0, 0, 11));
const OVERFLOW_UID: u32 = 65534;
/// Each wide one has rules of its own, which a packet passes one by one.
const MOST_PORT_RANGES: usize = 256;

#[cfg(test)]
pub(super) mod tests {
    use report::Ipv6;

    use super::*;

    /// A plan with something of everything.
    pub(in crate::firewall) fn plan(list: &str, ingress: &[&str]) -> Plan {
        let policy = Policy::parse(list).unwrap();
        Plan {
            proxy_uid: 990,
            redirect4: 40_004,
            redirect6: Some(40_006),
            dns4: DnsPorts {
                udp: 40_014,
                tcp: 40_024,
            },
            dns6: Some(DnsPorts {
                udp: 40_016,
                tcp: 40_026,
            }),
            stream_ports: policy.stream_ports(),
            ranges: policy.address_rules(),
            lifted: policy.lifted_ranges(),
            guarded: policy::guarded_ranges(),
            upstream_port: Some(3129),
            ingress: ingress.iter().map(|item| item.parse().unwrap()).collect(),
            here: Surroundings {
                own: vec![
                    "172.17.0.2/16".parse().unwrap(),
                    "fd00::2/64".parse().unwrap(),
                ],
                gateways: vec!["172.17.0.1".parse().unwrap()],
                resolvers: vec!["127.0.0.11".parse().unwrap(), "10.0.0.53".parse().unwrap()],
                ipv6: Ipv6::Routed,
                remapped: true,
            },
        }
    }

    fn address_plan(list: &str) -> Result<AddressPlan, Failure> {
        let here = plan("a.example", &[]).here;
        AddressPlan::of(&Policy::parse(list).unwrap(), Vec::new(), here)
    }

    #[test]
    fn so_many_ranges_of_ports_and_no_more_also_of_another_list() {
        let list = |count: u16| {
            let entry = |n: u16| format!("n{n}.example:{}-{}", 1000 + n * 20, 1018 + n * 20);
            let entries: Vec<String> = (0..count).map(entry).collect();
            entries.join(",")
        };
        let most = address_plan(&list(256)).unwrap();
        assert_eq!(most.ports.len(), 256);
        let next = Policy::parse(&list(257)).unwrap();
        for refused in [address_plan(&list(257)), most.following(&next)] {
            let refused = refused.unwrap_err().one_line();
            assert!(
                refused.contains("257") && refused.contains("at most 256"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_containers_own_addresses_are_guarded_whatever_the_list() {
        let first = address_plan("a.example").unwrap();
        let next = first.following(&Policy::parse("b.example:22").unwrap());
        for plan in [first, next.unwrap()] {
            let guarded = plan.guarded;
            assert!(
                guarded.contains(&"172.17.0.2/32".parse().unwrap()),
                "{guarded:?}"
            );
        }
    }

    #[test]
    fn the_guard_is_lifted_where_there_is_one() {
        let nets =
            |list: &[&str]| -> Vec<IpNet> { list.iter().map(|net| net.parse().unwrap()).collect() };
        let guarded = nets(&["10.0.0.0/8", "fd00::/8"]);
        let ranges = [
            "10.1.0.0/16",
            "8.0.0.0/6",
            "45.0.0.1/32",
            "fd00::1/128",
            "::/0",
        ];
        let left = ["10.1.0.0/16", "8.0.0.0/6", "fd00::1/128", "::/0"];
        assert_eq!(guarded_of(&nets(&ranges), &guarded), nets(&left));
    }

    #[test]
    fn another_list_changes_what_depends_on_it_and_nothing_else() {
        let before = plan("a.example:8443/tls, 10.0.0.0/8:22", &["tcp:8000"]);
        let next = Policy::parse("b.example@192.168.0.0/16").unwrap();
        let after = before.following(&next);
        assert_eq!(after.stream_ports, [80, 443].into());
        assert!(after.ranges.is_empty());
        assert_eq!(after.lifted, ["192.168.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(after.proxy_uid, before.proxy_uid);
        assert_eq!(after.guarded, before.guarded);
        assert_eq!(after.ingress.len(), 1);
    }
}
