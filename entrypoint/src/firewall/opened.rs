//! What the guest was let dial without the proxy, by whose name, and for how long: another list lets
//! it go on with what that list allows as well, and with nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Instant,
};

use policy::{Decision, Destination, Host, HostName, Policy};

/// The latest addresses that were opened, with the names that they were opened for.
#[derive(Debug, Default)]
pub(super) struct Opened {
    until: BTreeMap<(SocketAddr, HostName), Instant>,
}

/// An address that stays open, and for how many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kept {
    pub(crate) to: SocketAddr,
    pub(crate) seconds: u32,
}

impl Opened {
    /// Remembers that `name` has opened these. What there is no room for is not remembered, and so
    /// does not outlast the list: whoever wants it asks for the name again.
    pub(super) fn note(
        &mut self,
        name: &HostName,
        endpoints: &[SocketAddr],
        until: Instant,
        now: Instant,
    ) {
        if self.until.len() + endpoints.len() > MOST {
            self.until.retain(|_, until| *until > now);
        }
        for endpoint in endpoints {
            let key = (*endpoint, name.clone());
            if self.until.len() < MOST || self.until.contains_key(&key) {
                self.until.insert(key, until);
            }
        }
    }

    /// Those that `policy` would open as well, and forgets the others.
    pub(super) fn keep(&mut self, policy: &Policy, now: Instant) -> Vec<Kept> {
        let stream_ports = policy.stream_ports();
        self.until.retain(|(to, name), until| {
            *until > now && !stream_ports.contains(&to.port()) && opens(policy, name, *to)
        });
        self.all(now)
    }

    /// Those that end after `now`, and by `soon` under every name that they have.
    pub(super) fn ending(&self, now: Instant, soon: Instant) -> BTreeSet<SocketAddr> {
        let mut last: BTreeMap<SocketAddr, Instant> = BTreeMap::new();
        for ((to, _), until) in self.until.iter().filter(|(_, until)| **until > now) {
            let latest = last.entry(*to).or_insert(*until);
            *latest = (*until).max(*latest);
        }
        last.retain(|_, until| *until <= soon);
        last.into_keys().collect()
    }

    /// Notes that these stay open until then, for the names that have them.
    pub(super) fn prolong(&mut self, these: &BTreeSet<SocketAddr>, until: Instant, now: Instant) {
        let theirs = self
            .until
            .iter_mut()
            .filter(|((to, _), end)| these.contains(to) && **end > now);
        for (_, end) in theirs {
            *end = until.max(*end);
        }
    }

    /// All that are open.
    pub(super) fn all(&self, now: Instant) -> Vec<Kept> {
        let mut kept = BTreeMap::new();
        for ((to, _), until) in self.until.iter().filter(|(_, until)| **until > now) {
            let left = until.saturating_duration_since(now).as_secs().max(1);
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            let longest = kept.entry(*to).or_insert(left);
            *longest = left.max(*longest);
        }
        let kept = kept.into_iter();
        kept.map(|(to, seconds)| Kept { to, seconds }).collect()
    }
}

/// Whether any stream may pass to this address under this name.
fn opens(policy: &Policy, name: &HostName, to: SocketAddr) -> bool {
    let destination = Destination {
        host: Host::Name(name.clone()),
        port: to.port(),
    };
    match policy.decide(&destination) {
        Decision::Allow(permit) => {
            permit.kinds().is_opaque() && policy.check_addresses(&permit, &[to.ip()]).is_ok()
        }
        Decision::Deny(_) => false,
    }
}

/// About as many kilobytes as there are hundreds: PID 1 is small.
const MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn opened(pairs: &[(&str, &str)], now: Instant) -> Opened {
        let mut opened = Opened::default();
        for (name, to) in pairs {
            let name = HostName::parse(name).unwrap();
            let until = now + Duration::from_secs(60);
            opened.note(&name, &[to.parse().unwrap()], until, now);
        }
        opened
    }

    fn kept(opened: &mut Opened, list: &str, now: Instant) -> Vec<String> {
        let kept = opened.keep(&Policy::parse(list).unwrap(), now);
        kept.iter()
            .map(|kept| format!("{} {}", kept.to, kept.seconds))
            .collect()
    }

    #[test]
    fn what_another_list_would_open_as_well_stays_for_as_long_as_it_had() {
        let now = Instant::now();
        let mut opened = opened(
            &[("a.example", "45.0.0.1:22"), ("b.example", "45.0.0.2:22")],
            now,
        );
        let later = now + Duration::from_secs(20);
        let list = "a.example:22, !b.example";
        assert_eq!(kept(&mut opened, list, later), ["45.0.0.1:22 40"]);
        // What was forgotten does not come back with the list that allowed it.
        let list = "a.example:22, b.example:22";
        assert_eq!(kept(&mut opened, list, later), ["45.0.0.1:22 40"]);
    }

    #[test]
    fn an_address_of_two_names_stays_while_either_is_allowed() {
        let now = Instant::now();
        let pairs = [("a.example", "45.0.0.1:22"), ("b.example", "45.0.0.1:22")];
        let mut opened = opened(&pairs, now);
        assert_eq!(kept(&mut opened, "b.example:22", now), ["45.0.0.1:22 60"]);
        assert!(kept(&mut opened, "c.example:22", now).is_empty());
    }

    #[test]
    fn a_port_that_is_redirected_now_an_address_that_is_guarded_now_and_what_ran_out_are_closed() {
        let now = Instant::now();
        for (list, later) in [
            ("a.example:22/tls", 0),
            ("a.example:22", 0),
            ("a.example:22@10.0.0.0/8", 61),
        ] {
            let mut opened = opened(&[("a.example", "10.0.0.1:22")], now);
            let later = now + Duration::from_secs(later);
            assert!(kept(&mut opened, list, later).is_empty(), "{list}");
        }
        let mut opened = opened(&[("a.example", "10.0.0.1:22")], now);
        let list = "a.example:22@10.0.0.0/8";
        assert_eq!(kept(&mut opened, list, now).len(), 1);
    }

    #[test]
    fn what_ends_soon_is_prolonged_for_its_names_and_what_has_ended_is_not() {
        let now = Instant::now();
        let mut opened = opened(
            &[("a.example", "45.0.0.1:22"), ("b.example", "45.0.0.2:22")],
            now,
        );
        let after = |seconds| now + Duration::from_secs(seconds);
        let both = ["45.0.0.1:22", "45.0.0.2:22"].map(|to| to.parse().unwrap());
        assert!(opened.ending(now, after(15)).is_empty());
        assert_eq!(opened.ending(after(50), after(65)), BTreeSet::from(both));
        // Another name has it for longer.
        let other = HostName::parse("c.example").unwrap();
        opened.note(&other, &both[..1], after(600), now);
        assert_eq!(
            opened.ending(after(50), after(65)),
            BTreeSet::from([both[1]])
        );
        opened.prolong(&BTreeSet::from([both[1]]), after(110), after(50));
        assert_eq!(
            kept(&mut opened, "b.example:22", after(65)),
            ["45.0.0.2:22 45"]
        );
        opened.prolong(&BTreeSet::from(both), after(999), after(200));
        assert!(kept(&mut opened, "b.example:22", after(200)).is_empty());
    }

    #[test]
    fn a_hostile_name_server_cannot_make_it_grow() {
        let now = Instant::now();
        let name = HostName::parse("a.example").unwrap();
        let mut opened = Opened::default();
        for n in 0..10_000_u32 {
            let to = SocketAddr::new(std::net::Ipv4Addr::from(n).into(), 22);
            opened.note(&name, &[to], now + Duration::from_secs(60), now);
        }
        assert_eq!(opened.until.len(), MOST);
    }
}
