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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Policy};

    fn denial(list: &str, host: &str, port: u16, addresses: &[&str]) -> Denial {
        let policy = Policy::parse(list).unwrap();
        match policy.decide(&Destination::parse(host, port).unwrap()) {
            Decision::Deny(denial) => denial,
            Decision::Allow(permit) => {
                let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
                policy.check_addresses(&permit, &addresses).unwrap_err()
            }
        }
    }

    #[test]
    fn a_denial_names_the_nearest_entry_and_the_remedy() {
        for (list, host, port, nearest, hint) in [
            (
                "*.example.org",
                "example.org",
                443,
                "*.example.org",
                "`*.example.org` does not cover `example.org`; add `example.org`",
            ),
            (
                "*.example.org",
                "example.org",
                8443,
                "*.example.org",
                "`*.example.org` does not cover `example.org`; add `example.org:8443`",
            ),
            (
                "github.com,!gist.github.com:22",
                "gist.github.com",
                443,
                "github.com",
                "`github.com` does not cover `gist.github.com`; add `gist.github.com`",
            ),
            (
                "example.com,b.example.com",
                "a.b.example.com",
                443,
                "b.example.com",
                "`b.example.com` does not cover `a.b.example.com`; add `a.b.example.com`",
            ),
            (
                "github.com",
                "github.com",
                22,
                "github.com",
                "`github.com` is allowed on 80 and 443; add `github.com:22`",
            ),
            (
                "github.com:443",
                "github.com",
                22,
                "github.com:443",
                "`github.com:443` is allowed on 443; add `github.com:22`",
            ),
            (
                "*.example.com:8000-8100",
                "a.example.com",
                443,
                "*.example.com:8000-8100",
                "`*.example.com:8000-8100` is allowed on 8000-8100; add `a.example.com:443`",
            ),
            (
                "github.com:*",
                "github.com",
                0,
                "github.com:*",
                "nothing listens on port 0",
            ),
            (
                "203.0.113.0/24:5432",
                "203.0.113.9",
                443,
                "203.0.113.0/24:5432",
                "`203.0.113.0/24:5432` is allowed on 5432; add `203.0.113.9:443`",
            ),
            (
                "[2001:db8::/32]:443",
                "2001:db8::5",
                22,
                "[2001:db8::/32]:443",
                "`[2001:db8::/32]:443` is allowed on 443; add `[2001:db8::5]:22`",
            ),
            (
                "api.github.com:22",
                "api.githib.com",
                443,
                "api.github.com:22",
                "did you mean `api.github.com`?",
            ),
            (
                "*.example.com,!a.example.com",
                "a.example.com",
                443,
                "!a.example.com",
                "`!a.example.com` denies it, and no other entry can overrule that",
            ),
        ] {
            let denial = denial(list, host, port, &[]);
            assert_eq!(
                denial.nearest.as_deref(),
                Some(nearest),
                "{list}: {host}:{port}"
            );
            assert_eq!(denial.hint.as_deref(), Some(hint), "{list}: {host}:{port}");
        }
    }

    #[test]
    fn a_private_address_is_answered_with_the_range_to_add() {
        for (entry, port, address, hint) in [
            (
                "git.corp.example",
                443,
                "10.1.2.3",
                "`git.corp.example` resolves to 10.1.2.3; add `git.corp.example@10.0.0.0/8`",
            ),
            (
                "git.corp.example:22",
                22,
                "192.168.1.1",
                "`git.corp.example` resolves to 192.168.1.1; add `git.corp.example:22@192.168.0.0/16`",
            ),
            (
                "*.corp.example",
                80,
                "::ffff:127.0.0.1",
                "`git.corp.example` resolves to 127.0.0.1; add `git.corp.example@127.0.0.1/32`",
            ),
            (
                "git.corp.example",
                443,
                "fd00::1",
                "`git.corp.example` resolves to fd00::1; add `git.corp.example@fc00::/7`",
            ),
        ] {
            let denial = denial(entry, "git.corp.example", port, &[address]);
            assert_eq!(denial.reason, DenyReason::PrivateAddress, "{entry}");
            assert_eq!(denial.nearest.as_deref(), Some(entry));
            assert_eq!(denial.hint.as_deref(), Some(hint), "{entry}");
        }
    }

    #[test]
    fn a_denied_address_is_answered_with_the_deny() {
        let denial = denial(
            "a.example@10.0.0.0/8,!10.1.0.0/16",
            "a.example",
            443,
            &["10.1.2.3"],
        );
        assert_eq!(denial.reason, DenyReason::DeniedByRule);
        assert_eq!(denial.nearest.as_deref(), Some("!10.1.0.0/16"));
        assert_eq!(
            denial.hint.as_deref(),
            Some("`a.example` resolves to 10.1.2.3, which `!10.1.0.0/16` denies")
        );
    }

    #[test]
    fn a_bare_address_is_answered_with_itself() {
        for (host, port, add) in [
            ("140.82.121.3", 443, "`140.82.121.3`"),
            ("140.82.121.3", 22, "`140.82.121.3:22`"),
            ("[2001:db8::1]", 22, "`[2001:db8::1]:22`"),
        ] {
            let denial = denial("github.com", host, port, &[]);
            assert_eq!(
                (denial.reason, denial.nearest),
                (DenyReason::AddressLiteral, None)
            );
            assert_eq!(
                denial.hint,
                Some(format!(
                    "connect by name, or add {add} to allow the address itself"
                ))
            );
        }
    }

    #[test]
    fn where_nothing_is_near_nothing_is_said() {
        for (list, host) in [
            ("github.com", "evilgithub.com"),
            ("github.com", "github.com.evil.net"),
            ("!*.example.org", "example.org"),
            ("!github.com,a.example", "gist.github.com"),
            ("*.a.example.com", "b.example.com"),
        ] {
            assert_eq!(
                denial(list, host, 443, &[]),
                Denial::new(DenyReason::NotAllowed),
                "{list}: {host}"
            );
        }
    }

    #[test]
    fn an_entry_that_a_hint_offers_allows_what_was_denied() {
        for (list, host, port) in [
            ("*.example.org", "example.org", 8443),
            ("github.com", "github.com", 22),
            ("github.com", "gist.github.com", 443),
            ("github.com", "140.82.121.3", 22),
            ("203.0.113.0/24:5432", "203.0.113.9", 443),
            ("[2001:db8::/32]:443", "2001:db8::5", 22),
        ] {
            let hint = denial(list, host, port, &[]).hint.unwrap();
            let (_, rest) = hint.split_once("add `").unwrap();
            let (entry, _) = rest.split_once('`').unwrap();
            let wider = Policy::from_entries([list, entry]).unwrap();
            let decision = wider.decide(&Destination::parse(host, port).unwrap());
            assert!(
                matches!(decision, Decision::Allow(_)),
                "{hint}: {decision:?}"
            );
        }
    }
}
