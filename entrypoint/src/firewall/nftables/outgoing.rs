//! What leaves the container, whoever decides: what both rulesets have in common.

use std::collections::BTreeSet;

use ipnet::IpNet;
use nftables::expr::MetaKey;
use policy::AddressRule;

use super::{
    DENIED_PACKETS, DENIED_QUIC,
    flows::{accept_flow, accept_ours, claim, claimed, let_through, onwards, said_of_flows},
    terms::{
        Part, TCP, Term, accept, address, any_of, count, daddr, dport, drop, field, goto, is,
        is_not, log, meta, network, number, ports, prohibit, protocol, redirected, reset, word,
    },
    transaction::{FORWARD, LEAVING, OUTPUT, REFUSE, Transaction, by_family},
};
use crate::{
    firewall::plan::{LOOPBACK, resolvers_apart, root_uids},
    surroundings::Surroundings,
};

/// What ends every refusal: it is counted, told of, and answered.
pub(super) fn refuse() -> [Part; 3] {
    [count(DENIED_PACKETS), log("packet"), goto(REFUSE)]
}

/// What the proxy and root open is theirs, and nobody goes on with it: `chain` sees it first.
///
/// The kernel knows a flow by its two ends, and keeps it for a while after its socket is closed.
/// Whoever then sends from the same port to the same place would be taken for more of the same, by
/// no rule of ours judged again: from a port that the proxy has asked a question from, the guest
/// could ask anything.
pub(super) fn claim_flows(
    chain: &'static str,
    here: &Surroundings,
    proxy: Option<u32>,
    rules: &mut Transaction,
) {
    // What one of us answers is no flow of ours: a resolver of the engine's answers the guest.
    let ours = is(meta(MetaKey::Skuid), us(here, proxy));
    rules.rule(chain, [ours, onwards(), claim()]);
    let others = is_not(meta(MetaKey::Skuid), us(here, proxy));
    let taken = vec![claimed(), onwards(), others];
    rules.rule(OUTPUT, [taken, refuse().into()].concat());
}

/// Where an engine's resolver listens for itself, everybody comes as to any resolver, and in no
/// other way: what was aimed at port 53 of it has been judged by `QUESTIONS`, and has another
/// destination by now where an engine's nat has taken it there.
pub(super) fn close_back_doors_but_the_port(here: &Surroundings, rules: &mut Transaction) {
    for resolver in resolvers_apart(here) {
        let to = || is(daddr(resolver), address(resolver));
        rules.rule(OUTPUT, [to(), redirected(), accept()]);
        for proto in ["udp", "tcp"] {
            rules.rule(OUTPUT, [to(), is(dport(proto), number(53_u16)), accept()]);
        }
        let others = is_not(meta(MetaKey::Skuid), roots(here));
        rules.rule(OUTPUT, [vec![to(), others], refuse().into()].concat());
    }
}

/// Where an engine's resolver listens for itself, only the proxy and root come. What was aimed at
/// port 53 of it has another destination by now; the rest would ask it past the proxy.
pub(super) fn close_back_doors(here: &Surroundings, proxy: u32, rules: &mut Transaction) {
    for resolver in resolvers_apart(here) {
        let to = is(daddr(resolver), address(resolver));
        let others = is_not(meta(MetaKey::Skuid), us(here, Some(proxy)));
        rules.rule(OUTPUT, [vec![to, others], refuse().into()].concat());
    }
}

/// Engines let anybody bind port 53. Where the resolver is on loopback, the guest could answer in
/// its place whoever asks for us: which of its ports waits is no secret in here.
pub(super) fn refuse_forged_answers(
    here: &Surroundings,
    proxy: Option<u32>,
    rules: &mut Transaction,
) {
    let others = is_not(meta(MetaKey::Skuid), us(here, proxy));
    let from = is(field("udp", "sport"), number(53_u16));
    rules.rule(OUTPUT, [vec![from, others], refuse().into()].concat());
}

/// The proxy, where there is one, and root: everybody but the guest.
fn us(here: &Surroundings, proxy: Option<u32>) -> Term {
    any_of(root_uids(here).chain(proxy).map(number))
}

/// Root, as this namespace sees it: the daemon's root too, where the container's is another.
pub(super) fn roots(here: &Surroundings) -> Term {
    any_of(root_uids(here).map(number))
}

/// What does not leave, and what belongs to a flow that was let through.
pub(super) fn accept_inside(rules: &mut Transaction) {
    rules.rule(OUTPUT, [is(meta(MetaKey::Oifname), word("lo")), accept()]);
    // A redirected packet has a loopback destination, but its route was chosen before.
    for loopback in LOOPBACK {
        let to = is(daddr(loopback.addr()), network(loopback));
        rules.rule(OUTPUT, [to, redirected(), accept()]);
    }
    rules.rule(OUTPUT, let_through());
    for said in said_of_flows() {
        rules.rule(OUTPUT, said);
    }
}

/// The engine's embedded resolver sends its own queries from in here, as the daemon's root: that
/// is not the guest, which is never root.
pub(super) fn accept_roots_dns(here: &Surroundings, rules: &mut Transaction) {
    for proto in ["udp", "tcp"] {
        let root = is(meta(MetaKey::Skuid), roots(here));
        let asks = vec![root, is(dport(proto), number(53_u16))];
        rules.rule(OUTPUT, [asks, accept_ours().into()].concat());
    }
}

/// What names of the list resolved to, which is in the sets of this name as `key` has it. The
/// address guard again: whoever resolves opens to the guest what may be dialled, no more.
pub(super) fn accept_opened(
    chain: &'static str,
    name: &str,
    key: fn(&'static str) -> Term,
    rules: &mut Transaction,
) {
    accept_opened_on(chain, name, key, None, rules);
}

/// The same, on certain ports.
pub(super) fn accept_opened_on(
    chain: &'static str,
    name: &str,
    key: fn(&'static str) -> Term,
    on: Option<(u16, u16)>,
    rules: &mut Transaction,
) {
    for (family, suffix) in [("ip", "4"), ("ip6", "6")] {
        let set = |name: &str| word(format!("@{name}{suffix}"));
        let daddr = || field(family, "daddr");
        let on = || on.map(|(low, high)| is(dport("tcp"), ports(low, high)));
        for guard in [is(daddr(), set("lifted")), is_not(daddr(), set("guarded"))] {
            let opened = is(key(family), set(name));
            let parts = [Some(guard), on(), Some(opened)].into_iter().flatten();
            rules.rule(chain, parts.chain(accept_flow()).collect::<Vec<_>>());
        }
    }
}

/// Does with what the list says of addresses, over TCP, as `verdict` says.
pub(super) fn on_ranges(
    chain: &'static str,
    all: &[AddressRule],
    verdict: impl Fn() -> Vec<Part>,
    rules: &mut Transaction,
) {
    for range in all.iter().map(|rule| rule.ports).collect::<BTreeSet<_>>() {
        let nets = all.iter().filter(|rule| rule.ports == range);
        let nets = IpNet::aggregate(&nets.map(|rule| rule.net).collect());
        for (family, nets) in by_family(&nets)
            .into_iter()
            .filter(|(_, nets)| !nets.is_empty())
        {
            let among = if nets.len() > FEW {
                rules.large(nets)
            } else {
                vec![any_of(nets.into_iter().map(network))]
            };
            for nets in among {
                let to = vec![
                    is(field(family, "daddr"), nets),
                    is(dport("tcp"), ports(range.low(), range.high())),
                ];
                rules.rule(chain, [to, verdict()].concat());
            }
        }
    }
}

/// The end of the chain: nothing passes it.
pub(super) fn refuse_the_rest(rules: &mut Transaction) {
    rules.link_control(OUTPUT);
    rules.rule(
        OUTPUT,
        [
            is(dport("udp"), number(443_u16)),
            count(DENIED_QUIC),
            log("quic"),
            goto(REFUSE),
        ],
    );
    rules.rule(OUTPUT, refuse());
}

/// What holds besides, in chains of its own.
pub(super) fn close(rules: &mut Transaction) {
    keep_loopback_inside(rules);
    // A container is no router, though engines have the kernel ready to make it one: what comes
    // back to be passed on, by a source route or from a neighbour, has passed chain `output` as
    // something else, or not at all.
    rules.rule(FORWARD, refuse());
    rules.rule(REFUSE, [is(meta(MetaKey::L4proto), protocol(TCP)), reset()]);
    rules.rule(REFUSE, [prohibit()]);
}

/// Any socket may choose its interface, and then loopback's addresses lead to the gateway or a
/// neighbour, who may take them for their own. Which way a packet goes is certain only here,
/// where it can be dropped and no longer refused.
fn keep_loopback_inside(rules: &mut Transaction) {
    for loopback in LOOPBACK {
        rules.rule(
            LEAVING,
            [
                is_not(meta(MetaKey::Oifname), word("lo")),
                is(daddr(loopback.addr()), network(loopback)),
                count(DENIED_PACKETS),
                log("packet"),
                drop(),
            ],
        );
    }
}

/// Networks that nft reads in no time.
const FEW: usize = 256;
