//! What the container's network looks like before anything in it is changed.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use report::Ipv6;

/// Addresses that decide what is guarded, who may dial in, and where names are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// The container's own addresses with their networks, without loopback.
    pub(crate) own: Vec<IpNet>,
    /// Where its default routes lead.
    pub(crate) gateways: Vec<IpAddr>,
    /// The resolvers of /etc/resolv.conf.
    pub(crate) resolvers: Vec<IpAddr>,
    /// Whether IPv6 leads anywhere.
    pub(crate) ipv6: Ipv6,
    /// Whether the container's root is another user on the machine.
    pub(crate) remapped: bool,
}

impl Surroundings {
    /// Looks around.
    pub(crate) fn observe() -> io::Result<Self> {
        let own = own_addresses()?;
        let routes6 = read_if_there("/proc/net/ipv6_route")?;
        Ok(Self {
            gateways: gateways4(&read_if_there("/proc/net/route")?)
                .chain(gateways6(&routes6))
                .collect(),
            resolvers: resolvers(&read_if_there("/etc/resolv.conf")?),
            ipv6: ipv6(&own, &routes6),
            own,
            remapped: is_remapped(&read_if_there("/proc/self/uid_map")?),
        })
    }

    /// What the address guard must cover besides the special-purpose blocks: a container may have
    /// a public address, and so may its gateway.
    pub(crate) fn guarded(&self) -> Vec<IpNet> {
        let own = self.own.iter().map(|net| IpNet::from(net.addr()));
        own.chain(self.gateways.iter().copied().map(IpNet::from))
            .collect()
    }
}

fn own_addresses() -> io::Result<Vec<IpNet>> {
    let mut own = Vec::new();
    for interface in getifaddrs()? {
        if interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let address = interface.address.as_ref().and_then(ip);
        let mask = interface.netmask.as_ref().and_then(ip);
        if let (Some(address), Some(mask)) = (address, mask)
            && let Ok(net) = IpNet::with_netmask(address, mask)
        {
            own.push(net);
        }
    }
    Ok(own)
}

fn ip(storage: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

/// `Iface Destination Gateway Flags … Mask …`, addresses as little-endian hexadecimal.
fn gateways4(table: &str) -> impl Iterator<Item = IpAddr> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, destination, gateway, ..] = fields.as_slice() else {
            return None;
        };
        let gateway = u32::from_str_radix(gateway, 16).ok()?.swap_bytes();
        (*destination == "00000000" && gateway != 0).then(|| Ipv4Addr::from_bits(gateway).into())
    })
}

/// `destination length source length next-hop metric … flags interface`, addresses as 32 digits.
fn gateways6(table: &str) -> impl Iterator<Item = IpAddr> + '_ {
    default_routes6(table).filter_map(|fields| {
        let gateway = u128::from_str_radix(fields.get(4)?, 16).ok()?;
        (gateway != 0).then(|| Ipv6Addr::from_bits(gateway).into())
    })
}

fn default_routes6(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| {
            let is_default = fields.get(1).is_some_and(|length| *length == "00");
            // The kernel keeps an unreachable default on `lo` wherever IPv6 exists.
            is_default && fields.last().is_some_and(|interface| *interface != "lo")
        })
}

/// An address beyond link-local means that somebody set IPv6 up, on link at least.
fn ipv6(own: &[IpNet], routes: &str) -> Ipv6 {
    let global = own.iter().any(|net| match net.addr() {
        IpAddr::V6(address) => !address.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    });
    if routes.is_empty() {
        Ipv6::Absent
    } else if global || default_routes6(routes).next().is_some() {
        Ipv6::Routed
    } else {
        Ipv6::Unrouted
    }
}

/// The `nameserver` lines of resolv.conf(5); of an address with a zone, the address.
fn resolvers(text: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("nameserver")
            && let Some(word) = words.next()
            && let Ok(address) = word.split('%').next().unwrap_or(word).parse()
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// The machine's own user namespace maps every id to itself (`user_namespaces(7)`).
fn is_remapped(uid_map: &str) -> bool {
    uid_map
        .split_ascii_whitespace()
        .ne(["0", "0", "4294967295"])
}

fn read_if_there(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_names_the_gateway() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
                     eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\n\
                     eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n";
        assert_eq!(
            gateways4(table).collect::<Vec<_>>(),
            [IpAddr::from([172, 17, 0, 1])]
        );
    }

    #[test]
    fn the_kernels_own_unreachable_route_is_no_way_out() {
        let unreachable = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                           00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";
        let link = IpNet::V6("fe80::1/64".parse().unwrap());
        assert_eq!(ipv6(&[link], unreachable), Ipv6::Unrouted);
        let routed = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                      fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n";
        assert_eq!(ipv6(&[link], routed), Ipv6::Routed);
        assert_eq!(
            gateways6(routed).collect::<Vec<_>>(),
            ["fd00::1".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(ipv6(&[], ""), Ipv6::Absent);
    }

    #[test]
    fn resolvers_are_read_and_what_is_none_is_passed_over() {
        let text = "# comment\nnameserver 127.0.0.11\nsearch x\nnameserver fe80::1%eth0\n\
                    nameserver nonsense\nnameserver 127.0.0.11\noptions ndots:0\n";
        assert_eq!(
            resolvers(text),
            [
                "127.0.0.11".parse::<IpAddr>().unwrap(),
                "fe80::1".parse().unwrap()
            ]
        );
    }

    #[test]
    fn a_remapped_root_is_noticed() {
        assert!(!is_remapped("         0          0 4294967295\n"));
        assert!(is_remapped("         0     100000      65536\n"));
        assert!(is_remapped(
            "         0       1000          1\n         1     100000      65536\n"
        ));
    }

    #[test]
    fn own_addresses_and_gateways_are_guarded_as_single_addresses() {
        let here = Surroundings {
            own: vec!["192.0.2.7/24".parse().unwrap()],
            gateways: vec!["192.0.2.1".parse().unwrap()],
            resolvers: Vec::new(),
            ipv6: Ipv6::Absent,
            remapped: false,
        };
        assert_eq!(
            here.guarded(),
            [
                "192.0.2.7/32".parse::<IpNet>().unwrap(),
                "192.0.2.1/32".parse().unwrap()
            ]
        );
    }

    #[test]
    fn a_route_to_one_network_names_no_gateway() {
        let table = "Iface\tDestination\tGateway\neth0\t000011AC\t010011AC\t0003\n\n";
        assert_eq!(gateways4(table).count(), 0);
    }

    #[test]
    fn every_default_route_names_its_gateway() {
        let table = "header\na 00000000 0101A8C0 0003\nb 00000000 0201A8C0 0003\nc 00000000 00000000 0001\n";
        let expected: [IpAddr; 2] = [[192, 168, 1, 1].into(), [192, 168, 1, 2].into()];
        assert_eq!(gateways4(table).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lines_that_are_no_routes_are_passed_over() {
        for table in [
            "",
            "header",
            "header\nx",
            "header\nx y",
            "header\nx 00000000 zz 1",
        ] {
            assert_eq!(gateways4(table).count(), 0, "{table:?}");
            assert_eq!(gateways6(table).count(), 0, "{table:?}");
        }
    }

    #[test]
    fn an_address_of_ones_own_is_enough_for_ipv6() {
        let own = IpNet::V6("fd00::2/64".parse().unwrap());
        assert_eq!(ipv6(&[own], "some table without a default\n"), Ipv6::Routed);
    }

    #[test]
    fn a_resolver_must_be_an_address() {
        assert_eq!(
            resolvers("nameserver dns.example\nnameserver\nnameserverx 1.1.1.1\n"),
            Vec::<IpAddr>::new()
        );
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let here = Surroundings::observe().unwrap();
        assert!(
            here.own.iter().all(|net| !net.addr().is_loopback()),
            "{here:?}"
        );
    }

    #[test]
    fn no_user_namespace_at_all_is_no_remapping_that_could_be_relied_on() {
        assert!(is_remapped(""));
    }
}
