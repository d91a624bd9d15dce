//! The sets that rules look into: made, filled, emptied and taken away in the transaction of the rules.

use std::collections::BTreeMap;

use ipnet::IpNet;
use nftables::{
    schema::{Element, FlushObject, NfCmd, NfListObject, Set, SetFlag, SetType, SetTypeValue},
    types::NfFamily,
};
use policy::AddressRule;

use super::{
    super::{
        TABLE,
        filling::Filling,
        openings::{self, Place},
        terms::{self, Term, address, lasting, network, word},
    },
    Transaction, by_family,
};
use crate::firewall::opened::Kept;

impl Transaction {
    /// Takes all elements out of the sets of both families.
    pub(in super::super) fn flush_sets(&mut self, name: &str) {
        for set in sets(name) {
            self.batch.add_cmd(NfCmd::Flush(FlushObject::Set(set)));
        }
    }

    /// Takes away the sets of both families, which no rule names any more.
    pub(in super::super) fn delete_sets(&mut self, name: &str) {
        for set in sets(name) {
            self.batch.delete(NfListObject::Set(set));
        }
    }

    /// Adds ranges to the sets of their families.
    pub(in super::super) fn fill(&mut self, name: &str, nets: &[IpNet]) {
        let nets = IpNet::aggregate(&nets.to_vec());
        for ((_, nets), suffix) in by_family(&nets).into_iter().zip(["4", "6"]) {
            self.elements(format!("{name}{suffix}"), nets.into_iter().map(network));
        }
    }

    /// Adds addresses with a port to the sets of their families.
    pub(in super::super) fn reopen(&mut self, name: &str, kept: &[Kept]) {
        let (v4, v6): (Vec<&Kept>, _) = kept.iter().partition(|kept| kept.to.is_ipv4());
        for (kept, suffix) in [(v4, "4"), (v6, "6")] {
            let elements = kept
                .iter()
                .map(|kept| terms::opening(kept.to, kept.seconds));
            self.elements(format!("{name}{suffix}"), elements);
        }
    }

    /// Adds what was opened to the sets that it is looked for in, each for as long as it is held.
    pub(in super::super) fn hold(&mut self, held: &[(AddressRule, u32)]) {
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
    pub(in super::super) fn large(&mut self, nets: Vec<IpNet>) -> Vec<Term> {
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
    pub(in super::super) fn drop_sets(&mut self, names: &[String]) {
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

    /// One interval set a family, `name4` and `name6`, without overlaps.
    pub(in super::super) fn set(&mut self, name: &str, nets: &[IpNet]) {
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
    pub(in super::super) fn endpoints(&mut self, name: &str) {
        const OF: [(&str, [SetType; 2]); 2] = [
            ("4", [SetType::Ipv4Addr, SetType::InetService]),
            ("6", [SetType::Ipv6Addr, SetType::InetService]),
        ];
        for (suffix, of) in OF {
            self.timed(name, suffix, SetTypeValue::Concatenated(of.to_vec().into()));
        }
    }

    /// One set a family of addresses, each of them for a while.
    pub(in super::super) fn addresses(&mut self, name: &str) {
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

/// However many addresses a hostile name server makes up, the kernel's memory for them is bounded.
const MOST_ENDPOINTS: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
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
}
