//! The address guard: where no name may lead unless an entry says so.
//!
//! A name on the list is a promise about a service, not about an address. Whoever holds the name's
//! DNS could point it at the host's own network or at a cloud's metadata service, so every answer
//! is judged before it is dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use crate::net;
use crate::special::{AddressClass, BLOCKS_V4, BLOCKS_V6, Block};

/// The class of a guarded address, `None` for one that anybody may be sent to.
///
/// An address that carries an IPv4 address (v4-mapped, v4-compatible, NAT64 under its well-known
/// prefix, 6to4) is judged by that one, since that is where the packet ends up.
#[must_use]
pub fn is_guarded(address: IpAddr) -> Option<AddressClass> {
    match address.to_canonical() {
        IpAddr::V4(address) => class_v4(address),
        IpAddr::V6(address) => class_v6(address),
    }
}

/// The guarded addresses as ranges that do not overlap, as an nftables interval set wants them.
///
/// They hold exactly the addresses for which [`is_guarded`] has a class, and all v4-mapped ones
/// besides: no packet may ever carry such a destination.
#[must_use]
pub fn guarded_ranges() -> Vec<IpNet> {
    let v4 = BLOCKS_V4.iter().map(|block| block.net);
    let v6 = BLOCKS_V6.iter().map(|block| block.net);
    let embedded = BLOCKS_V4.iter().flat_map(|block| embeddings(block.net));
    let unassigned = UNASSIGNED
        .into_iter()
        .flat_map(|range| net::subtract(range.into(), NAT64.into()));
    IpNet::aggregate(&v4.chain(v6).chain(embedded).chain(unassigned).collect())
}

/// The range to name in an entry that is to lift the guard for this address: the private network
/// that it is in, else nothing but itself.
pub(crate) fn range_around(address: IpAddr) -> IpNet {
    let address = address.to_canonical();
    let blocks = BLOCKS_V4.iter().chain(&BLOCKS_V6);
    blocks
        .filter(|block| is_network(block.class))
        .map(|block| block.net)
        .find(|net| net.contains(&address))
        .unwrap_or_else(|| net::of_address(address))
}

/// Whether a block of this class is somebody's own network, with services in it, rather than a
/// single machine or a mechanism.
fn is_network(class: AddressClass) -> bool {
    matches!(
        class,
        AddressClass::Private | AddressClass::Shared | AddressClass::UniqueLocal
    )
}

fn class_v4(address: Ipv4Addr) -> Option<AddressClass> {
    class_in(&BLOCKS_V4, address.into())
}

fn class_v6(address: Ipv6Addr) -> Option<AddressClass> {
    if NAT64.contains(&address) || SIX_TO_FOUR.contains(&address) {
        return class_v4(embedded_v4(address));
    }
    let own = class_in(&BLOCKS_V6, address.into());
    if own.is_none() && !GLOBAL_UNICAST.contains(&address) {
        // Nobody is there; of v4-compatible addresses some stack might think otherwise.
        let compatible = COMPATIBLE
            .contains(&address)
            .then(|| class_v4(embedded_v4(address)));
        return compatible.flatten().or(Some(AddressClass::Reserved));
    }
    own
}

fn class_in(blocks: &[Block], address: IpAddr) -> Option<AddressClass> {
    blocks
        .iter()
        .find(|block| block.net.contains(&address))
        .map(|block| block.class)
}

/// The IPv4 address within: after 16 bits in 6to4 (RFC 3056), at the end in the others (RFC 6052).
fn embedded_v4(address: Ipv6Addr) -> Ipv4Addr {
    let [_, after_prefix, then, .., before_last, last] = address.segments();
    let (high, low) = if SIX_TO_FOUR.contains(&address) {
        (after_prefix, then)
    } else {
        (before_last, last)
    };
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

/// The IPv6 ranges in which the addresses of an IPv4 block are carried.
fn embeddings(block: IpNet) -> Vec<IpNet> {
    let IpNet::V4(block) = block else {
        return Vec::new();
    };
    let bits = u128::from(block.addr().to_bits());
    [(NAT64, bits), (SIX_TO_FOUR, bits << 80)]
        .into_iter()
        .filter_map(|(prefix, bits)| {
            let address = Ipv6Addr::from_bits(prefix.addr().to_bits() | bits);
            Ipv6Net::new(address, prefix.prefix_len() + block.prefix_len()).ok()
        })
        .map(IpNet::V6)
        .collect()
}

/// The one block from which IPv6 addresses of the internet are assigned.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 3);
/// What is outside of it.
const UNASSIGNED: [Ipv6Net; 3] = [v6(0, 0, 3), v6(0x4000, 0, 2), v6(0x8000, 0, 1)];
/// The well-known prefix of NAT64 (RFC 6052).
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 96);
/// 6to4 (RFC 3056).
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 16);
/// v4-compatible addresses, deprecated (RFC 4291 section 2.5.5.1).
const COMPATIBLE: Ipv6Net = v6(0, 0, 96);

const fn v6(first: u16, second: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0), prefix)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(address: &str) -> Option<&'static str> {
        is_guarded(address.parse().unwrap()).map(AddressClass::as_str)
    }

    #[test]
    fn both_ends_of_every_block_are_guarded() {
        for block in BLOCKS_V4.iter().chain(&BLOCKS_V6) {
            for address in [block.net.network(), block.net.broadcast()] {
                assert!(is_guarded(address).is_some(), "{address} of {}", block.net);
            }
        }
    }

    #[test]
    fn what_is_just_outside_of_the_blocks_is_not_guarded() {
        for address in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "126.255.255.255",
            "128.0.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2000::",
            "2001:200::",
            "2001:db7:ffff::",
            "2001:db9::",
            "2620:4f:8001::",
            "3ffe::",
            "3fff:1000::",
            "64:ff9b::1.1.1.1",
            "2002:101:101::",
        ] {
            assert_eq!(class(address), None, "{address}");
        }
    }

    #[test]
    fn a_block_within_a_block_keeps_its_own_class() {
        for (address, expected) in [
            ("0.0.0.0", "unspecified"),
            ("0.0.0.1", "this_network"),
            ("192.0.0.9", "ietf"),
            ("255.255.255.255", "broadcast"),
            ("255.255.255.254", "reserved"),
            ("2001::1", "teredo"),
            ("2001:1::1", "ietf"),
            ("2001:2::1", "benchmarking"),
            ("2001:20::1", "orchid"),
            ("2001:4:112::1", "as112"),
            ("192.88.99.1", "six_to_four_relay"),
            ("100:0:0:1::1", "dummy"),
            ("5f00::1", "segment_routing"),
        ] {
            assert_eq!(class(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_embedded_address_decides() {
        for (address, expected) in [
            ("::ffff:127.0.0.1", Some("loopback")),
            ("::ffff:1.1.1.1", None),
            ("::127.0.0.1", Some("loopback")),
            ("::1.1.1.1", Some("reserved")),
            ("64:ff9b::169.254.169.254", Some("link_local")),
            ("64:ff9b::1:0:1", Some("reserved")),
            ("2002:a9fe:a9fe::1", Some("link_local")),
            ("2002:c0a8:101:1::1", Some("private")),
        ] {
            assert_eq!(class(address), expected, "{address}");
        }
    }

    #[test]
    fn nothing_outside_of_global_unicast_is_global() {
        for address in [
            "1::",
            "64:ff9a::1.1.1.1",
            "4000::",
            "6000::1",
            "8000::",
            "e000::",
            "fe00::1",
        ] {
            assert_eq!(class(address), Some("reserved"), "{address}");
        }
    }

    #[test]
    fn guarded_ranges_do_not_overlap() {
        let ranges = guarded_ranges();
        for (i, a) in ranges.iter().enumerate() {
            for b in &ranges[i + 1..] {
                assert!(!a.contains(b) && !b.contains(a), "{a} and {b}");
            }
        }
    }

    #[test]
    fn the_suggested_range_is_a_network_or_the_address_alone() {
        for (address, range) in [
            ("10.1.2.3", "10.0.0.0/8"),
            ("172.17.0.2", "172.16.0.0/12"),
            ("100.64.1.1", "100.64.0.0/10"),
            ("::ffff:192.168.1.1", "192.168.0.0/16"),
            ("fd00::1", "fc00::/7"),
            ("169.254.169.254", "169.254.169.254/32"),
            ("127.0.0.1", "127.0.0.1/32"),
            ("64:ff9b::a00:1", "64:ff9b::a00:1/128"),
        ] {
            assert_eq!(
                range_around(address.parse().unwrap()).to_string(),
                range,
                "{address}"
            );
        }
    }

    fn in_ranges(address: IpAddr) -> bool {
        guarded_ranges()
            .iter()
            .any(|range| range.contains(&address))
    }

    proptest! {
        #[test]
        fn the_ranges_are_the_guard_for_ipv4(bits: u32) {
            let address = IpAddr::from(Ipv4Addr::from_bits(bits));
            prop_assert_eq!(in_ranges(address), is_guarded(address).is_some(), "{}", address);
        }

        #[test]
        fn the_ranges_are_the_guard_for_ipv6(
            head in prop_oneof![
                Just(0u128), Just(0x64_ff9b_u128 << 96), Just(0x64_ff9b_0001_u128 << 80),
                Just(0x2001_u128 << 112), Just(0x2002_u128 << 112), Just(0x2620_u128 << 112), any::<u128>(),
            ],
            keep in 0u32..=128,
            tail: u128,
        ) {
            let tail = tail.checked_shr(keep).unwrap_or(0);
            let address = Ipv6Addr::from_bits(head | tail);
            prop_assume!(address.to_ipv4_mapped().is_none());
            let address = IpAddr::from(address);
            prop_assert_eq!(in_ranges(address), is_guarded(address).is_some(), "{}", address);
        }
    }
}
