//! The address entries as a packet filter can hold them: ranges and ports, nothing that denies.

use ipnet::IpNet;

use crate::entry::Effect;
use crate::net;
use crate::port::PortRange;
use crate::rule::{Rule, RuleId, Scope};
use crate::rules::Rules;

/// Addresses and ports on them that may be reached without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRule {
    /// The addresses.
    pub net: IpNet,
    /// The ports on them.
    pub ports: PortRange,
}

impl AddressRule {
    /// What is left when another's part is cut out: pieces that do not overlap.
    fn subtract(self, hole: Self) -> Vec<Self> {
        let shared = match (hole.net.contains(&self.net), self.net.contains(&hole.net)) {
            (true, _) => self.net,
            (false, true) => hole.net,
            (false, false) => return vec![self],
        };
        let outside = net::subtract(self.net, shared)
            .into_iter()
            .map(|net| Self { net, ..self });
        let inside = self
            .ports
            .subtract(hole.ports)
            .map(|ports| Self { net: shared, ports });
        outside.chain(inside).collect()
    }
}

/// What the address entries allow once the denies are cut out, as pieces that do not overlap.
///
/// A packet shows no protocol, so a deny of one protocol is cut out like any other: the filter may
/// refuse what the proxy would have let through, never the other way round.
pub(crate) fn address_rules(rules: &Rules) -> Vec<AddressRule> {
    let denies = denied(rules);
    let mut pieces: Vec<AddressRule> = ranges(rules, Effect::Allow)
        .flat_map(|(id, net, rule)| {
            let earlier = earlier_allows(rules, id, net);
            on_ports(net, rule)
                .flat_map(move |piece| without(piece, &earlier))
                .collect::<Vec<_>>()
        })
        .flat_map(|piece| without(piece, &denies))
        .collect();
    pieces.sort_unstable();
    pieces
}

/// Whether deny entries about addresses leave nothing of this.
pub(crate) fn is_denied(rules: &Rules, opening: AddressRule) -> bool {
    let covering = rules
        .covering_net(opening.net)
        .filter(|(_, rule)| rule.terms.effect == Effect::Deny);
    let denies: Vec<AddressRule> = covering
        .filter_map(|(_, rule)| Some((rule.range?, rule)))
        .flat_map(|(net, rule)| on_ports(net, rule))
        .collect();
    without(opening, &denies).is_empty()
}

/// What the address entries deny. A packet shows no protocol: a deny of one is a deny.
pub(crate) fn denied(rules: &Rules) -> Vec<AddressRule> {
    ranges(rules, Effect::Deny)
        .flat_map(|(_, net, rule)| on_ports(net, rule))
        .collect()
}

/// The ranges in which the guard is lifted for some destination, less what is denied altogether.
pub(crate) fn lifted_ranges(rules: &Rules) -> Vec<IpNet> {
    let everywhere = |net| AddressRule {
        net,
        ports: PortRange::ALL,
    };
    let denied: Vec<AddressRule> = ranges(rules, Effect::Deny)
        .filter(|(_, _, rule)| rule.terms.ports.is_none() && rule.terms.kind.is_none())
        .map(|(_, net, _)| everywhere(net))
        .collect();
    let lifted = rules
        .iter()
        .filter(|(_, rule)| rule.terms.effect == Effect::Allow)
        .filter_map(|(_, rule)| rule.range)
        .flat_map(|net| without(everywhere(net), &denied))
        .map(|piece| piece.net);
    IpNet::aggregate(&lifted.collect())
}

fn ranges(rules: &Rules, effect: Effect) -> impl Iterator<Item = (RuleId, IpNet, &Rule)> {
    rules
        .iter()
        .filter(move |(_, rule)| rule.terms.effect == effect)
        .filter(|(_, rule)| rule.scope == Scope::Net)
        .filter_map(|(id, rule)| Some((id, rule.range?, rule)))
}

/// What other rules allow of this range: those about a larger one, and of those about the same
/// range the ones that come first, so that each piece is in exactly one.
fn earlier_allows(rules: &Rules, id: RuleId, net: IpNet) -> Vec<AddressRule> {
    rules
        .covering_net(net)
        .filter(|(_, rule)| rule.terms.effect == Effect::Allow)
        .filter(|(other, rule)| rule.range != Some(net) || *other < id)
        .flat_map(|(_, rule)| on_ports(net, rule))
        .collect()
}

fn on_ports(net: IpNet, rule: &Rule) -> impl Iterator<Item = AddressRule> + use<> {
    rule.terms
        .port_ranges()
        .map(move |ports| AddressRule { net, ports })
}

fn without(piece: AddressRule, holes: &[AddressRule]) -> Vec<AddressRule> {
    holes.iter().fold(vec![piece], |pieces, hole| {
        pieces
            .into_iter()
            .flat_map(|piece| piece.subtract(*hole))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    fn rules(list: &str) -> Vec<String> {
        let rules = Policy::parse(list).unwrap().address_rules();
        rules
            .iter()
            .map(|rule| format!("{}:{}", rule.net, rule.ports))
            .collect()
    }

    fn lifted(list: &str) -> Vec<String> {
        Policy::parse(list)
            .unwrap()
            .lifted_ranges()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn address_entries_become_ranges_and_ports() {
        for (list, expected) in [
            ("10.0.0.0/8:5432", vec!["10.0.0.0/8:5432"]),
            (
                "203.0.113.7",
                vec!["203.0.113.7/32:80", "203.0.113.7/32:443"],
            ),
            ("[2001:db8::/32]:*", vec!["2001:db8::/32:*"]),
            ("example.com,git.corp.example@10.0.0.0/8", vec![]),
        ] {
            assert_eq!(rules(list), expected, "{list}");
        }
    }

    #[test]
    fn pieces_do_not_overlap() {
        for (list, expected) in [
            (
                "10.0.0.0/8:1-100,10.1.0.0/16:50-200",
                vec!["10.0.0.0/8:1-100", "10.1.0.0/16:101-200"],
            ),
            ("10.0.0.0/8:22,10.1.0.0/16:22", vec!["10.0.0.0/8:22"]),
            (
                "10.0.0.0/8:1-100,10.0.0.0/8:50-200",
                vec!["10.0.0.0/8:1-100", "10.0.0.0/8:101-200"],
            ),
            ("10.0.0.0/8:443,10.0.0.0/8:443/tcp", vec!["10.0.0.0/8:443"]),
        ] {
            assert_eq!(rules(list), expected, "{list}");
        }
    }

    #[test]
    fn what_is_denied_is_cut_out() {
        for (list, expected) in [
            ("10.0.0.0/8:22,!10.128.0.0/9", vec!["10.0.0.0/9:22"]),
            (
                "10.0.0.0/8:*,!10.0.0.0/8:25",
                vec!["10.0.0.0/8:1-24", "10.0.0.0/8:26-65535"],
            ),
            (
                "10.0.0.0/8:*,!10.0.0.0/9:25",
                vec!["10.0.0.0/9:1-24", "10.0.0.0/9:26-65535", "10.128.0.0/9:*"],
            ),
            ("10.1.2.3:22,!10.0.0.0/8", vec![]),
            (
                "10.1.2.3:22,!10.0.0.0/8:23,!11.0.0.0/8",
                vec!["10.1.2.3/32:22"],
            ),
            ("10.1.2.3:22,!10.1.2.3:22/tls", vec![]),
        ] {
            assert_eq!(rules(list), expected, "{list}");
        }
    }

    #[test]
    fn the_guard_is_lifted_where_an_entry_names_a_range() {
        for (list, expected) in [
            ("example.com", vec![]),
            (
                "git.corp.example@10.0.0.0/8,192.168.1.1",
                vec!["10.0.0.0/8", "192.168.1.1/32"],
            ),
            (
                "a.example@10.0.0.0/9,b.example@10.128.0.0/9,c.example@10.1.0.0/16",
                vec!["10.0.0.0/8"],
            ),
            ("a.example@10.0.0.0/8,!10.128.0.0/9", vec!["10.0.0.0/9"]),
            ("a.example@10.0.0.0/8,!10.128.0.0/9:25", vec!["10.0.0.0/8"]),
        ] {
            assert_eq!(lifted(list), expected, "{list}");
        }
    }
}
