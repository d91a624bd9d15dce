//! The special-purpose address blocks: IANA's two registries (RFC 6890 and its updates), multicast,
//! and the deprecated blocks that stacks still honour.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What kind of special-purpose address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressClass {
    /// `0.0.0.0` and `::`, which many stacks take for this machine.
    Unspecified,
    /// The rest of 0.0.0.0/8 (RFC 791).
    ThisNetwork,
    /// 127.0.0.0/8 and `::1`.
    Loopback,
    /// 10.0.0.0/8, 172.16.0.0/12 and 192.168.0.0/16 (RFC 1918).
    Private,
    /// 169.254.0.0/16 and `fe80::/10`; where clouds keep their metadata service.
    LinkLocal,
    /// 100.64.0.0/10, behind a carrier's address translation (RFC 6598).
    Shared,
    /// IETF protocol assignments: 192.0.0.0/24 and `2001::/23`.
    Ietf,
    /// Documentation (RFC 5737, RFC 3849, RFC 9637).
    Documentation,
    /// Benchmarks of network devices (RFC 2544, RFC 5180).
    Benchmarking,
    /// Sinks for reverse queries of private addresses (RFC 7534, RFC 7535).
    As112,
    /// Automatic multicast tunnelling (RFC 7450).
    Amt,
    /// Relays of 6to4, deprecated (RFC 7526).
    SixToFourRelay,
    /// 224.0.0.0/4 and `ff00::/8`.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// Never assigned: 240.0.0.0/4, and of IPv6 what is outside of `2000::/3`.
    Reserved,
    /// `64:ff9b:1::/48`, translation to IPv4 under rules of the local network (RFC 8215).
    Nat64Local,
    /// `2001::/32`: an IPv4 address and port behind a relay (RFC 4380).
    Teredo,
    /// Overlay identifiers that are not routed (RFC 4843, RFC 7343).
    Orchid,
    /// Identifiers of drones (RFC 9374).
    DroneId,
    /// `100::/64`, thrown away (RFC 6666).
    Discard,
    /// `100:0:0:1::/64`, a prefix that stands for nothing (RFC 9780).
    Dummy,
    /// `5f00::/16`, segment identifiers (RFC 9602).
    SegmentRouting,
    /// `fc00::/7` (RFC 4193).
    UniqueLocal,
    /// `fec0::/10`, deprecated (RFC 3879).
    SiteLocal,
}

impl AddressClass {
    /// The stable spelling, in `snake_case`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::ThisNetwork => "this_network",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link_local",
            Self::Shared => "shared",
            Self::Ietf => "ietf",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::As112 => "as112",
            Self::Amt => "amt",
            Self::SixToFourRelay => "six_to_four_relay",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Reserved => "reserved",
            Self::Nat64Local => "nat64_local",
            Self::Teredo => "teredo",
            Self::Orchid => "orchid",
            Self::DroneId => "drone_id",
            Self::Discard => "discard",
            Self::Dummy => "dummy",
            Self::SegmentRouting => "segment_routing",
            Self::UniqueLocal => "unique_local",
            Self::SiteLocal => "site_local",
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One block of a registry.
pub(crate) struct Block {
    pub(crate) net: IpNet,
    pub(crate) class: AddressClass,
}

/// The IPv4 blocks, a block before the larger one that contains it.
pub(crate) const BLOCKS_V4: [Block; 20] = {
    use AddressClass as C;
    [
        v4([0, 0, 0, 0], 32, C::Unspecified),
        v4([0, 0, 0, 0], 8, C::ThisNetwork),
        v4([10, 0, 0, 0], 8, C::Private),
        v4([100, 64, 0, 0], 10, C::Shared),
        v4([127, 0, 0, 0], 8, C::Loopback),
        v4([169, 254, 0, 0], 16, C::LinkLocal),
        v4([172, 16, 0, 0], 12, C::Private),
        v4([192, 0, 0, 0], 24, C::Ietf),
        v4([192, 0, 2, 0], 24, C::Documentation),
        v4([192, 31, 196, 0], 24, C::As112),
        v4([192, 52, 193, 0], 24, C::Amt),
        v4([192, 88, 99, 0], 24, C::SixToFourRelay),
        v4([192, 168, 0, 0], 16, C::Private),
        v4([192, 175, 48, 0], 24, C::As112),
        v4([198, 18, 0, 0], 15, C::Benchmarking),
        v4([198, 51, 100, 0], 24, C::Documentation),
        v4([203, 0, 113, 0], 24, C::Documentation),
        v4([224, 0, 0, 0], 4, C::Multicast),
        v4([255, 255, 255, 255], 32, C::Broadcast),
        v4([240, 0, 0, 0], 4, C::Reserved),
    ]
};

/// The IPv6 blocks, a block before the larger one that contains it. What embeds an IPv4 address is
/// not here, because that address decides.
pub(crate) const BLOCKS_V6: [Block; 21] = {
    use AddressClass as C;
    [
        v6(0, 128, C::Unspecified),
        v6(1, 128, C::Loopback),
        v6(0x0064_ff9b_0001 << 80, 48, C::Nat64Local),
        v6(0x0100_0000 << 96, 64, C::Discard),
        v6(0x0100_0000_0000_0001 << 64, 64, C::Dummy),
        v6(0x2001_0000 << 96, 32, C::Teredo),
        v6(0x2001_0002 << 96, 48, C::Benchmarking),
        v6(0x2001_0003 << 96, 32, C::Amt),
        v6(0x2001_0004_0112 << 80, 48, C::As112),
        v6(0x2001_0010 << 96, 28, C::Orchid),
        v6(0x2001_0020 << 96, 28, C::Orchid),
        v6(0x2001_0030 << 96, 28, C::DroneId),
        v6(0x2001_0000 << 96, 23, C::Ietf),
        v6(0x2001_0db8 << 96, 32, C::Documentation),
        v6(0x2620_004f_8000 << 80, 48, C::As112),
        v6(0x3fff_0000 << 96, 20, C::Documentation),
        v6(0x5f00_0000 << 96, 16, C::SegmentRouting),
        v6(0xfc00_0000 << 96, 7, C::UniqueLocal),
        v6(0xfe80_0000 << 96, 10, C::LinkLocal),
        v6(0xfec0_0000 << 96, 10, C::SiteLocal),
        v6(0xff00_0000 << 96, 8, C::Multicast),
    ]
};

const fn v4(octets: [u8; 4], prefix: u8, class: AddressClass) -> Block {
    let [a, b, c, d] = octets;
    let address = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    Block {
        net: IpNet::new_assert(address, prefix),
        class,
    }
}

const fn v6(bits: u128, prefix: u8, class: AddressClass) -> Block {
    let address = IpAddr::V6(Ipv6Addr::from_bits(bits));
    Block {
        net: IpNet::new_assert(address, prefix),
        class,
    }
}
