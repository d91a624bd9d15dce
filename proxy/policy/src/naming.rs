//! Which names may be resolved, before anybody has said on which port they will be used.
//!
//! A DNS question names no port, and its answer serves every connection that follows. So a name may
//! be resolved where some port is left to it once the denies are taken off, and an address may be
//! shown where some entry about the name would let it be dialled.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::entry::Effect;
use crate::name::HostName;
use crate::net;
use crate::port::PortRange;
use crate::rule::{Rule, RuleId};
use crate::rules::Rules;
use crate::verdict::{Outcome, Verdict};

/// Proof that policy lets this name be resolved. Only [`crate::Policy::decide_name`] makes one.
///
/// It is no [`crate::Permit`]: what is dialled is decided on with its port.
#[derive(Clone)]
#[must_use]
pub struct NamePermit {
    name: HostName,
    rules: Arc<Rules>,
    rule: RuleId,
    opaque: Vec<PortRange>,
}

impl NamePermit {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// The entry that allows it, in its canonical spelling; of several the most specific.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rules.spelling(self.rule)
    }

    /// The domain whose wildcard allows the name; `None` if an entry names it.
    #[must_use]
    pub fn below(&self) -> Option<&str> {
        self.rules.wildcard(self.rule)
    }

    /// The ports on which any stream may pass, in ascending order; they do not overlap.
    #[must_use]
    pub fn opaque_ports(&self) -> &[PortRange] {
        &self.opaque
    }
}

impl fmt::Debug for NamePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamePermit")
            .field("name", &self.name)
            .field("rule", &self.rule())
            .field("opaque", &self.opaque)
            .finish_non_exhaustive()
    }
}

/// Decides on a name. A name that no entry allows costs the lookups of a decision and nothing else.
pub(crate) fn decide(rules: &Arc<Rules>, name: &HostName) -> Option<NamePermit> {
    let covering = || rules.covering_name(name.as_str());
    let allows = |(_, rule): &(RuleId, &Rule)| rule.terms.effect == Effect::Allow;
    covering().find(allows)?;
    let bounds = bounds(covering().map(|(_, rule)| rule));
    let mut allowed = Vec::new();
    let mut opaque = Vec::new();
    for (low, high) in stretches(&bounds) {
        if let Outcome::Allowed(rule, kinds) = Verdict::of(covering(), low).outcome() {
            allowed.push(rule);
            if kinds.is_opaque() {
                push(&mut opaque, low, high);
            }
        }
    }
    let rule = covering()
        .map(|(id, _)| id)
        .find(|id| allowed.contains(id))?;
    Some(NamePermit {
        name: name.clone(),
        rules: Arc::clone(rules),
        rule,
        opaque,
    })
}

/// The ranges that some entry about the name opens for it, on whichever port.
pub(crate) fn lifted(rules: &Rules, name: &HostName) -> Vec<IpNet> {
    rules
        .covering_name(name.as_str())
        .filter(|(_, rule)| rule.terms.effect == Effect::Allow)
        .filter_map(|(_, rule)| rule.range)
        .collect()
}

/// Whether an address is denied on every port, to everybody.
pub(crate) fn is_denied(rules: &Rules, address: IpAddr) -> bool {
    rules
        .covering_net(net::of_address(address))
        .any(|(_, rule)| {
            let terms = rule.terms;
            terms.effect == Effect::Deny && terms.ports.is_none() && terms.kind.is_none()
        })
}

/// The ports at which the verdict may change: it is the same from each to the next.
pub(crate) fn bounds<'a>(rules: impl Iterator<Item = &'a Rule>) -> BTreeSet<u16> {
    let ranges = rules.flat_map(|rule| rule.terms.port_ranges());
    let edges = ranges.flat_map(|range| [Some(range.low()), range.high().checked_add(1)]);
    // What is demanded by default is another on 80 and on 443 than around them.
    let defaults = [1, 80, 81, 443, 444].map(Some);
    edges.chain(defaults).flatten().collect()
}

pub(crate) fn stretches(bounds: &BTreeSet<u16>) -> impl Iterator<Item = (u16, u16)> + '_ {
    let ends = bounds.iter().skip(1).map(|next| next - 1);
    bounds.iter().copied().zip(ends.chain([u16::MAX]))
}

/// Adds a range that is above all others, as part of the last where they touch.
fn push(ranges: &mut Vec<PortRange>, low: u16, high: u16) {
    let touching = ranges.pop_if(|last| last.high() + 1 == low);
    let low = touching.map_or(low, PortRange::low);
    ranges.extend(PortRange::new(low, high));
}

#[cfg(test)]
mod tests {
    use crate::{DenyReason, HostName, Policy};

    fn name(name: &str) -> HostName {
        HostName::parse(name).unwrap()
    }

    fn rule(list: &str, asked: &str) -> Option<String> {
        let permit = Policy::parse(list).unwrap().decide_name(&name(asked));
        permit.map(|permit| permit.rule().to_owned())
    }

    fn opaque(list: &str) -> Vec<String> {
        let permit = Policy::parse(list)
            .unwrap()
            .decide_name(&name("a.x.example"));
        let permit = permit.unwrap();
        permit
            .opaque_ports()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_name_may_be_resolved_where_some_port_is_allowed() {
        for (list, asked, expected) in [
            ("a.x.example", "a.x.example", Some("a.x.example")),
            ("a.x.example:22", "a.x.example", Some("a.x.example:22")),
            ("*.x.example", "b.a.x.example", Some("*.x.example")),
            (
                "*.x.example, a.x.example:22",
                "a.x.example",
                Some("a.x.example:22"),
            ),
            ("*.a.x.example", "a.x.example", None),
            ("a.x.example", "b.a.x.example", None),
            ("a.x.example", "b.x.example", None),
            ("203.0.113.7", "a.x.example", None),
        ] {
            assert_eq!(rule(list, asked).as_deref(), expected, "{asked} in {list}");
        }
    }

    #[test]
    fn what_is_wholly_denied_may_not_be_resolved() {
        for (list, resolved) in [
            ("a.x.example, !a.x.example", false),
            ("*.x.example, !a.x.example", false),
            ("a.x.example, !*.x.example", false),
            ("a.x.example, !a.x.example:443", true),
            ("a.x.example:443, !a.x.example:443", false),
            ("a.x.example, !a.x.example:80, !a.x.example:443", false),
            ("a.x.example:443, !a.x.example:443/http", true),
            ("a.x.example:443, !a.x.example:443/tls", false),
            ("a.x.example:1-100, !a.x.example:1-99", true),
            (
                "a.x.example:1-100, !a.x.example:1-50, !a.x.example:51-100",
                false,
            ),
            ("a.x.example:*, !a.x.example:1-65534", true),
            ("a.x.example:*, !a.x.example:*", false),
        ] {
            assert_eq!(rule(list, "a.x.example").is_some(), resolved, "{list}");
        }
    }

    #[test]
    fn a_name_that_an_entry_names_is_below_no_wildcard() {
        let below = |list: &str| {
            let policy = Policy::parse(list).unwrap();
            let permit = policy.decide_name(&name("c.b.x.example")).unwrap();
            permit.below().map(str::to_owned)
        };
        assert_eq!(below("*.x.example").as_deref(), Some("x.example"));
        assert_eq!(
            below("*.x.example, *.b.x.example").as_deref(),
            Some("b.x.example")
        );
        assert_eq!(below("*.x.example, c.b.x.example:22"), None);
        // Of what is denied on every port of the entry, nothing is left to be the reason.
        let denied = "*.x.example, c.b.x.example:22, !c.b.x.example:22";
        assert_eq!(below(denied).as_deref(), Some("x.example"));
    }

    #[test]
    fn opaque_ports_are_those_on_which_any_stream_may_pass() {
        for (list, expected) in [
            ("a.x.example", vec![]),
            ("a.x.example:22", vec!["22"]),
            ("a.x.example:443/tcp", vec!["443"]),
            ("a.x.example:8443/tls", vec![]),
            ("a.x.example:20-30, a.x.example:31-40", vec!["20-40"]),
            ("a.x.example:20-30, !a.x.example:25", vec!["20-24", "26-30"]),
            ("a.x.example:79-81", vec!["79", "81"]),
            ("a.x.example:*", vec!["1-79", "81-442", "444-65535"]),
            ("a.x.example:*/tcp", vec!["*"]),
            ("*.x.example:22, a.x.example:2222", vec!["22", "2222"]),
            ("a.x.example:22, !a.x.example:22/tls", vec!["22"]),
        ] {
            assert_eq!(opaque(list), expected, "{list}");
        }
    }

    #[test]
    fn an_answer_shows_no_guarded_address_that_no_entry_for_the_name_opens() {
        let mut policy = Policy::parse(
            "a.x.example, a.x.example:22@10.0.0.0/8, b.x.example, !8.8.4.4, !8.8.8.8:443, 10.9.9.9",
        )
        .unwrap();
        policy.guard_also(&["9.9.9.9/32".parse().unwrap()]);
        let shown = |asked: &str, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let permit = policy.decide_name(&name(asked)).unwrap();
            let shown = policy.check_answer(&permit, &addresses).unwrap_or_default();
            shown.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let inward = ["10.1.2.3", "127.0.0.1", "1.1.1.1", "::ffff:10.1.2.4"];
        assert_eq!(
            shown("a.x.example", &inward),
            ["10.1.2.3", "1.1.1.1", "10.1.2.4"]
        );
        assert_eq!(shown("b.x.example", &inward), ["1.1.1.1"]);
        assert_eq!(shown("b.x.example", &["10.9.9.9", "9.9.9.9"]), [""; 0]);
        let permit = policy.decide_name(&name("b.x.example")).unwrap();
        let guarded = ["::ffff:10.9.9.9".parse().unwrap()];
        let denial = policy.check_answer(&permit, &guarded).unwrap_err();
        assert_eq!(denial.reason, DenyReason::PrivateAddress);
        assert_eq!(denial.address, Some("10.9.9.9".parse().unwrap()));
        assert_eq!(denial.hint, None, "the guest would read it");
        assert_eq!(policy.check_answer(&permit, &[]), Ok(vec![]));
        // Denied on one port, it may still be dialled on another.
        assert_eq!(shown("a.x.example", &["8.8.4.4", "8.8.8.8"]), ["8.8.8.8"]);
    }
}
