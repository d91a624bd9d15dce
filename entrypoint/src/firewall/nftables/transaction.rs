//! The objects of the ruleset as one transaction: loaded together or not at all.

use std::collections::BTreeMap;

use ipnet::IpNet;
use nftables::{
    batch::Batch,
    expr::MetaKey,
    schema::{
        Chain, Counter, Element, FlushObject, NfCmd, NfListObject, Nftables, Rule, Set, SetFlag,
        SetType, SetTypeValue, Table,
    },
    types::{NfChainPolicy, NfChainType, NfFamily, NfHook},
};

use policy::AddressRule;

use super::{
    DENIED_INGRESS, DENIED_PACKETS, DENIED_QUIC, LINK_CONTROL, TABLE,
    filling::Filling,
    openings::{self, Place},
    terms::{
        self, IGMP, Part, Term, accept, address, any_of, count, drop, field, is, lasting, meta,
        network, protocol, word,
    },
};
use crate::firewall::opened::Kept;

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

    /// Takes all elements out of the sets of both families.
    pub(super) fn flush_sets(&mut self, name: &str) {
        for set in sets(name) {
            self.batch.add_cmd(NfCmd::Flush(FlushObject::Set(set)));
        }
    }

    /// Takes away the sets of both families, which no rule names any more.
    pub(super) fn delete_sets(&mut self, name: &str) {
        for set in sets(name) {
            self.batch.delete(NfListObject::Set(set));
        }
    }

    /// Adds ranges to the sets of their families.
    pub(super) fn fill(&mut self, name: &str, nets: &[IpNet]) {
        let nets = IpNet::aggregate(&nets.to_vec());
        for ((_, nets), suffix) in by_family(&nets).into_iter().zip(["4", "6"]) {
            self.elements(format!("{name}{suffix}"), nets.into_iter().map(network));
        }
    }

    /// Adds addresses with a port to the sets of their families.
    pub(super) fn reopen(&mut self, name: &str, kept: &[Kept]) {
        let (v4, v6): (Vec<&Kept>, _) = kept.iter().partition(|kept| kept.to.is_ipv4());
        for (kept, suffix) in [(v4, "4"), (v6, "6")] {
            let elements = kept
                .iter()
                .map(|kept| terms::opening(kept.to, kept.seconds));
            self.elements(format!("{name}{suffix}"), elements);
        }
    }

    /// Adds what was opened to the sets that it is looked for in, each for as long as it is held.
    pub(super) fn hold(&mut self, held: &[(AddressRule, u32)]) {
        let mut sets: BTreeMap<String, Vec<Term>> = BTreeMap::new();
        for (opening, seconds) in held {
            let (set, places) = openings::places(*opening);
            let places = places.into_iter().map(|place| match place {
                Place::Address(to) => lasting(address(to), *seconds),
                Place::Endpoint(to) => terms::opening(to, *seconds),
            });
            sets.entry(set).or_default().extend(places);
        }
        for (set, elements) in sets {
            self.elements(set, elements.into_iter());
        }
    }

    /// Sets of these networks, which are of one family, for rules that are to come; each is filled
    /// apart.
    pub(super) fn large(&mut self, nets: Vec<IpNet>) -> Vec<Term> {
        let is_host = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
        let (hosts, ranges): (Vec<_>, Vec<_>) = nets.into_iter().partition(is_host);
        let mut names = Vec::new();
        for (nets, fill, flags) in [
            (hosts, Filling::of_hosts as fn(_, &[_]) -> _, None),
            (ranges, Filling::of_ranges, Some([SetFlag::Interval].into())),
        ] {
            let Some(first) = nets.first() else { continue };
            let of = match first {
                IpNet::V4(_) => SetType::Ipv4Addr,
                IpNet::V6(_) => SetType::Ipv6Addr,
            };
            let name = format!("large_{}_{}", self.turn, self.fillings.len());
            let set = NfListObject::Set(Box::new(Set {
                family: NfFamily::INet,
                table: TABLE.into(),
                name: name.clone().into(),
                set_type: SetTypeValue::Single(of),
                flags,
                ..Set::default()
            }));
            self.ahead.as_mut().unwrap_or(&mut self.batch).add(set);
            names.push(word(format!("@{name}")));
            self.fillings.push(fill(name, &nets));
        }
        names
    }

    /// Deletes sets that no rule looks into any more.
    pub(super) fn drop_sets(&mut self, names: &[String]) {
        for name in names {
            self.batch.delete(NfListObject::Set(Box::new(Set {
                family: NfFamily::INet,
                table: TABLE.into(),
                name: name.clone().into(),
                ..Set::default()
            })));
        }
    }

    fn elements(&mut self, set: String, elements: impl Iterator<Item = Term>) {
        let elements: Vec<_> = elements.collect();
        if !elements.is_empty() {
            self.batch.add(NfListObject::Element(Element {
                family: NfFamily::INet,
                table: TABLE.into(),
                name: set.into(),
                elem: elements.into(),
            }));
        }
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

    /// One interval set a family, `name4` and `name6`, without overlaps.
    pub(super) fn set(&mut self, name: &str, nets: &[IpNet]) {
        let nets = IpNet::aggregate(&nets.to_vec());
        let types = [("4", SetType::Ipv4Addr), ("6", SetType::Ipv6Addr)];
        for ((_, nets), (suffix, of)) in by_family(&nets).into_iter().zip(types) {
            let elements: Vec<_> = nets.into_iter().map(network).collect();
            self.batch.add(NfListObject::Set(Box::new(Set {
                family: NfFamily::INet,
                table: TABLE.into(),
                name: format!("{name}{suffix}").into(),
                set_type: SetTypeValue::Single(of),
                flags: Some([SetFlag::Interval].into()),
                elem: (!elements.is_empty()).then(|| elements.into()),
                ..Set::default()
            })));
        }
    }

    /// One set a family of addresses with a port, each of them for a while. Hash sets: adding to an
    /// interval set takes longer the more there is in it.
    pub(super) fn endpoints(&mut self, name: &str) {
        const OF: [(&str, [SetType; 2]); 2] = [
            ("4", [SetType::Ipv4Addr, SetType::InetService]),
            ("6", [SetType::Ipv6Addr, SetType::InetService]),
        ];
        for (suffix, of) in OF {
            self.timed(name, suffix, SetTypeValue::Concatenated(of.to_vec().into()));
        }
    }

    /// One set a family of addresses, each of them for a while.
    pub(super) fn addresses(&mut self, name: &str) {
        for (suffix, of) in [("4", SetType::Ipv4Addr), ("6", SetType::Ipv6Addr)] {
            self.timed(name, suffix, SetTypeValue::Single(of));
        }
    }

    fn timed(&mut self, name: &str, suffix: &str, of: SetTypeValue<'static>) {
        self.batch.add(NfListObject::Set(Box::new(Set {
            family: NfFamily::INet,
            table: TABLE.into(),
            name: format!("{name}{suffix}").into(),
            set_type: of,
            flags: Some([SetFlag::Timeout].into()),
            size: Some(MOST_ENDPOINTS),
            ..Set::default()
        })));
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

/// The sets of this name, of both families.
fn sets(name: &str) -> impl Iterator<Item = Box<Set<'static>>> {
    ["4", "6"].into_iter().map(move |suffix| {
        Box::new(Set {
            family: NfFamily::INet,
            table: TABLE.into(),
            name: format!("{name}{suffix}").into(),
            ..Set::default()
        })
    })
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

/// However many addresses a hostile name server makes up, the kernel's memory for them is bounded.
const MOST_ENDPOINTS: u32 = 65_536;
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
    fn an_interval_set_never_overlaps_itself() {
        let mut transaction = Transaction::new();
        transaction.set("x", &nets(&["10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/9"]));
        let text = serde_json::to_string(&transaction.into_ruleset().rules).unwrap();
        assert_eq!(text.matches("10.").count(), 1, "{text}");
    }

    #[test]
    fn an_empty_set_has_no_elements_rather_than_an_empty_list() {
        let mut transaction = Transaction::new();
        transaction.set("x", &[]);
        let text = serde_json::to_string(&transaction.into_ruleset().rules).unwrap();
        assert!(
            text.contains("x4") && text.contains("x6") && !text.contains("elem"),
            "{text}"
        );
    }

    #[test]
    fn only_our_own_table_is_ever_deleted() {
        let text = serde_json::to_string(&Transaction::new().into_ruleset().rules).unwrap();
        assert_eq!(text.matches("delete").count(), 1, "{text}");
        assert!(!text.contains("flush"), "{text}");
    }
}
