//! What the rules that cover a destination come to.

use crate::entry::Effect;
use crate::rule::{Rule, RuleId};
use crate::stream::{StreamKind, StreamKinds};

/// The sum of the rules that cover a host, as seen from one port.
///
/// Of each sort the first rule is kept, which is the most specific.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    allowed: StreamKinds,
    denied: StreamKinds,
    /// For each kind the first rule that allows it, and how many rules came before.
    allow: [Option<(usize, RuleId)>; StreamKind::ALL.len()],
    deny: Option<RuleId>,
    elsewhere: Option<RuleId>,
}

/// Where a verdict leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The rule allows, and these kinds of stream are left when the denies are taken off.
    Allowed(RuleId, StreamKinds),
    /// The rule denies.
    Denied(RuleId),
    /// The rule allows the host, but on other ports.
    Elsewhere(RuleId),
    /// No rule speaks of the host.
    Unknown,
}

impl Verdict {
    /// Adds up rules, which come the most specific first.
    pub(crate) fn of<'a>(rules: impl Iterator<Item = (RuleId, &'a Rule)>, port: u16) -> Self {
        let mut verdict = Self::default();
        for (rank, (id, rule)) in rules.enumerate() {
            let kinds = rule.terms.kinds_on(port);
            match (rule.terms.effect, kinds.is_empty()) {
                (Effect::Allow, false) => verdict.add_allow(rank, id, kinds),
                (Effect::Allow, true) => {
                    verdict.elsewhere.get_or_insert(id);
                }
                (Effect::Deny, false) => {
                    verdict.deny.get_or_insert(id);
                    verdict.denied = verdict.denied.union(kinds);
                }
                (Effect::Deny, true) => {}
            }
        }
        verdict
    }

    /// Denies win: what is permitted is what they leave of what was allowed.
    pub(crate) fn outcome(&self) -> Outcome {
        let left = self.allowed.without(self.denied);
        if let Some(rule) = self.first_allow(left) {
            return Outcome::Allowed(rule, left);
        }
        // A deny of one kind says nothing where that kind was not allowed anyway.
        let speaks = !self.allowed.is_empty() || self.denied == StreamKinds::ALL;
        match (self.deny.filter(|_| speaks), self.elsewhere) {
            (Some(deny), _) => Outcome::Denied(deny),
            (None, Some(rule)) => Outcome::Elsewhere(rule),
            (None, None) => Outcome::Unknown,
        }
    }

    fn add_allow(&mut self, rank: usize, id: RuleId, kinds: StreamKinds) {
        self.allowed = self.allowed.union(kinds);
        for (kind, first) in StreamKind::ALL.into_iter().zip(&mut self.allow) {
            if kinds.contains(kind) {
                first.get_or_insert((rank, id));
            }
        }
    }

    fn first_allow(&self, kinds: StreamKinds) -> Option<RuleId> {
        let of_kind = StreamKind::ALL.into_iter().zip(self.allow);
        of_kind
            .filter(|(kind, _)| kinds.contains(*kind))
            .filter_map(|(_, first)| first)
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, id)| id)
    }
}
