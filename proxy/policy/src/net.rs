//! Arithmetic on ranges of addresses.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// The range of one address, a v4-mapped one as IPv4.
pub(crate) fn of_address(address: IpAddr) -> IpNet {
    IpNet::from(address.to_canonical())
}

/// The same addresses as an IPv4 range if they are v4-mapped, so that no range is written twice.
pub(crate) fn canonical(net: IpNet) -> IpNet {
    let mapped = || {
        let prefix = net.prefix_len().checked_sub(96)?;
        match net.addr().to_canonical() {
            IpAddr::V4(address) => Ipv4Net::new(address, prefix).ok(),
            IpAddr::V6(_) => None,
        }
    };
    match net {
        IpNet::V4(_) => net,
        IpNet::V6(_) => mapped().map_or(net, IpNet::V4),
    }
}

/// What is left of `net` when `hole` is cut out, as ranges that do not overlap.
pub(crate) fn subtract(net: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&hole) {
        return vec![net];
    }
    // Halve until the half is the hole: what is cut off on the way is what is left.
    let mut left = Vec::new();
    let mut whole = net;
    while whole != hole {
        let Ok(halves) = whole.subnets(whole.prefix_len() + 1) else {
            break;
        };
        for half in halves {
            if half.contains(&hole) {
                whole = half;
            } else {
                left.push(half);
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_v4_mapped_range_is_an_ipv4_range() {
        for (written, meant) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1/128", "10.0.0.1/32"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/112", "2001:db8::/112"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(canonical(net(written)), net(meant), "{written}");
        }
    }

    #[test]
    fn what_is_left_and_the_hole_make_up_the_whole() {
        for (whole, hole, pieces) in [
            ("10.0.0.0/8", "10.0.0.0/9", vec!["10.128.0.0/9"]),
            (
                "10.0.0.0/8",
                "10.64.0.0/10",
                vec!["10.0.0.0/10", "10.128.0.0/9"],
            ),
            ("10.0.0.0/8", "10.0.0.0/8", vec![]),
            ("10.0.0.0/8", "0.0.0.0/0", vec![]),
            ("10.0.0.0/8", "11.0.0.0/8", vec!["10.0.0.0/8"]),
            ("10.0.0.0/8", "::/0", vec!["10.0.0.0/8"]),
        ] {
            let mut left = subtract(net(whole), net(hole));
            left.sort_unstable();
            assert_eq!(
                left,
                pieces.into_iter().map(net).collect::<Vec<_>>(),
                "{whole} - {hole}"
            );
        }
    }

    #[test]
    fn cutting_one_address_out_of_all_leaves_a_piece_per_bit() {
        assert_eq!(subtract(net("0.0.0.0/0"), net("1.2.3.4/32")).len(), 32);
        assert_eq!(subtract(net("::/0"), net("2001:db8::1/128")).len(), 128);
    }
}
