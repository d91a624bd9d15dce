//! What a filter that sees addresses alone can hold of the rules about names.
//!
//! A packet shows no name and no protocol. So a name stands for what it resolved to, a wildcard for
//! nothing, and a deny of one protocol is a deny: the filter may refuse what the proxy would have
//! let through, never the other way round.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::entry::Effect;
use crate::name::HostName;
use crate::naming::{bounds, stretches};
use crate::packet::AddressRule;
use crate::port::PortRange;
use crate::rule::{Rule, Scope};
use crate::rules::Rules;

/// A name of the list, and what may be opened to it by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRule {
    name: HostName,
    stretches: Vec<Stretch>,
}

/// Ports on which the same holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    ports: PortRange,
    /// Where the guard is lifted for the name, on these ports.
    lifted: Vec<IpNet>,
}

impl NameRule {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// The ports on which it may be reached, in ascending order; they do not overlap, never none.
    pub fn ports(&self) -> impl Iterator<Item = PortRange> + '_ {
        self.stretches.iter().map(|stretch| stretch.ports)
    }

    /// What may be opened where the name resolved to `address`, which `is_guarded` or not.
    pub(crate) fn openings(
        &self,
        address: IpAddr,
        is_guarded: bool,
    ) -> impl Iterator<Item = AddressRule> + '_ {
        let is_open = move |stretch: &&Stretch| {
            !is_guarded || stretch.lifted.iter().any(|net| net.contains(&address))
        };
        let net = IpNet::from(address);
        self.stretches
            .iter()
            .filter(is_open)
            .map(move |stretch| AddressRule {
                net,
                ports: stretch.ports,
            })
    }
}

/// Every name that an allow entry names itself and that denies leave some port, in their order.
pub(crate) fn name_rules(rules: &Rules) -> Vec<NameRule> {
    let allowed = rules.iter().filter(|(_, rule)| {
        rule.terms.effect == Effect::Allow && matches!(rule.scope, Scope::Exact(_))
    });
    let names: BTreeSet<&str> = allowed.map(|(id, _)| rules.name(id)).collect();
    names
        .into_iter()
        .filter_map(|name| HostName::parse(name).ok())
        .filter(|name| !name.is_window())
        .filter_map(|name| name_rule(rules, name))
        .collect()
}

/// The allow entries that no filter by address can hold, in their canonical spelling.
pub(crate) fn wildcards(rules: &Rules) -> impl Iterator<Item = &str> {
    let open = rules.iter().filter(|(_, rule)| {
        rule.terms.effect == Effect::Allow && matches!(rule.scope, Scope::Below(_))
    });
    open.map(|(id, _)| rules.spelling(id))
}

fn name_rule(rules: &Rules, name: HostName) -> Option<NameRule> {
    let covering = || rules.covering_name(name.as_str()).map(|(_, rule)| rule);
    let bounds = bounds(covering());
    let mut found: Vec<Stretch> = Vec::new();
    for (low, high) in stretches(&bounds) {
        let speaks = |rule: &&Rule| !rule.terms.kinds_on(low).is_empty();
        let speaking = || covering().filter(speaks);
        let is_allowed = speaking().any(|rule| rule.terms.effect == Effect::Allow);
        if !is_allowed || speaking().any(|rule| rule.terms.effect == Effect::Deny) {
            continue;
        }
        let lifted: Vec<IpNet> = speaking().filter_map(|rule| rule.range).collect();
        let touching = found.pop_if(|last| last.ports.high() + 1 == low && last.lifted == lifted);
        let low = touching.map_or(low, |last| last.ports.low());
        found.extend(PortRange::new(low, high).map(|ports| Stretch { ports, lifted }));
    }
    (!found.is_empty()).then_some(NameRule {
        name,
        stretches: found,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use crate::Policy;

    /// `name ports…` of every rule.
    fn names(list: &str) -> Vec<String> {
        let rules = Policy::parse(list).unwrap().name_rules();
        let shown = rules.iter().map(|rule| {
            let ports: Vec<String> = rule.ports().map(|ports| ports.to_string()).collect();
            format!("{} {}", rule.name(), ports.join(" "))
        });
        shown.collect()
    }

    fn openings(list: &str, addresses: &[&str]) -> Vec<String> {
        let policy = Policy::parse(list).unwrap();
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let rules = policy.name_rules();
        let open = rules
            .iter()
            .flat_map(|rule| policy.openings(rule, &addresses));
        open.map(|rule| format!("{} {}", rule.net, rule.ports))
            .collect()
    }

    #[test]
    fn a_name_is_opened_on_its_ports_and_what_touches_is_one_range() {
        for (list, expected) in [
            ("a.example", &["a.example 80 443"][..]),
            ("a.example:22", &["a.example 22"]),
            ("a.example:*", &["a.example *"]),
            ("a.example:79-82", &["a.example 79-82"]),
            (
                "b.example:22,a.example,b.example:23",
                &["a.example 80 443", "b.example 22-23"],
            ),
            ("A.example:8080/http", &["a.example 8080"]),
        ] {
            assert_eq!(names(list), expected, "{list}");
        }
    }

    #[test]
    fn a_deny_of_one_protocol_is_a_deny() {
        for (list, expected) in [
            ("a.example,!a.example:80", &["a.example 443"][..]),
            ("a.example,!*.example:443", &["a.example 80"]),
            ("a.example,!a.example:443/http", &["a.example 80"]),
            ("a.example:1-100,!a.example:22", &["a.example 1-21 23-100"]),
            ("a.example,!a.example,b.example:22", &["b.example 22"]),
        ] {
            assert_eq!(names(list), expected, "{list}");
        }
    }

    #[test]
    fn wildcards_addresses_and_the_window_are_no_names() {
        let list = "*.a.example,*.b.example:22,10.0.0.0/8:22,egress.sandbox:8080,!*.c.example";
        assert_eq!(names(list), [""; 0]);
        let policy = Policy::parse(list).unwrap();
        assert_eq!(
            policy.wildcards().collect::<Vec<_>>(),
            ["*.a.example", "*.b.example:22"]
        );
    }

    #[test]
    fn a_wildcard_adds_its_ports_to_a_name_that_is_listed() {
        assert_eq!(
            names("a.b.example,*.b.example:22"),
            ["a.b.example 22 80 443"],
            "the list allows it, and the name is known"
        );
    }

    #[test]
    fn guarded_addresses_are_opened_on_those_ports_alone_that_lift_the_guard() {
        let list = "a.example,a.example:22@10.0.0.0/8";
        assert_eq!(
            openings(list, &["203.0.114.7", "10.1.2.3", "169.254.169.254"]),
            [
                "203.0.114.7/32 22",
                "203.0.114.7/32 80",
                "203.0.114.7/32 443",
                "10.1.2.3/32 22"
            ]
        );
    }

    #[test]
    fn an_address_in_disguise_is_the_address() {
        for address in [
            "::ffff:10.1.2.3",
            "64:ff9b::a01:203",
            "::1",
            "2002:a01:203::1",
        ] {
            assert_eq!(openings("a.example", &[address]), [""; 0], "{address}");
        }
        assert_eq!(
            openings("a.example:22", &["::ffff:203.0.114.7"]),
            ["203.0.114.7/32 22"]
        );
    }

    #[test]
    fn an_address_that_is_denied_on_all_ports_of_a_name_is_not_opened_and_the_rest_is_told() {
        let list = "a.example:20-30,!203.0.114.7:22,!203.0.114.8,!203.0.114.9:20-30/tls";
        assert_eq!(
            openings(list, &["203.0.114.7", "203.0.114.8", "203.0.114.9"]),
            ["203.0.114.7/32 20-30"]
        );
        let denied = Policy::parse(list).unwrap().denied_addresses();
        let denied = denied
            .iter()
            .map(|rule| format!("{} {}", rule.net, rule.ports));
        assert_eq!(
            denied.collect::<Vec<_>>(),
            [
                "203.0.114.7/32 22",
                "203.0.114.8/32 *",
                "203.0.114.9/32 20-30"
            ]
        );
    }

    #[test]
    fn the_containers_own_addresses_are_guarded_like_any() {
        let mut policy = Policy::parse("a.example").unwrap();
        policy.guard_also(&["203.0.114.7/32".parse().unwrap()]);
        let rules = policy.name_rules();
        let open = policy.openings(&rules[0], &["203.0.114.7".parse().unwrap()]);
        assert_eq!(open, []);
    }
}
