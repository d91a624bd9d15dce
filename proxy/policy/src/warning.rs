//! Entries that are legal and yet surely not what was meant.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::entry::{Effect, Terms};
use crate::guard;
use crate::name::HostName;
use crate::rule::{Rule, RuleId, Scope};
use crate::rules::Rules;
use crate::special::AddressClass;
use crate::window::WINDOW;

/// Something odd about a list, worth a line on stderr. `Display` is one sentence; the entries are
/// in their canonical spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The list has denies only, so nothing can be reached at all.
    NothingAllowed,
    /// The entry can never match.
    Never {
        /// The entry.
        entry: String,
        /// Why not.
        cause: Futility,
    },
    /// Another entry allows all that this one does.
    Covered {
        /// The entry that adds nothing.
        entry: String,
        /// The entry that covers it.
        by: String,
    },
    /// A deny covers all that this entry allows.
    Hidden {
        /// The entry that allows nothing.
        entry: String,
        /// The deny.
        by: String,
    },
    /// There are this many more, which are not listed.
    More(usize),
}

/// Why an entry can never match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Futility {
    /// A name below `.invalid` never resolves (RFC 6761 section 6.4).
    NeverResolves,
    /// `localhost` is always this machine (RFC 6761 section 6.3), whose addresses are guarded.
    Loopback,
    /// No name is short enough to be below this one.
    NoRoom,
    /// No connection can be made to such an address.
    NotAHost,
    /// The name is [`crate::WINDOW`], which is no destination.
    Window,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingAllowed => {
                f.write_str("no entry allows anything, so every destination is refused")
            }
            Self::Never { entry, cause } => write!(f, "`{entry}` can never match: {cause}"),
            Self::Covered { entry, by } => write!(f, "`{entry}` adds nothing: `{by}` covers it"),
            Self::Hidden { entry, by } => {
                write!(f, "`{entry}` allows nothing: `{by}` denies all of it")
            }
            Self::More(count) => write!(f, "{count} more entries are like these"),
        }
    }
}

impl fmt::Display for Futility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverResolves => "names below .invalid do not resolve",
            Self::Loopback => {
                "it is this machine, whose addresses are guarded; add @127.0.0.0/8 to mean that"
            }
            Self::NoRoom => "the name leaves no room for a label before it",
            Self::NotAHost => "no connection can be made to such an address",
            Self::Window => "the sandbox itself answers under this name, always and at port 80",
        })
    }
}

/// Looks through the rules; at most [`MOST`] warnings, then how many more there are.
pub(crate) fn find(rules: &Rules) -> Vec<Warning> {
    let mut allows = rules
        .iter()
        .filter(|(_, rule)| rule.terms.effect == Effect::Allow)
        .peekable();
    if allows.peek().is_none() {
        return vec![Warning::NothingAllowed];
    }
    let mut found = allows.filter_map(|(id, rule)| about(rules, id, rule));
    let mut warnings: Vec<Warning> = found.by_ref().take(MOST).collect();
    let more = found.count();
    if more > 0 {
        warnings.push(Warning::More(more));
    }
    warnings
}

fn about(rules: &Rules, id: RuleId, rule: &Rule) -> Option<Warning> {
    let entry = || rules.spelling(id).to_owned();
    if let Some(cause) = futility(rules, id, rule) {
        return Some(Warning::Never {
            entry: entry(),
            cause,
        });
    }
    let mut covered = None;
    for (other, above) in around(rules, id, rule)
        .filter(|(other, _)| *other != id)
        .take(MOST_COMPARED)
    {
        match above.terms.effect {
            Effect::Deny if denies_all(above.terms, rule.terms) => {
                return Some(Warning::Hidden {
                    entry: entry(),
                    by: rules.spelling(other).to_owned(),
                });
            }
            Effect::Allow if covered.is_none() && allows_all(above, rule) => covered = Some(other),
            Effect::Allow | Effect::Deny => {}
        }
    }
    covered.map(|by| Warning::Covered {
        entry: entry(),
        by: rules.spelling(by).to_owned(),
    })
}

/// The rules whose target contains all of this one's, itself among them.
fn around<'a>(
    rules: &'a Rules,
    id: RuleId,
    rule: &Rule,
) -> Box<dyn Iterator<Item = (RuleId, &'a Rule)> + 'a> {
    let name = rules.name(id);
    match rule.scope {
        Scope::Exact(_) => Box::new(rules.covering_name(name)),
        Scope::Below(_) => Box::new(rules.below(name).chain(rules.above(name))),
        Scope::Net => Box::new(
            rule.range
                .into_iter()
                .flat_map(|net| rules.covering_net(net)),
        ),
    }
}

fn futility(rules: &Rules, id: RuleId, rule: &Rule) -> Option<Futility> {
    let name = rules.name(id);
    let top = name.rsplit('.').next().unwrap_or_default();
    match rule.scope {
        Scope::Net => rule.range.filter(is_no_host).map(|_| Futility::NotAHost),
        // A label and a dot.
        Scope::Below(length) if usize::from(length) + 2 > HostName::MAX => Some(Futility::NoRoom),
        Scope::Exact(_) if name == WINDOW => Some(Futility::Window),
        Scope::Exact(_) | Scope::Below(_) if top == "invalid" => Some(Futility::NeverResolves),
        Scope::Exact(_) | Scope::Below(_) if top == "localhost" && rule.range.is_none() => {
            Some(Futility::Loopback)
        }
        Scope::Exact(_) | Scope::Below(_) => None,
    }
}

fn is_no_host(net: &IpNet) -> bool {
    let class = |address: IpAddr| guard::is_guarded(address);
    let no_host = |class| {
        matches!(
            class,
            AddressClass::Multicast | AddressClass::Broadcast | AddressClass::Unspecified
        )
    };
    [net.network(), net.broadcast()]
        .into_iter()
        .all(|address| class(address).is_some_and(no_host))
}

/// Whether whoever has `above` needs not have `rule`.
fn allows_all(above: &Rule, rule: &Rule) -> bool {
    let lifted = match (above.range, rule.range) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(above), Some(range)) => above.contains(&range),
    };
    lifted
        && reaches(above.terms, rule.terms)
        && sample_ports(rule.terms).all(|port| {
            let kinds = above.terms.kinds_on(port);
            kinds.is_opaque() || rule.terms.kinds_on(port).without(kinds).is_empty()
        })
}

fn denies_all(deny: Terms, allow: Terms) -> bool {
    reaches(deny, allow)
        && sample_ports(allow)
            .all(|port| allow.kinds_on(port).without(deny.kinds_on(port)).is_empty())
}

/// Whether every port of `inner` is one of `outer`.
fn reaches(outer: Terms, inner: Terms) -> bool {
    inner
        .port_ranges()
        .all(|range| outer.port_ranges().any(|outer| outer.covers(range)))
}

/// A port of each sort that these terms speak of: 80, 443, and one that is neither.
fn sample_ports(terms: Terms) -> impl Iterator<Item = u16> {
    terms.port_ranges().flat_map(|range| {
        [
            range.low(),
            range.low().saturating_add(1),
            range.high(),
            80,
            443,
        ]
        .into_iter()
        .filter(move |port| range.contains(*port))
    })
}

/// The most warnings that are listed: beyond that nobody reads them.
const MOST: usize = 100;
/// The most rules that one is compared with, or a list with a hundred thousand entries for one name
/// would take hours.
const MOST_COMPARED: usize = 64;

#[cfg(test)]
mod tests {
    use crate::Policy;

    fn warnings(list: &str) -> Vec<String> {
        Policy::parse(list)
            .unwrap()
            .warnings()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_entry_that_can_never_match_is_told_with_the_cause() {
        let long = format!(
            "*.{}.example",
            [
                "a".repeat(61),
                "b".repeat(60),
                "c".repeat(60),
                "d".repeat(60)
            ]
            .join(".")
        );
        for (entry, cause) in [
            ("a.invalid", "do not resolve"),
            ("*.a.invalid", "do not resolve"),
            ("localhost", "add @127.0.0.0/8"),
            ("a.localhost:8080", "add @127.0.0.0/8"),
            ("224.0.0.0/8", "no connection can be made"),
            ("255.255.255.255", "no connection can be made"),
            ("ff02::/16", "no connection can be made"),
            (long.as_str(), "leaves no room"),
            ("egress.sandbox:8080", "the sandbox itself answers"),
        ] {
            let told = warnings(&format!("{entry},example.com"));
            assert_eq!(told.len(), 1, "{entry}: {told:?}");
            assert!(
                told[0].starts_with(&format!("`{entry}` can never match: "))
                    && told[0].contains(cause),
                "{told:?}"
            );
        }
    }

    #[test]
    fn an_entry_that_another_covers_adds_nothing() {
        for (list, entry, by) in [
            (
                "*.example.com,api.example.com",
                "api.example.com",
                "*.example.com",
            ),
            (
                "*.example.com,*.a.example.com",
                "*.a.example.com",
                "*.example.com",
            ),
            (
                "example.com,example.com:443",
                "example.com:443",
                "example.com",
            ),
            (
                "example.com:*,example.com:22",
                "example.com:22",
                "example.com:*",
            ),
            (
                "example.com:443/tcp,example.com:443",
                "example.com:443",
                "example.com:443/tcp",
            ),
            (
                "a.example@10.0.0.0/8,a.example",
                "a.example",
                "a.example@10.0.0.0/8",
            ),
            (
                "a.example@10.0.0.0/8,a.example@10.1.0.0/16",
                "a.example@10.1.0.0/16",
                "a.example@10.0.0.0/8",
            ),
            ("10.0.0.0/8,10.1.2.3", "10.1.2.3", "10.0.0.0/8"),
        ] {
            assert_eq!(
                warnings(list),
                [format!("`{entry}` adds nothing: `{by}` covers it")],
                "{list}"
            );
        }
    }

    #[test]
    fn an_allow_that_a_deny_wholly_hides_allows_nothing() {
        for (list, entry, by) in [
            (
                "!*.example.com,api.example.com,example.com",
                "api.example.com",
                "!*.example.com",
            ),
            (
                "!example.com,example.com:22",
                "example.com:22",
                "!example.com",
            ),
            (
                "!example.com:443,example.com:443",
                "example.com:443",
                "!example.com:443",
            ),
            (
                "!example.com:22/tcp,example.com:22",
                "example.com:22",
                "!example.com:22/tcp",
            ),
            ("!10.0.0.0/8,10.1.2.3", "10.1.2.3", "!10.0.0.0/8"),
            (
                "*.example.com,a.example.com,!a.example.com",
                "a.example.com",
                "!a.example.com",
            ),
        ] {
            assert_eq!(
                warnings(list),
                [format!("`{entry}` allows nothing: `{by}` denies all of it")],
                "{list}"
            );
        }
    }

    #[test]
    fn entries_that_each_do_something_are_not_warned_about() {
        for list in [
            "example.com,*.example.com",
            "example.com,example.com:22",
            "example.com:443,example.com:443/http",
            "example.com:80-443/tls,example.com",
            "example.com,!example.com:443",
            "example.com,!example.com/tcp",
            "*.example.com,!api.example.com",
            "a.example,a.example:443@10.0.0.0/8,!b.example",
            "10.0.0.0/8:22,10.1.2.3:23",
            "localhost@127.0.0.0/8",
            "a.example,A.example",
        ] {
            assert_eq!(warnings(list), [""; 0], "{list}");
        }
    }

    #[test]
    fn a_list_of_denies_alone_is_told_to_allow_nothing() {
        assert_eq!(
            warnings("!a.example"),
            ["no entry allows anything, so every destination is refused"]
        );
    }

    #[test]
    fn a_flood_of_warnings_is_summed_up() {
        let list: Vec<String> = (0..150).map(|i| format!("a{i}.example.com")).collect();
        let told = warnings(&format!("*.example.com,{}", list.join(",")));
        assert_eq!(told.len(), super::MOST + 1);
        assert_eq!(told.last().unwrap(), "50 more entries are like these");
    }
}
