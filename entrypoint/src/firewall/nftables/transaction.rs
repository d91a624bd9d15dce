//! The objects of the ruleset as one transaction: loaded together or not at all.

mod sets;

use ipnet::IpNet;
use nftables::{
    batch::Batch,
    expr::MetaKey,
    schema::{Chain, Counter, FlushObject, NfCmd, NfListObject, Nftables, Rule, Table},
    types::{NfChainPolicy, NfChainType, NfFamily, NfHook},
};

use super::{
    DENIED_INGRESS, DENIED_PACKETS, DENIED_QUIC, LINK_CONTROL, TABLE,
    filling::Filling,
    terms::{IGMP, Part, accept, any_of, count, drop, field, is, meta, protocol, word},
};

/// The objects of one transaction, in order.
pub(super) struct Transaction {
    batch: Batch<'static>,
    /// Sets that are made and filled before the rules that look into them, where those take the
    /// place of others.
    ahead: Option<Batch<'static>>,
    fillings: Vec<Filling>,
    /// What tells the names of its sets from those that it takes the place of.
    turn: u32,
}

impl Transaction {
    pub(super) fn new() -> Self {
        let mut batch = Batch::new();
        let table = || {
            NfListObject::Table(Table {
                family: NfFamily::INet,
                name: TABLE.into(),
                handle: None,
            })
        };
        // Added first so that there is one to delete.
        batch.add(table());
        batch.delete(table());
        batch.add(table());
        for name in [DENIED_PACKETS, DENIED_QUIC, DENIED_INGRESS, LINK_CONTROL] {
            batch.add(NfListObject::Counter(Counter {
                family: NfFamily::INet,
                table: TABLE.into(),
                name: name.into(),
                ..Counter::default()
            }));
        }
        let mut rules = Self {
            batch,
            ahead: None,
            fillings: Vec::new(),
            turn: 0,
        };
        for name in [REFUSE, RANGES] {
            rules.chain(name, None);
        }
        rules.chain(
            OUTPUT,
            Some((NfChainType::Filter, NfHook::Output, 0, NfChainPolicy::Drop)),
        );
        rules.chain(
            INPUT,
            Some((NfChainType::Filter, NfHook::Input, 0, NfChainPolicy::Drop)),
        );
        rules.chain(
            FORWARD,
            Some((NfChainType::Filter, NfHook::Forward, 0, NfChainPolicy::Drop)),
        );
        rules.chain(
            LEAVING,
            Some((
                NfChainType::Filter,
                NfHook::Postrouting,
                0,
                NfChainPolicy::Accept,
            )),
        );
        rules
    }

    /// The chains in which the proxy's part is told from the guest's.
    pub(super) fn redirects(&mut self) {
        for name in [PROXY, STREAMS] {
            self.chain(name, None);
        }
        self.before_the_engine(NAT_OUTPUT, NfChainType::NAT);
    }

    /// The chain in which questions are seen as they were asked.
    pub(super) fn questions(&mut self) {
        self.before_the_engine(QUESTIONS, NfChainType::Filter);
    }

    /// Before the engine's own chain for its embedded resolver, which stands at -100. A number: nft
    /// 1.0.6 does not take the name `dstnat` in an output chain.
    fn before_the_engine(&mut self, name: &'static str, of: NfChainType) {
        let hook = (of, NfHook::Output, -110, NfChainPolicy::Accept);
        self.chain(name, Some(hook));
    }

    /// Changes to what is loaded, of which there were so many before.
    pub(super) fn onto_what_is_loaded(turn: u32) -> Self {
        Self {
            batch: Batch::new(),
            ahead: Some(Batch::new()),
            fillings: Vec::new(),
            turn,
        }
    }

    /// Takes all rules out of a chain.
    pub(super) fn flush_chain(&mut self, name: &'static str) {
        let chain = Chain {
            family: NfFamily::INet,
            table: TABLE.into(),
            name: name.into(),
            ..Chain::default()
        };
        self.batch.add_cmd(NfCmd::Flush(FlushObject::Chain(chain)));
    }

    fn chain(
        &mut self,
        name: &'static str,
        hook: Option<(NfChainType, NfHook, i32, NfChainPolicy)>,
    ) {
        let mut chain = Chain {
            family: NfFamily::INet,
            table: TABLE.into(),
            name: name.into(),
            ..Chain::default()
        };
        if let Some((kind, hook, priority, policy)) = hook {
            chain._type = Some(kind);
            chain.hook = Some(hook);
            chain.prio = Some(priority);
            chain.policy = Some(policy);
        }
        self.batch.add(NfListObject::Chain(chain));
    }

    pub(super) fn rule(&mut self, chain: &'static str, parts: impl Into<Vec<Part>>) {
        self.batch.add(NfListObject::Rule(Rule {
            family: NfFamily::INet,
            table: TABLE.into(),
            chain: chain.into(),
            expr: parts.into().into(),
            ..Rule::default()
        }));
    }

    /// What the kernel itself says to its link so that IPv6 works at all, and what it says without
    /// need: the first passes, the second is dropped and counted apart. Neither is an attempt of
    /// the guest to reach something.
    pub(super) fn link_control(&mut self, chain: &'static str) {
        let discovery = [
            "nd-router-solicit",
            "nd-router-advert",
            "nd-neighbor-solicit",
            "nd-neighbor-advert",
        ];
        let memberships = [
            "mld-listener-query",
            "mld-listener-report",
            "mld2-listener-report",
        ];
        let icmpv6 = || field("icmpv6", "type");
        self.rule(chain, [is(icmpv6(), any_of(discovery.map(word))), accept()]);
        self.rule(
            chain,
            [
                is(icmpv6(), any_of(memberships.map(word))),
                count(LINK_CONTROL),
                drop(),
            ],
        );
        self.rule(
            chain,
            [
                is(meta(MetaKey::L4proto), protocol(IGMP)),
                count(LINK_CONTROL),
                drop(),
            ],
        );
    }

    /// The whole, as nft reads it, and what the kernel is told besides.
    pub(super) fn into_ruleset(self) -> Ruleset {
        Ruleset {
            ahead: self.ahead.map(Batch::to_nftables),
            fillings: self.fillings,
            rules: self.batch.to_nftables(),
        }
    }
}

/// Rules, and what fills their sets.
pub(crate) struct Ruleset {
    /// What is there before the rules are, where they take the place of others.
    pub(super) ahead: Option<Nftables<'static>>,
    /// Of sets that are too large for nft.
    pub(super) fillings: Vec<Filling>,
    /// Loaded together or not at all.
    pub(super) rules: Nftables<'static>,
}

/// The networks of IPv4 first, then those of IPv6, each with its name in nftables.
pub(super) fn by_family(nets: &[IpNet]) -> [(&'static str, Vec<IpNet>); 2] {
    let (v4, v6) = nets.iter().copied().partition(|net| net.addr().is_ipv4());
    [("ip", v4), ("ip6", v6)]
}

pub(super) const NAT_OUTPUT: &str = "nat_output";
pub(super) const QUESTIONS: &str = "questions";
pub(super) const OUTPUT: &str = "output";
pub(super) const INPUT: &str = "input";
pub(super) const FORWARD: &str = "forward";
/// Where it is certain by which interface a packet goes.
pub(super) const LEAVING: &str = "leaving";
pub(super) const PROXY: &str = "proxy";
/// Where streams that carry a name are brought to the proxy: the ports are the list's.
pub(super) const STREAMS: &str = "streams";
/// What the list names by address.
pub(super) const RANGES: &str = "ranges";
pub(super) const REFUSE: &str = "refuse";

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn families_are_told_apart_and_named() {
        let [(first, v4), (second, v6)] =
            by_family(&nets(&["2001:db8::/32", "10.0.0.0/8", "::1/128"]));
        assert_eq!((first, v4), ("ip", nets(&["10.0.0.0/8"])));
        assert_eq!((second, v6), ("ip6", nets(&["2001:db8::/32", "::1/128"])));
    }

    #[test]
    fn only_our_own_table_is_ever_deleted() {
        let text = serde_json::to_string(&Transaction::new().into_ruleset().rules).unwrap();
        assert_eq!(text.matches("delete").count(), 1, "{text}");
        assert!(!text.contains("flush"), "{text}");
    }
}
