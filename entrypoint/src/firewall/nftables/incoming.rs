//! What may be dialled from outside.

use ipnet::IpNet;
use nftables::expr::MetaKey;

use super::{
    DENIED_INGRESS, LINK_CONTROL,
    flows::{accept_flow, let_through, said_of_flows},
    terms::{
        accept, address, any_of, count, dport, drop, family, field, goto, is, is_not, log, meta,
        network, ports, word,
    },
    transaction::{INPUT, REFUSE, Transaction, by_family},
};
use crate::{ingress::IngressPort, surroundings::Surroundings};

/// A sandbox that can be dialled into has a way out, so only what was published is admitted,
/// and never from the neighbours on its own bridge: the gateway speaks for everybody outside.
pub(super) fn judge(ingress: &[IngressPort], here: &Surroundings, rules: &mut Transaction) {
    rules.rule(INPUT, [is(meta(MetaKey::Iifname), word("lo")), accept()]);
    rules.rule(INPUT, let_through());
    for said in said_of_flows() {
        rules.rule(INPUT, said);
    }
    rules.link_control(INPUT);
    let stray = any_of([word("broadcast"), word("multicast")]);
    rules.rule(
        INPUT,
        [
            is(meta(MetaKey::Pkttype), stray),
            count(LINK_CONTROL),
            drop(),
        ],
    );
    for port in ingress {
        let open = || is(dport(port.proto.as_str()), ports(port.low, port.high));
        for &gateway in &here.gateways {
            let from = is(field(family(gateway), "saddr"), address(gateway));
            rules.rule(INPUT, [vec![from, open()], accept_flow().into()].concat());
        }
        for (family, nets) in by_family(&here.own)
            .into_iter()
            .filter(|(_, nets)| !nets.is_empty())
        {
            let from = field(family, "saddr");
            let neighbours = any_of(
                IpNet::aggregate(&nets)
                    .into_iter()
                    .map(|n| network(n.trunc())),
            );
            let dials = vec![is_not(from, neighbours), open()];
            rules.rule(INPUT, [dials, accept_flow().into()].concat());
        }
    }
    rules.rule(INPUT, [count(DENIED_INGRESS), log("ingress"), goto(REFUSE)]);
}

#[cfg(test)]
mod tests {
    use report::Ipv6;

    use super::*;

    fn judged(ingress: &[&str], own: &[&str], gateways: &[&str]) -> String {
        let here = Surroundings {
            own: own.iter().map(|net| net.parse().unwrap()).collect(),
            gateways: gateways
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            resolvers: Vec::new(),
            ipv6: Ipv6::Absent,
            remapped: false,
        };
        let ingress: Vec<_> = ingress.iter().map(|item| item.parse().unwrap()).collect();
        let mut rules = Transaction::new();
        judge(&ingress, &here, &mut rules);
        serde_json::to_string(&rules.into_ruleset().rules).unwrap()
    }

    #[test]
    fn without_a_published_port_nothing_is_admitted_by_port() {
        let text = judged(&[], &["172.17.0.2/16"], &["172.17.0.1"]);
        assert!(!text.contains("dport") && !text.contains("saddr"), "{text}");
    }

    #[test]
    fn a_published_port_of_a_container_without_addresses_admits_nobody() {
        assert!(!judged(&["tcp:80"], &[], &[]).contains("dport"));
    }

    #[test]
    fn neighbours_are_told_by_the_network_and_not_by_ones_own_address() {
        let text = judged(&["tcp:80"], &["172.17.0.2/16"], &[]);
        assert!(
            text.contains("172.17.0.0") && !text.contains("172.17.0.2"),
            "{text}"
        );
    }

    #[test]
    fn each_family_has_neighbours_of_its_own() {
        let text = judged(&["udp:53"], &["172.17.0.2/16", "fd00::2/64"], &[]);
        assert!(text.contains(r#""ip6","field":"saddr""#), "{text}");
        assert!(text.contains(r#""ip","field":"saddr""#), "{text}");
    }

    #[test]
    fn what_ends_the_chain_is_counted_as_ingress() {
        let text = judged(&["tcp:80"], &["172.17.0.2/16"], &["172.17.0.1"]);
        let last = text.rfind("denied_ingress").unwrap();
        assert!(text[last..].contains(r#""prefix":"ingress""#), "{text}");
        assert!(!text[last..].contains("accept"), "{text}");
    }
}
