//! The entries of a policy, packed, and found by whom they are about.
//!
//! The canonical entries stand in one string, sorted, and every other part points into it: a
//! hundred thousand names cost a hundred thousand small records and no allocation each. A name is
//! found by one hash lookup, and so is each domain above it, however many entries there are.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::iter;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use ipnet::IpNet;

use crate::depth::Depths;
use crate::entry::Terms;
use crate::host::Host;
use crate::net;
use crate::rule::{Rule, RuleId, Scope};

/// The rules of a policy.
pub(crate) struct Rules {
    text: String,
    packed: Vec<Rule>,
    names: HashTable<RuleId>,
    nets: HashMap<IpNet, RuleId, RandomState>,
    /// The prefix lengths that occur, longest first.
    prefixes: Vec<u8>,
    exact_depths: Depths,
    wildcard_depths: Depths,
    hasher: RandomState,
}

impl Rules {
    /// Rules whose spelling is in `text`, sorted and each on its line.
    pub(crate) fn new(text: String, packed: Vec<Rule>) -> Self {
        let names = HashTable::with_capacity(packed.len());
        let hasher = RandomState::default();
        let (nets, prefixes) = (HashMap::default(), Vec::new());
        let mut rules = Self {
            text,
            packed,
            names,
            nets,
            prefixes,
            exact_depths: Depths::default(),
            wildcard_depths: Depths::default(),
            hasher,
        };
        rules.link();
        rules
    }

    /// The canonical entries, sorted and deduplicated, each followed by a line feed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The number of rules.
    pub(crate) fn len(&self) -> usize {
        self.packed.len()
    }

    /// Every rule, in the order of the text.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.packed
            .iter()
            .enumerate()
            .filter_map(|(index, rule)| Some((RuleId::at(index)?, rule)))
    }

    /// The rule's canonical spelling.
    pub(crate) fn spelling(&self, id: RuleId) -> &str {
        self.rule(id).map_or("", |rule| rule.spelling(&self.text))
    }

    /// The name that the rule is about, without `*.`; empty for a range.
    pub(crate) fn name(&self, id: RuleId) -> &str {
        self.rule(id).map_or("", |rule| rule.name(&self.text))
    }

    /// The domain that a wildcard rule is about; `None` for a rule of another sort.
    pub(crate) fn wildcard(&self, id: RuleId) -> Option<&str> {
        self.rule(id)
            .filter(|rule| matches!(rule.scope, Scope::Below(_)))
            .map(|rule| rule.name(&self.text))
    }

    /// What the rule says about its target.
    pub(crate) fn terms(&self, id: RuleId) -> Option<Terms> {
        self.rule(id).map(|rule| rule.terms)
    }

    /// The rules that cover this host, the most specific first.
    pub(crate) fn covering<'a>(
        &'a self,
        host: &'a Host,
    ) -> impl Iterator<Item = (RuleId, &'a Rule)> {
        let (name, net) = match host {
            Host::Name(name) => (Some(name.as_str()), None),
            Host::Address(address) => (None, Some(net::of_address(*address))),
        };
        let by_name = name.into_iter().flat_map(|name| self.covering_name(name));
        let by_net = net.into_iter().flat_map(|net| self.covering_net(net));
        by_name.chain(by_net)
    }

    /// The rules that cover this name: those about it, then the wildcards above it.
    pub(crate) fn covering_name<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (RuleId, &'a Rule)> {
        self.exact(name).chain(self.above(name))
    }

    /// The rules about exactly this name.
    pub(crate) fn exact(&self, name: &str) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.named(name)
            .filter(|(_, rule)| matches!(rule.scope, Scope::Exact(_)))
    }

    /// The wildcards on this very name, which do not cover it.
    pub(crate) fn below(&self, name: &str) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.named(name)
            .filter(|(_, rule)| matches!(rule.scope, Scope::Below(_)))
    }

    /// The wildcards that cover this name, the nearest first.
    pub(crate) fn above<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (RuleId, &'a Rule)> {
        self.wildcard_depths
            .above(name)
            .flat_map(|name| self.below(name))
    }

    /// The rules about the domains above this name, which do not cover it, the nearest first.
    pub(crate) fn apexes<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (RuleId, &'a Rule)> {
        self.exact_depths
            .above(name)
            .flat_map(|name| self.exact(name))
    }

    /// The rules about a range that contains all of `net`, the smallest first.
    pub(crate) fn covering_net(&self, net: IpNet) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.prefixes
            .iter()
            .filter(move |&&prefix| prefix <= net.prefix_len())
            .filter_map(move |&prefix| IpNet::new(net.addr(), prefix).ok())
            .flat_map(|range| self.chain(self.nets.get(&range.trunc()).copied()))
    }

    fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.packed.get(id.index())
    }

    fn named(&self, name: &str) -> impl Iterator<Item = (RuleId, &Rule)> {
        let hash = self.hasher.hash_one(name);
        let head = self.names.find(hash, |id| self.name(*id) == name);
        self.chain(head.copied())
    }

    fn chain(&self, head: Option<RuleId>) -> impl Iterator<Item = (RuleId, &Rule)> {
        let resolve = |id: RuleId| self.rule(id).map(|rule| (id, rule));
        iter::successors(head.and_then(resolve), move |(_, rule)| {
            rule.next.and_then(resolve)
        })
    }

    /// Puts the rules into the tables, from the last to the first so that a chain keeps their order.
    fn link(&mut self) {
        for index in (0..self.packed.len()).rev() {
            let (Some(id), Some(rule)) = (RuleId::at(index), self.packed.get(index)) else {
                continue;
            };
            let head = match rule.scope {
                Scope::Net => rule.range.and_then(|net| self.nets.insert(net, id)),
                Scope::Exact(_) => {
                    self.exact_depths.insert(rule.name(&self.text));
                    self.link_name(id)
                }
                Scope::Below(_) => {
                    self.wildcard_depths.insert(rule.name(&self.text));
                    self.link_name(id)
                }
            };
            if let Some(rule) = self.packed.get_mut(index) {
                rule.next = head;
            }
        }
        let lengths: BTreeSet<u8> = self.nets.keys().map(IpNet::prefix_len).collect();
        self.prefixes = lengths.into_iter().rev().collect();
    }

    /// Makes this rule the head of its name's chain and returns the former one.
    fn link_name(&mut self, id: RuleId) -> Option<RuleId> {
        let Self {
            text,
            packed,
            names,
            hasher,
            ..
        } = self;
        let name_of = |id: &RuleId| packed.get(id.index()).map_or("", |rule| rule.name(text));
        let name = name_of(&id);
        let hash = hasher.hash_one(name);
        match names.entry(
            hash,
            |other| name_of(other) == name,
            |other| hasher.hash_one(name_of(other)),
        ) {
            Slot::Occupied(mut slot) => Some(std::mem::replace(slot.get_mut(), id)),
            Slot::Vacant(slot) => {
                slot.insert(id);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_rules_come_the_most_specific_first() {
        let list = [
            "*.example.com",
            "*.b.example.com",
            "b.example.com",
            "b.example.com:22",
            "!b.example.com:25",
            "a.b.example.com",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3",
            "2001:db8::/32",
        ];
        let rules = Rules::of(&list);
        for (host, expected) in [
            (
                "a.b.example.com",
                vec!["a.b.example.com", "*.b.example.com", "*.example.com"],
            ),
            (
                "b.example.com",
                vec![
                    "!b.example.com:25",
                    "b.example.com",
                    "b.example.com:22",
                    "*.example.com",
                ],
            ),
            ("example.com", vec![]),
            ("ab.example.com", vec!["*.example.com"]),
            ("10.1.2.3", vec!["10.1.2.3", "10.1.0.0/16", "10.0.0.0/8"]),
            ("10.2.2.3", vec!["10.0.0.0/8"]),
            ("2001:db8::1", vec!["2001:db8::/32"]),
            ("::1", vec![]),
        ] {
            let found: Vec<_> = rules
                .covering(&Host::parse(host).unwrap())
                .map(|(id, _)| rules.spelling(id))
                .collect();
            assert_eq!(found, expected, "{host}");
        }
    }

    #[test]
    fn every_rule_is_found_by_its_name() {
        let list: Vec<String> = (0..2000).map(|i| format!("host{i}.example.com")).collect();
        let rules = Rules::of(&list.iter().map(String::as_str).collect::<Vec<_>>());
        for name in &list {
            let found: Vec<_> = rules.exact(name).map(|(id, _)| rules.name(id)).collect();
            assert_eq!(found, [name], "{name}");
        }
    }
}
