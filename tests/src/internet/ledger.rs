//! What reached the fake internet, as the internet saw it.
//!
//! Two accounts are kept. The origins write down each request that they served. nftables, below
//! them, counts every packet that opens something, whoever it was for and whether anyone listened:
//! what a test says did not leave the guest is in neither.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Context;
use serde_json::Value;

use crate::{namespace::Namespace, process::output_of};

/// Adds every packet that opens a flow to a set. Neighbour discovery and the like are multicast; an
/// error of ICMP is the answer to what somebody else opened.
const RULES: &str = "
table inet ledger {
    set flows4 { type ipv4_addr . inet_proto . inet_service; flags dynamic; size 65535; }
    set flows6 { type ipv6_addr . inet_proto . inet_service; flags dynamic; size 65535; }
    set pings4 { type ipv4_addr . inet_proto; flags dynamic; size 65535; }
    set pings6 { type ipv6_addr . inet_proto; flags dynamic; size 65535; }
    chain arriving {
        type filter hook prerouting priority -300;
        iifname != lan0 accept
        ip daddr 224.0.0.0/3 accept
        ip6 daddr ff00::/8 accept
        tcp flags & (syn | ack) != syn meta l4proto tcp accept
        meta l4proto { tcp, udp } add @flows4 { ip daddr . meta l4proto . th dport } accept
        meta l4proto { tcp, udp } add @flows6 { ip6 daddr . meta l4proto . th dport } accept
        icmp type { destination-unreachable, time-exceeded } accept
        icmpv6 type { destination-unreachable, packet-too-big, time-exceeded } accept
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        add @pings4 { ip daddr . meta l4proto }
        add @pings6 { ip6 daddr . meta l4proto }
    }
}";

/// A flow that was opened, or an attempt to: `tcp` with a port, `icmp` without.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// Where to.
    pub address: IpAddr,
    /// The protocol over IP, as nftables spells it.
    pub protocol: String,
    /// Its port, where the protocol has ports.
    pub port: Option<u16>,
}

/// Starts counting in `namespace`.
pub(crate) fn open(namespace: &Namespace) -> anyhow::Result<()> {
    output_of(namespace.command("nft").arg(RULES))
        .context("count what arrives")
        .map(drop)
}

/// Everything that arrived since the last reset.
pub(crate) fn read(namespace: &Namespace) -> anyhow::Result<BTreeSet<Arrival>> {
    let listing = output_of(
        namespace
            .command("nft")
            .args(["-j", "list", "table", "inet", "ledger"]),
    )?;
    parse(&listing)
}

/// Forgets what arrived.
pub(crate) fn reset(namespace: &Namespace) -> anyhow::Result<()> {
    let flush = ["flows4", "flows6", "pings4", "pings6"]
        .map(|set| format!("flush set inet ledger {set}"))
        .join("; ");
    output_of(namespace.command("nft").arg(flush)).map(drop)
}

fn parse(listing: &str) -> anyhow::Result<BTreeSet<Arrival>> {
    let listing: Value = serde_json::from_str(listing).context("read the listing of nft")?;
    let objects = listing
        .get("nftables")
        .and_then(Value::as_array)
        .context("no nftables array")?;
    objects
        .iter()
        .filter_map(|object| object.pointer("/set/elem")?.as_array())
        .flatten()
        .map(|element| arrival(element).with_context(|| format!("element {element}")))
        .collect()
}

/// An element is a concatenation, bare or, where the kernel adds to it, inside `elem`.
fn arrival(element: &Value) -> Option<Arrival> {
    let element = element.pointer("/elem/val").unwrap_or(element);
    let mut parts = element.get("concat")?.as_array()?.iter();
    let address = parts.next()?.as_str()?.parse().ok()?;
    // A number where nft knows no name for it.
    let protocol = parts.next()?;
    let protocol = protocol
        .as_str()
        .map_or_else(|| protocol.to_string(), str::to_owned);
    let port = match parts.next() {
        Some(port) => Some(u16::try_from(port.as_u64()?).ok()?),
        None => None,
    };
    Some(Arrival {
        address,
        protocol,
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_with_and_without_a_port() {
        let listing = r#"{"nftables":[{"metainfo":{}},{"set":{"elem":[
            {"concat":["198.18.1.10","tcp",443]},{"elem":{"val":{"concat":["fd5e::1","udp",53]}}}]}},
            {"set":{"elem":[{"concat":["198.18.1.10","icmp"]}]}},{"set":{"name":"empty"}}]}"#;
        let arrivals: Vec<_> = parse(listing)
            .unwrap()
            .into_iter()
            .map(|a| (a.address.to_string(), a.protocol, a.port))
            .collect();
        assert_eq!(
            arrivals,
            [
                ("198.18.1.10".into(), "icmp".into(), None),
                ("198.18.1.10".into(), "tcp".into(), Some(443)),
                ("fd5e::1".to_owned(), "udp".to_owned(), Some(53)),
            ]
        );
    }
}
