//! Explains a denial by the entry that came nearest, and names the entry that would allow.

use std::net::IpAddr;

use crate::decision::Denial;
use crate::entry::{Effect, Entry, Terms};
use crate::guard;
use crate::host::{Destination, Host};
use crate::port::PortRange;
use crate::reason::DenyReason;
use crate::rule::RuleId;
use crate::rules::Rules;
use crate::similar::Similar;

/// No entry can allow it.
const PORT_ZERO: &str = "nothing listens on port 0";

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
        .flat_map(Terms::port_ranges)
        .map(|range| range.to_string())
        .collect::<Vec<_>>()
        .join(" and ");
    let Some(port) = PortRange::single(to.port) else {
        return explain(DenyReason::PortNotAllowed, rule, PORT_ZERO.into());
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
    if to.port == 0 {
        let reason = match &to.host {
            Host::Name(_) => DenyReason::NotAllowed,
            Host::Address(_) => DenyReason::AddressLiteral,
        };
        return Denial {
            hint: Some(PORT_ZERO.into()),
            ..Denial::new(reason)
        };
    }
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
    Denial {
        address: Some(address.to_canonical()),
        ..explain(DenyReason::PrivateAddress, rule, hint)
    }
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
    Denial {
        address: Some(address.to_canonical()),
        ..explain(DenyReason::DeniedByRule, rule, hint)
    }
}

/// An entry one step off in the tree of names: the wildcard whose apex this is, or the apex of
/// which this is a subdomain. These are the two that people expect to be covered.
fn near_in_tree(rules: &Rules, name: &str) -> Option<RuleId> {
    rules
        .below(name)
        .chain(rules.apexes(name))
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
        address: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Policy};

    /// The denial of a destination under a list; a name that is allowed resolves to `at`.
    fn denial(list: &str, to: &str, at: &str) -> Denial {
        let policy = Policy::parse(list).unwrap();
        let (host, port) = to.rsplit_once(':').unwrap();
        let to = Destination::parse(host, port.parse().unwrap()).unwrap();
        match policy.decide(&to) {
            Decision::Deny(denial) => denial,
            Decision::Allow(permit) => {
                let address = at.parse().unwrap();
                policy.check_addresses(&permit, &[address]).unwrap_err()
            }
        }
    }

    fn assert_explained(list: &str, to: &str, nearest: &str, hint: &str) {
        let denial = denial(list, to, "");
        assert_eq!(denial.nearest.as_deref(), Some(nearest), "{list}: {to}");
        assert_eq!(denial.hint.as_deref(), Some(hint), "{list}: {to}");
    }

    #[test]
    fn the_apex_of_a_wildcard_is_to_be_added() {
        for (to, add) in [
            ("example.org:443", "example.org"),
            ("example.org:80", "example.org"),
            ("example.org:8443", "example.org:8443"),
        ] {
            let hint = format!("`*.example.org` does not cover `example.org`; add `{add}`");
            assert_explained("*.example.org", to, "*.example.org", &hint);
        }
    }

    #[test]
    fn a_subdomain_of_a_name_is_to_be_added() {
        for (list, to, nearest) in [
            ("github.com", "gist.github.com", "github.com"),
            (
                "github.com,!gist.github.com:22",
                "gist.github.com",
                "github.com",
            ),
            (
                "example.com,b.example.com",
                "a.b.example.com",
                "b.example.com",
            ),
            ("example.com:22", "a.b.c.example.com", "example.com:22"),
        ] {
            let hint = format!("`{nearest}` does not cover `{to}`; add `{to}`");
            assert_explained(list, &format!("{to}:443"), nearest, &hint);
        }
    }

    #[test]
    fn another_port_is_answered_with_those_that_are_allowed() {
        for (rule, to, ports, add) in [
            ("github.com", "github.com:22", "80 and 443", "github.com:22"),
            ("github.com:443", "github.com:80", "443", "github.com:80"),
            (
                "*.a.example:8000-8100",
                "b.a.example:443",
                "8000-8100",
                "b.a.example:443",
            ),
            (
                "203.0.113.0/24:5432",
                "203.0.113.9:443",
                "5432",
                "203.0.113.9:443",
            ),
            (
                "[2001:db8::/32]:443",
                "[2001:db8::5]:22",
                "443",
                "[2001:db8::5]:22",
            ),
        ] {
            let hint = format!("`{rule}` is allowed on {ports}; add `{add}`");
            assert_explained(rule, to, rule, &hint);
        }
    }

    #[test]
    fn nothing_is_offered_for_port_0() {
        assert_explained("a.example:*", "a.example:0", "a.example:*", PORT_ZERO);
        let policy = Policy::parse("a.example").unwrap();
        for host in ["10.0.2.0", "sub.a.example", "b.example"] {
            let Decision::Deny(denial) = policy.decide(&Destination::parse(host, 0).unwrap())
            else {
                panic!("{host} is allowed on port 0");
            };
            assert_eq!(denial.hint.as_deref(), Some(PORT_ZERO), "{host}");
        }
    }

    #[test]
    fn a_slip_is_answered_with_the_name_that_was_meant() {
        let hint = "did you mean `api.github.com`?";
        assert_explained(
            "api.github.com:22",
            "api.githib.com:443",
            "api.github.com:22",
            hint,
        );
    }

    #[test]
    fn a_deny_is_answered_with_itself() {
        let hint = "`!a.example.com` denies it, and no other entry can overrule that";
        let list = "*.example.com,!a.example.com";
        assert_explained(list, "a.example.com:443", "!a.example.com", hint);
    }

    #[test]
    fn a_private_address_is_answered_with_the_range_to_add() {
        for (entry, to, at, add) in [
            (
                "git.corp.example",
                "git.corp.example:443",
                "10.1.2.3",
                "@10.0.0.0/8",
            ),
            (
                "*.corp.example:22",
                "git.corp.example:22",
                "192.168.1.1",
                ":22@192.168.0.0/16",
            ),
            (
                "*.corp.example",
                "git.corp.example:80",
                "127.0.0.1",
                "@127.0.0.1/32",
            ),
            (
                "git.corp.example",
                "git.corp.example:443",
                "fd00::1",
                "@fc00::/7",
            ),
        ] {
            let denial = denial(entry, to, at);
            let hint = format!("`git.corp.example` resolves to {at}; add `git.corp.example{add}`");
            assert_eq!(denial.reason, DenyReason::PrivateAddress, "{entry}");
            assert_eq!(denial.nearest.as_deref(), Some(entry));
            assert_eq!(denial.hint, Some(hint), "{entry}");
        }
    }

    #[test]
    fn a_v4_mapped_answer_is_shown_as_ipv4() {
        let hint = denial("a.example", "a.example:443", "::ffff:10.1.2.3")
            .hint
            .unwrap();
        assert!(hint.contains("resolves to 10.1.2.3; add"), "{hint}");
    }

    #[test]
    fn a_denied_address_is_answered_with_the_deny() {
        let list = "a.example@10.0.0.0/8,!10.1.0.0/16";
        let denial = denial(list, "a.example:443", "10.1.2.3");
        let hint = "`a.example` resolves to 10.1.2.3, which `!10.1.0.0/16` denies";
        assert_eq!(denial.reason, DenyReason::DeniedByRule);
        assert_eq!(denial.nearest.as_deref(), Some("!10.1.0.0/16"));
        assert_eq!(denial.hint.as_deref(), Some(hint));
    }

    #[test]
    fn a_bare_address_is_answered_with_itself() {
        for (to, add) in [
            ("140.82.121.3:443", "140.82.121.3"),
            ("140.82.121.3:22", "140.82.121.3:22"),
            ("[2001:db8::1]:22", "[2001:db8::1]:22"),
        ] {
            let denial = denial("github.com", to, "");
            let hint = format!("connect by name, or add `{add}` to allow the address itself");
            assert_eq!(denial.reason, DenyReason::AddressLiteral);
            assert_eq!((denial.nearest, denial.hint), (None, Some(hint)));
        }
    }

    #[test]
    fn where_nothing_is_near_nothing_is_said() {
        for (list, to) in [
            ("github.com", "evilgithub.com:443"),
            ("github.com", "github.com.evil.net:443"),
            ("!*.example.org", "example.org:443"),
            ("!github.com,a.example", "gist.github.com:443"),
            ("*.a.example.com", "b.example.com:443"),
        ] {
            let expected = Denial::new(DenyReason::NotAllowed);
            assert_eq!(denial(list, to, ""), expected, "{list}: {to}");
        }
    }
}
