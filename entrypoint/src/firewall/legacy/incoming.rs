//! What may be dialled from outside.

use super::{
    abilities::{Abilities, Ability},
    flows::{LET_THROUGH, accept_known},
    rules::{INGRESS, link_control},
    script::{Family, Table, tcp, udp},
};
use crate::{
    ingress::{IngressPort, IngressProto},
    surroundings::Surroundings,
};

/// Only what was published is admitted, and never from the neighbours on its own bridge: the gateway
/// speaks for everybody outside.
pub(super) fn judge(
    ingress: &[IngressPort],
    here: &Surroundings,
    family: Family,
    abilities: &Abilities,
    table: &mut Table,
) {
    table.rule(INPUT, "-i lo -j ACCEPT");
    accept_known(INPUT, family, table);
    link_control(INPUT, family, abilities, table);
    if abilities.contains(&Ability::Sorting) {
        for stray in ["broadcast", "multicast"] {
            table.rule(INPUT, format_args!("-m pkttype --pkt-type {stray} -j DROP"));
        }
    }
    publish(ingress, here, family, table);
    table.rule(INPUT, format_args!("-j {INGRESS}"));
}

fn publish(ingress: &[IngressPort], here: &Surroundings, family: Family, table: &mut Table) {
    let neighbours = family.of(here.own.iter().map(ipnet::IpNet::trunc));
    let open: Vec<_> = ingress
        .iter()
        .map(|port| match port.proto {
            IngressProto::Tcp => tcp("dport", port.low, port.high),
            IngressProto::Udp => udp("dport", port.low, port.high),
        })
        .collect();
    for gateway in family.addresses(&here.gateways) {
        for open in &open {
            table.rule(INPUT, format_args!("-s {gateway} {open} -j {LET_THROUGH}"));
        }
    }
    // Who has no neighbours has no address that could be dialled either.
    if neighbours.is_empty() {
        return;
    }
    for net in neighbours {
        table.rule(INPUT, format_args!("-s {net} -j {INGRESS}"));
    }
    for open in open {
        table.rule(INPUT, format_args!("{open} -j {LET_THROUGH}"));
    }
}

/// The chain that judges what comes in.
pub(super) const INPUT: &str = "sandbox_input";

#[cfg(test)]
mod tests {
    use report::Ipv6;

    use super::*;

    fn judged(ingress: &[&str], own: &[&str], gateways: &[&str], family: Family) -> String {
        let here = Surroundings {
            own: own.iter().map(|net| net.parse().unwrap()).collect(),
            gateways: gateways.iter().map(|ip| ip.parse().unwrap()).collect(),
            resolvers: Vec::new(),
            ipv6: Ipv6::Absent,
            remapped: false,
        };
        let ingress: Vec<_> = ingress.iter().map(|item| item.parse().unwrap()).collect();
        let mut table = Table::new("filter", &[INPUT]);
        judge(&ingress, &here, family, &Ability::ALL.into(), &mut table);
        table.commit()
    }

    #[test]
    fn without_a_published_port_nothing_is_admitted_by_port() {
        let text = judged(&[], &["172.17.0.2/16"], &["172.17.0.1"], Family::V4);
        assert!(!text.contains("dport"), "{text}");
    }

    #[test]
    fn a_published_port_of_a_container_without_addresses_admits_nobody() {
        assert!(!judged(&["tcp:80"], &[], &[], Family::V4).contains("dport"));
        let text = judged(&["tcp:80"], &["172.17.0.2/16"], &["172.17.0.1"], Family::V6);
        assert!(!text.contains("dport"), "{text}");
    }

    #[test]
    fn the_gateway_is_admitted_before_its_network_is_turned_away() {
        let text = judged(&["tcp:80"], &["172.17.0.2/16"], &["172.17.0.1"], Family::V4);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        let gateway = at("-s 172.17.0.1 -p 6 -m tcp --dport 80 -j sandbox_let_through");
        let neighbours = at("-s 172.17.0.0/16 -j sandbox_ingress");
        let everybody = at("-A sandbox_input -p 6 -m tcp --dport 80 -j sandbox_let_through");
        assert!(gateway < neighbours && neighbours < everybody, "{text}");
    }

    #[test]
    fn what_ends_the_chain_is_counted_as_ingress() {
        let text = judged(&["udp:5-6"], &["fd00::2/64"], &["fe80::1"], Family::V6);
        assert!(
            text.ends_with("-A sandbox_input -j sandbox_ingress\nCOMMIT\n"),
            "{text}"
        );
    }
}
