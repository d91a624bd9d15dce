//! Explains a denial by the entry that came nearest, and names the entry that would allow.

use std::net::IpAddr;

use crate::decision::Denial;
use crate::entry::{Effect, Entry};
use crate::guard;
use crate::host::{Destination, Host};
use crate::port::PortRange;
use crate::reason::DenyReason;
use crate::rule::RuleId;
use crate::rules::{Rules, ancestors};
use crate::similar::Similar;

/// An entry denies the destination.
pub(crate) fn denied_by_rule(rules: &Rules, deny: RuleId) -> Denial {
    let rule = rules.spelling(deny);
    explain(
        DenyReason::DeniedByRule,
        rule,
        format!("`{rule}` denies it, and no other entry can overrule that"),
    )
}

/// An entry allows the host, but on other ports.
pub(crate) fn port_not_allowed(rules: &Rules, elsewhere: RuleId, to: &Destination) -> Denial {
    let rule = rules.spelling(elsewhere);
    let ports = rules
        .terms(elsewhere)
        .into_iter()
        .flat_map(|terms| terms.port_ranges())
        .map(|range| range.to_string())
        .collect::<Vec<_>>()
        .join(" and ");
    let Some(port) = PortRange::single(to.port) else {
        return explain(
            DenyReason::PortNotAllowed,
            rule,
            "nothing listens on port 0".into(),
        );
    };
    let add = Entry::allowing(&to.host, Some(port), None);
    explain(
        DenyReason::PortNotAllowed,
        rule,
        format!("`{rule}` is allowed on {ports}; add `{add}`"),
    )
}

/// No entry covers the host.
pub(crate) fn not_allowed(rules: &Rules, similar: &Similar, to: &Destination) -> Denial {
    let add = Entry::allowing(&to.host, unless_web(to.port), None);
    let name = match &to.host {
        Host::Name(name) => name.as_str(),
        Host::Address(_) => {
            let hint = format!("connect by name, or add `{add}` to allow the address itself");
            return Denial {
                hint: Some(hint),
                ..Denial::new(DenyReason::AddressLiteral)
            };
        }
    };
    if let Some(rule) = near_in_tree(rules, name) {
        let rule = rules.spelling(rule);
        return explain(
            DenyReason::NotAllowed,
            rule,
            format!("`{rule}` does not cover `{name}`; add `{add}`"),
        );
    }
    match similar.nearest(rules, name) {
        Some(rule) => {
            let hint = format!("did you mean `{}`?", rules.name(rule));
            explain(DenyReason::NotAllowed, rules.spelling(rule), hint)
        }
        None => Denial::new(DenyReason::NotAllowed),
    }
}

/// The name is allowed, and resolves to guarded addresses only.
pub(crate) fn private_address(rule: &str, to: &Destination, address: IpAddr) -> Denial {
    let range = guard::range_around(address);
    let add = Entry::allowing(&to.host, unless_web(to.port), Some(range));
    let hint = format!(
        "`{}` resolves to {}; add `{add}`",
        to.host,
        address.to_canonical()
    );
    explain(DenyReason::PrivateAddress, rule, hint)
}

/// The name is allowed, and an entry denies every address that it resolves to.
pub(crate) fn denied_address(
    rules: &Rules,
    deny: RuleId,
    to: &Destination,
    address: IpAddr,
) -> Denial {
    let rule = rules.spelling(deny);
    let hint = format!(
        "`{}` resolves to {}, which `{rule}` denies",
        to.host,
        address.to_canonical()
    );
    explain(DenyReason::DeniedByRule, rule, hint)
}

/// An entry one step off in the tree of names: the wildcard whose apex this is, or the apex of
/// which this is a subdomain. These are the two that people expect to be covered.
fn near_in_tree(rules: &Rules, name: &str) -> Option<RuleId> {
    let apexes = ancestors(name).flat_map(|name| rules.exact(name));
    rules
        .below(name)
        .chain(apexes)
        .find(|(_, rule)| rule.terms.effect == Effect::Allow)
        .map(|(id, _)| id)
}

/// The ports to write: none where those that go without saying will do.
fn unless_web(port: u16) -> Option<PortRange> {
    PortRange::single(port).filter(|port| ![PortRange::HTTP, PortRange::HTTPS].contains(port))
}

fn explain(reason: DenyReason, nearest: &str, hint: String) -> Denial {
    Denial {
        reason,
        nearest: Some(nearest.to_owned()),
        hint: Some(hint),
    }
}
