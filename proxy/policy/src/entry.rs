//! One entry of a list, understood: what it covers and whether it allows or denies.

use std::fmt;

use ipnet::IpNet;

use crate::host::Host;
use crate::name::HostName;
use crate::net;
use crate::port::PortRange;
use crate::stream::{StreamKind, StreamKinds};

/// An entry. `Display` is its canonical spelling, which [`crate::grammar::parse`] reads back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) target: Target,
    pub(crate) terms: Terms,
    /// The range that the name may resolve into although it is guarded.
    pub(crate) lift: Option<IpNet>,
}

impl Entry {
    /// The entry that a hint offers: it allows this host on these ports and nothing else.
    pub(crate) fn allowing(host: &Host, ports: Option<PortRange>, lift: Option<IpNet>) -> Self {
        let target = match host {
            Host::Name(name) => Target::Exact(name.clone()),
            Host::Address(address) => Target::Net(net::of_address(*address)),
        };
        let terms = Terms {
            effect: Effect::Allow,
            ports,
            kind: None,
        };
        Self {
            target,
            terms,
            lift,
        }
    }

    /// The range that the entry names, for whichever purpose: in it the guard is lifted.
    pub(crate) fn range(&self) -> Option<IpNet> {
        match self.target {
            Target::Net(net) => Some(net),
            Target::Exact(_) | Target::Below(_) => self.lift,
        }
    }
}

/// Whom an entry is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A name and no other.
    Exact(HostName),
    /// Every name below this one, at any depth, but not itself.
    Below(HostName),
    /// Addresses.
    Net(IpNet),
}

/// What an entry says about its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) effect: Effect,
    /// `None`: none were written.
    pub(crate) ports: Option<PortRange>,
    /// `None`: none was written, so the port decides.
    pub(crate) kind: Option<StreamKind>,
}

/// Which way an entry decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It allows.
    Allow,
    /// It denies, whatever else allows.
    Deny,
}

impl Terms {
    /// Drops what goes without saying, so that entries that mean the same are written the same.
    pub(crate) fn canonical(mut self) -> Self {
        if self.effect == Effect::Deny && self.ports == Some(PortRange::ALL) {
            self.ports = None;
        }
        if self.effect == Effect::Allow
            && self
                .ports
                .is_some_and(|ports| self.kind == sole_default(ports))
        {
            self.kind = None;
        }
        self
    }

    /// The kinds of stream that are allowed, or denied, on this port.
    ///
    /// A deny covers all that it does not exclude, where an allow covers as little as it can: a
    /// slip in an entry must err on the side of the closed door.
    pub(crate) fn kinds_on(self, port: u16) -> StreamKinds {
        if !self.port_ranges().any(|range| range.contains(port)) {
            return StreamKinds::NONE;
        }
        match (self.kind, self.effect) {
            (Some(kind), _) => StreamKinds::only(kind),
            (None, Effect::Allow) => StreamKinds::only(StreamKind::default_for(port)),
            (None, Effect::Deny) => StreamKinds::ALL,
        }
    }

    /// The ports, those included that go without saying.
    pub(crate) fn port_ranges(self) -> impl Iterator<Item = PortRange> + use<> {
        let ranges = match (self.ports, self.effect) {
            (Some(ports), _) => [Some(ports), None],
            (None, Effect::Allow) => [Some(PortRange::HTTP), Some(PortRange::HTTPS)],
            (None, Effect::Deny) => [Some(PortRange::ALL), None],
        };
        ranges.into_iter().flatten()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms {
            effect,
            ports,
            kind,
        } = self.terms;
        if effect == Effect::Deny {
            f.write_str("!")?;
        }
        let followed = ports.is_some() || kind.is_some();
        match &self.target {
            Target::Exact(name) => f.write_str(name.as_str())?,
            Target::Below(name) => write!(f, "*.{name}")?,
            Target::Net(net @ IpNet::V6(_)) if followed => write!(f, "[{}]", Range(*net))?,
            Target::Net(net) => write!(f, "{}", Range(*net))?,
        }
        if let Some(ports) = ports {
            write!(f, ":{ports}")?;
        }
        if let Some(kind) = kind {
            write!(f, "/{kind}")?;
        }
        self.lift.map_or(Ok(()), |net| write!(f, "@{net}"))
    }
}

/// A range as a target is written: a single address without its prefix length.
struct Range(IpNet);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

/// The kind that every port of the range has by default, if it is the same for all.
fn sole_default(ports: PortRange) -> Option<StreamKind> {
    let first = StreamKind::default_for(ports.low());
    let mixed = ports.low() != ports.high() && (ports.contains(80) || ports.contains(443));
    (!mixed).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    fn kinds(entry: &str, port: u16) -> Vec<&'static str> {
        let kinds = grammar::parse(entry).unwrap().terms.kinds_on(port);
        StreamKind::ALL
            .into_iter()
            .filter(|kind| kinds.contains(*kind))
            .map(StreamKind::as_str)
            .collect()
    }

    #[test]
    fn an_allow_covers_what_it_says_and_no_more() {
        for (entry, port, expected) in [
            ("a.example", 443, vec!["tls"]),
            ("a.example", 80, vec!["http"]),
            ("a.example", 22, vec![]),
            ("a.example/tls", 80, vec!["tls"]),
            ("a.example:443/tcp", 443, vec!["tcp"]),
            ("a.example:*", 443, vec!["tls"]),
            ("a.example:*", 5000, vec!["tcp"]),
            ("a.example:*", 0, vec![]),
            ("a.example:8000-8100/http", 8100, vec!["http"]),
        ] {
            assert_eq!(kinds(entry, port), expected, "{entry} on {port}");
        }
    }

    #[test]
    fn a_deny_covers_all_that_it_does_not_exclude() {
        for (entry, port, expected) in [
            ("!a.example", 22, vec!["tls", "http", "tcp"]),
            ("!a.example:443", 443, vec!["tls", "http", "tcp"]),
            ("!a.example:443", 80, vec![]),
            ("!a.example/tcp", 9999, vec!["tcp"]),
        ] {
            assert_eq!(kinds(entry, port), expected, "{entry} on {port}");
        }
    }

    #[test]
    fn a_suggested_entry_can_be_read_back() {
        for (host, port, lift, expected) in [
            ("a.example", None, None, "a.example"),
            (
                "a.example",
                Some(22),
                Some("10.0.0.0/8"),
                "a.example:22@10.0.0.0/8",
            ),
            ("::1", Some(22), None, "[::1]:22"),
            ("::1", None, None, "::1"),
            ("10.1.2.3", Some(22), None, "10.1.2.3:22"),
        ] {
            let ports = port.and_then(PortRange::single);
            let lift = lift.map(|range| range.parse().unwrap());
            let entry = Entry::allowing(&Host::parse(host).unwrap(), ports, lift);
            assert_eq!(entry.to_string(), expected);
            assert_eq!(grammar::parse(expected), Ok(entry));
        }
    }
}
