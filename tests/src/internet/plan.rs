//! Who is on the fake internet, read from `internet.toml`, and under which addresses in one lab.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Context;
use serde::Deserialize;

/// The last part of the name server's address.
const RESOLVER: u8 = 53;
/// The last part of the address that routes out of the lab, were there an outside.
const GATEWAY: u8 = 1;

/// The two networks of a lab. Both ranges are special-purpose ones (RFC 2544, RFC 4193), so that
/// nothing on any real network is ever meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    number: u8,
}

impl Subnet {
    /// The lab's networks by its number.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self { number }
    }

    /// `198.18.N.0/24`.
    #[must_use]
    pub fn v4_net(self) -> String {
        format!("198.18.{}.0/24", self.number)
    }

    /// `fd5e:198:18:N::/64`.
    #[must_use]
    pub fn v6_net(self) -> String {
        format!("fd5e:198:18:{}::/64", self.number)
    }

    /// The IPv4 address with this last part.
    #[must_use]
    pub const fn v4(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, last)
    }

    /// The IPv6 address whose last group *reads* like `last` in decimal: `::10` for 10.
    #[must_use]
    pub fn v6(self, last: u8) -> Ipv6Addr {
        Ipv6Addr::new(
            0xfd5e,
            0x198,
            0x18,
            as_read(self.number),
            0,
            0,
            0,
            as_read(last),
        )
    }

    /// Where the name server is.
    #[must_use]
    pub fn resolver(self) -> [IpAddr; 2] {
        [self.v4(RESOLVER).into(), self.v6(RESOLVER).into()]
    }

    /// Where a default route leads.
    #[must_use]
    pub fn gateway(self) -> (Ipv4Addr, Ipv6Addr) {
        (self.v4(GATEWAY), self.v6(GATEWAY))
    }

    /// Fills `{v4}`, `{v6}`, `{net4}` and `{net6}` in the text of a case: the lab's prefixes, as in
    /// `{v4}.66` and `{v6}::66`, and its networks.
    #[must_use]
    pub fn fill(self, text: &str) -> String {
        text.replace("{v4}", &format!("198.18.{}", self.number))
            .replace("{v6}", &format!("fd5e:198:18:{}", self.number))
            .replace("{net4}", &self.v4_net())
            .replace("{net6}", &self.v6_net())
    }
}

/// What a host speaks on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Tls,
    Http,
    /// Calls that are answered with what they said, over TLS.
    Grpc,
    /// Whatever the site hands connections to; see [`Site`](super::Site).
    Ssh,
    /// A banner first, then an echo: what an SSH server looks like from afar.
    Tcp,
}

/// The hosts and names of `internet.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    #[serde(rename = "host")]
    hosts: Vec<Host>,
    #[serde(rename = "record")]
    records: Vec<Record>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) name: String,
    number: u8,
    #[serde(default = "both_families")]
    families: Vec<Family>,
    #[serde(default)]
    tls: Vec<u16>,
    #[serde(default)]
    http: Vec<u16>,
    #[serde(default)]
    grpc: Vec<u16>,
    #[serde(default)]
    ssh: Vec<u16>,
    #[serde(default)]
    tcp: Vec<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Family {
    V4,
    V6,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    name: String,
    #[serde(default)]
    cname: Option<String>,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    /// The hosts of these numbers besides.
    #[serde(default)]
    hosts: Vec<u8>,
    /// Where the name is from the second question on.
    #[serde(default)]
    then: Vec<u8>,
    /// How long answers may be kept, in seconds.
    #[serde(default = "a_minute")]
    ttl: u32,
}

/// What the name server knows of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cname: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
    /// What takes their place from the second question of a type on, unless it is nothing.
    pub(crate) then: Vec<IpAddr>,
    /// How long an answer may be kept, in seconds.
    pub(crate) ttl: u32,
}

/// Lower-case names without their last dot.
pub(crate) type Zone = HashMap<String, Entry>;

impl Plan {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/internet.toml");
        let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        toml::from_str(&text).with_context(|| format!("parse {path}"))
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub(crate) fn zone(&self, subnet: Subnet) -> Zone {
        let hosts = self.hosts.iter().map(|host| {
            (
                host.name.clone(),
                Entry {
                    cname: None,
                    addresses: host.addresses(subnet),
                    then: Vec::new(),
                    ttl: a_minute(),
                },
            )
        });
        let records = self.records.iter().map(|record| {
            let entry = Entry {
                cname: record.cname.clone(),
                addresses: [record.addresses.clone(), both(&record.hosts, subnet)].concat(),
                then: both(&record.then, subnet),
                ttl: record.ttl,
            };
            (record.name.clone(), entry)
        });
        hosts.chain(records).collect()
    }
}

impl Host {
    /// Every host has both addresses, whichever of them its name resolves to: a test may aim at
    /// the other one.
    pub(crate) fn all_addresses(&self, subnet: Subnet) -> [IpAddr; 2] {
        [subnet.v4(self.number).into(), subnet.v6(self.number).into()]
    }

    fn addresses(&self, subnet: Subnet) -> Vec<IpAddr> {
        let wanted = |address: &IpAddr| match address {
            IpAddr::V4(_) => self.families.contains(&Family::V4),
            IpAddr::V6(_) => self.families.contains(&Family::V6),
        };
        self.all_addresses(subnet)
            .into_iter()
            .filter(wanted)
            .collect()
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = (u16, Service)> {
        [
            (&self.tls, Service::Tls),
            (&self.http, Service::Http),
            (&self.grpc, Service::Grpc),
            (&self.ssh, Service::Ssh),
            (&self.tcp, Service::Tcp),
        ]
        .into_iter()
        .flat_map(|(ports, service)| ports.iter().map(move |port| (*port, service)))
    }
}

/// The addresses of the hosts with these numbers.
fn both(numbers: &[u8], subnet: Subnet) -> Vec<IpAddr> {
    let pairs = numbers
        .iter()
        .map(|&last| [subnet.v4(last).into(), subnet.v6(last).into()]);
    pairs.flatten().collect()
}

const fn a_minute() -> u32 {
    60
}

fn both_families() -> Vec<Family> {
    vec![Family::V4, Family::V6]
}

/// The hexadecimal number that is written with the decimal digits of `number`.
fn as_read(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) * 0x100 + (number / 10 % 10) * 0x10 + number % 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_a_host_read_alike() {
        let subnet = Subnet::new(207);
        assert_eq!(subnet.v4(66).to_string(), subnet.fill("{v4}.66"));
        assert_eq!(subnet.v6(66).to_string(), subnet.fill("{v6}::66"));
    }

    #[test]
    fn the_plan_gives_every_host_an_address_of_its_own() {
        let plan = Plan::read().unwrap();
        let mut numbers: Vec<_> = plan.hosts.iter().map(|host| host.number).collect();
        numbers.extend([RESOLVER, GATEWAY]);
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    #[test]
    fn a_name_of_one_family_has_no_address_of_the_other() {
        let zone = Plan::read().unwrap().zone(Subnet::new(1));
        assert_eq!(
            zone["v4only.test"].addresses,
            [IpAddr::from(Ipv4Addr::new(198, 18, 1, 40))]
        );
        assert_eq!(zone["allowed.test"].addresses.len(), 2);
    }
}
