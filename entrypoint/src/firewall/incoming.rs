//! What may be dialled from outside.

use ipnet::IpNet;
use nftables::expr::MetaKey;

use super::{
    DENIED_INGRESS, LINK_CONTROL,
    terms::{
        accept, address, any_of, count, ct_state, dport, drop, established, family, field, goto,
        is, is_not, log, meta, network, ports, word,
    },
    transaction::{INPUT, REFUSE, Transaction, by_family},
};
use crate::{ingress::IngressPort, surroundings::Surroundings};

/// A sandbox that can be dialled into has a way out, so only what was published is admitted,
/// and never from the neighbours on its own bridge: the gateway speaks for everybody outside.
pub(super) fn judge(ingress: &[IngressPort], here: &Surroundings, rules: &mut Transaction) {
    rules.rule(INPUT, [is(meta(MetaKey::Iifname), word("lo")), accept()]);
    rules.rule(INPUT, [is(ct_state(), established()), accept()]);
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
            rules.rule(INPUT, [from, open(), accept()]);
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
            rules.rule(INPUT, [is_not(from, neighbours), open(), accept()]);
        }
    }
    rules.rule(INPUT, [count(DENIED_INGRESS), log("ingress"), goto(REFUSE)]);
}
