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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::rules::Rules;

    /// The outcome in words: the word, then the rule that decided.
    fn outcome(list: &[&str], host: &str, port: u16) -> String {
        let rules = Rules::of(list);
        let host = Host::parse(host).unwrap();
        match Verdict::of(rules.covering(&host), port).outcome() {
            Outcome::Allowed(id, kinds) => {
                let kinds: Vec<_> = StreamKind::ALL
                    .into_iter()
                    .filter(|kind| kinds.contains(*kind))
                    .collect();
                format!("{kinds:?} {}", rules.spelling(id))
            }
            Outcome::Denied(id) => format!("denied {}", rules.spelling(id)),
            Outcome::Elsewhere(id) => format!("elsewhere {}", rules.spelling(id)),
            Outcome::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn the_most_specific_rule_is_named() {
        let list = [
            "*.example.com:*",
            "*.b.example.com",
            "a.b.example.com:443",
            "10.0.0.0/8",
            "10.1.0.0/16",
        ];
        for (host, port, expected) in [
            ("a.b.example.com", 443, "[Tls] a.b.example.com:443"),
            ("c.b.example.com", 443, "[Tls] *.b.example.com"),
            ("b.example.com", 443, "[Tls] *.example.com:*"),
            ("a.b.example.com", 22, "[Tcp] *.example.com:*"),
            ("10.1.2.3", 80, "[Http] 10.1.0.0/16"),
            ("10.2.2.3", 80, "[Http] 10.0.0.0/8"),
            ("10.2.2.3", 22, "elsewhere 10.0.0.0/8"),
            ("11.2.2.3", 22, "unknown"),
        ] {
            assert_eq!(outcome(&list, host, port), expected, "{host}:{port}");
        }
    }

    #[test]
    fn a_deny_wins_from_whatever_depth() {
        let list = [
            "a.b.example.com",
            "!*.example.com",
            "10.1.2.3",
            "!10.0.0.0/8:443",
        ];
        for (host, port, expected) in [
            ("a.b.example.com", 443, "denied !*.example.com"),
            ("z.example.com", 1, "denied !*.example.com"),
            ("10.1.2.3", 443, "denied !10.0.0.0/8:443"),
            ("10.1.2.3", 80, "[Http] 10.1.2.3"),
        ] {
            assert_eq!(outcome(&list, host, port), expected, "{host}:{port}");
        }
    }

    #[test]
    fn a_deny_of_one_kind_leaves_the_others() {
        let list = [
            "a.example",
            "a.example:443/tcp",
            "!a.example/tls",
            "b.example",
            "!b.example/tcp",
        ];
        for (host, port, expected) in [
            ("a.example", 443, "[Tcp] a.example:443/tcp"),
            ("a.example", 80, "[Http] a.example"),
            ("b.example", 443, "[Tls] b.example"),
            ("b.example", 22, "elsewhere b.example"),
        ] {
            assert_eq!(outcome(&list, host, port), expected, "{host}:{port}");
        }
        assert_eq!(
            outcome(&["a.example:443", "!a.example/tls"], "a.example", 443),
            "denied !a.example/tls"
        );
    }

    #[test]
    fn several_rules_add_up_their_kinds() {
        let list = [
            "a.example",
            "a.example:443/tcp",
            "*.example.com",
            "x.example.com:443/http",
        ];
        assert_eq!(outcome(&list, "a.example", 443), "[Tls, Tcp] a.example");
        assert_eq!(
            outcome(&list, "x.example.com", 443),
            "[Tls, Http] x.example.com:443/http"
        );
    }
}
