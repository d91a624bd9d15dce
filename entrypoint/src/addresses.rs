//! What names of the list resolved to is opened to the guest, where addresses decide.
//!
//! The resolver is believed in what a name resolves to, and in nothing else: which ports that opens,
//! and whether it opens anything, policy decides here.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use ipnet::IpNet;
use policy::{AddressRule, HostName, NameRule, Policy};

use crate::{
    firewall::Held,
    resolver::{MOST_ADDRESSES, Resolved},
};

/// The names of the list, and where they were found.
pub(crate) struct Addresses {
    policy: Policy,
    /// The container's own addresses: whatever the list, they are guarded too.
    guard: Vec<IpNet>,
    names: Vec<NameRule>,
    /// Until when which of the names has which address, so that another list can open it at once.
    found: BTreeMap<(usize, IpAddr), Instant>,
    /// When those that have ended may be looked for again, where there is no room.
    sweep_at: Option<Instant>,
    /// Names that have resolved.
    known: Vec<bool>,
}

impl Addresses {
    /// Nothing is open yet. The addresses of `guard` are guarded like those that always are.
    pub(crate) fn new(policy: &Policy, guard: Vec<IpNet>) -> Self {
        let mut policy = policy.clone();
        policy.guard_also(&guard);
        let names = policy.name_rules();
        Self {
            known: vec![false; names.len()],
            policy,
            guard,
            names,
            found: BTreeMap::new(),
            sweep_at: None,
        }
    }

    /// The same of another list, with what is known of the names that it has too; and all that it
    /// opens for them.
    pub(crate) fn following(&self, policy: &Policy, now: Instant) -> (Self, Held) {
        let mut next = Self::new(policy, self.guard.clone());
        let mut held = Held::default();
        for ((index, address), until) in self.found.iter().filter(|(_, until)| **until > now) {
            let Some(index) = self
                .names
                .get(*index)
                .and_then(|rule| next.place(rule.name()))
            else {
                continue;
            };
            next.found.insert((index, *address), *until);
            if let Some(rule) = next.names.get(index) {
                for opening in next.policy.openings(rule, &[*address]) {
                    held.note(opening, *until, now);
                }
            }
        }
        for (rule, known) in self.names.iter().zip(&self.known) {
            if let Some(place) = next
                .place(rule.name())
                .and_then(|at| next.known.get_mut(at))
            {
                *place = *known;
            }
        }
        (next, held)
    }

    /// The number of a name; they are in their order.
    fn place(&self, name: &HostName) -> Option<usize> {
        let found = self.names.binary_search_by(|rule| rule.name().cmp(name));
        found.ok()
    }

    /// The list, with the container's own addresses guarded.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The names, as the resolver numbers them.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.names.iter().map(|rule| rule.name().to_string());
        names.collect()
    }

    /// The names that have never resolved.
    pub(crate) fn unresolved(&self) -> impl Iterator<Item = &HostName> {
        let names = self.names.iter().zip(&self.known);
        names
            .filter(|(_, known)| !**known)
            .map(|(rule, _)| rule.name())
    }

    /// Opens what the list lets be reached at the addresses of a name, for as long as it has them.
    ///
    /// # Errors
    /// Where that is not possible, or the resolver speaks of a name that there is not.
    pub(crate) fn open(
        &mut self,
        resolved: &Resolved,
        now: Instant,
        mut open: impl FnMut(AddressRule, Instant) -> io::Result<()>,
    ) -> io::Result<()> {
        let index = usize::try_from(resolved.index).map_err(io::Error::other)?;
        let rule = self.names.get(index).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(known) = self.known.get_mut(index) {
            *known = true;
        }
        let addresses = resolved.addresses.get(..MOST_ADDRESSES);
        let addresses = addresses.unwrap_or(&resolved.addresses);
        let until = now + lasting(resolved.ttl);
        for opening in self.policy.openings(rule, addresses) {
            open(opening, until)?;
        }
        self.note(index, addresses, until, now);
        Ok(())
    }

    /// The addresses that some name has no longer than until `soon`.
    pub(crate) fn ending(&self, now: Instant, soon: Instant) -> BTreeSet<IpAddr> {
        let ending = self
            .found
            .iter()
            .filter(|(_, until)| (now..=soon).contains(*until));
        ending
            .map(|((_, address), _)| address.to_canonical())
            .collect()
    }

    /// Has names keep those of them until `later` that the guest is connected to at one of the
    /// endpoints in `live`, on a port of the name's.
    ///
    /// # Errors
    /// Where one cannot be opened for longer; then the name keeps none of its.
    pub(crate) fn prolong(
        &mut self,
        live: &BTreeSet<SocketAddr>,
        (now, soon): (Instant, Instant),
        later: Instant,
        mut open: impl FnMut(AddressRule, Instant) -> io::Result<()>,
    ) -> io::Result<()> {
        let ending = self.found.iter_mut();
        for ((index, address), until) in ending.filter(|(_, until)| (now..=soon).contains(*until)) {
            let Some(rule) = self.names.get(*index) else {
                continue;
            };
            let openings = self.policy.openings(rule, &[*address]);
            let is_live = |opening: &AddressRule| {
                let mut here = live.iter().filter(|to| to.ip() == opening.net.addr());
                here.any(|to| opening.ports.contains(to.port()))
            };
            if openings.iter().any(is_live) {
                openings
                    .into_iter()
                    .try_for_each(|opening| open(opening, later))?;
                *until = later;
            }
        }
        Ok(())
    }

    /// What there is no room for does not outlast the list, unless its name is found there again.
    fn note(&mut self, index: usize, addresses: &[IpAddr], until: Instant, now: Instant) {
        let is_full = self.found.len() + addresses.len() > MOST_FOUND;
        if is_full && self.sweep_at.is_none_or(|at| at <= now) {
            self.found.retain(|_, until| *until > now);
            self.sweep_at = Some(now + BETWEEN_SWEEPS);
        }
        for address in addresses {
            let key = (index, *address);
            if self.found.len() < MOST_FOUND || self.found.contains_key(&key) {
                let found = self.found.entry(key).or_insert(until);
                *found = until.max(*found);
            }
        }
    }
}

/// Beyond the answer's own time there is some in which the name is asked for again, so that what
/// still holds never ends in between.
fn lasting(ttl: u32) -> Duration {
    (Duration::from_secs(ttl.into()) + OVERLAP).clamp(SHORTEST, LONGEST)
}

/// As many as the kernel is let hold; a hostile name server makes them up.
const MOST_FOUND: usize = 65_536;
/// Whoever fills it up with each answer must not have it searched with each answer.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(10);
/// For a resolver that takes its time, or has to be asked twice.
const OVERLAP: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(60);
/// An hour is the longest that an answer is believed, see the resolver's schedule.
const LONGEST: Duration = Duration::from_secs(3630);

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &str) -> Addresses {
        Addresses::new(&Policy::parse(list).unwrap(), Vec::new())
    }

    fn resolved(index: u32, addresses: &[&str], ttl: u32) -> Resolved {
        let addresses = addresses.iter().map(|text| text.parse::<IpAddr>().unwrap());
        Resolved {
            index,
            addresses: addresses.collect(),
            ttl,
        }
    }

    /// What is opened, as `net port seconds`.
    fn opened(addresses: &mut Addresses, answer: &Resolved, now: Instant) -> Vec<String> {
        let mut opened = Vec::new();
        let open = |opening: AddressRule, until: Instant| {
            let seconds = (until - now).as_secs();
            opened.push(format!("{} {} {seconds}", opening.net, opening.ports));
            Ok(())
        };
        addresses.open(answer, now, open).unwrap();
        opened
    }

    /// What another list opens at once.
    fn carried(addresses: &Addresses, list: &str, now: Instant) -> (Addresses, Vec<String>) {
        let (next, held) = addresses.following(&Policy::parse(list).unwrap(), now);
        let open = held.all(now);
        let open = open
            .iter()
            .map(|(opening, seconds)| format!("{} {} {seconds}", opening.net, opening.ports));
        (next, open.collect())
    }

    #[test]
    fn a_name_opens_its_addresses_on_its_ports_and_guarded_ones_on_none() {
        let mut addresses = addresses("a.example:22");
        assert_eq!(
            (addresses.names(), addresses.unresolved().count()),
            (vec!["a.example".to_owned()], 1)
        );
        let answer = resolved(0, &["203.0.114.7", "169.254.169.254", "10.0.0.1", "::1"], 5);
        let opened = opened(&mut addresses, &answer, Instant::now());
        assert_eq!(opened, ["203.0.114.7/32 22 60"]);
        assert_eq!(addresses.unresolved().count(), 0);
    }

    #[test]
    fn another_list_opens_what_is_known_of_its_names_for_as_long_as_that_holds() {
        let now = Instant::now();
        let mut addresses = addresses("a.example:22,b.example:22,c.example");
        opened(&mut addresses, &resolved(0, &["203.0.114.7"], 300), now);
        opened(&mut addresses, &resolved(1, &["203.0.114.8"], 300), now);
        let later = now + Duration::from_secs(30);
        let list = "a.example:22-23,c.example,d.example,!b.example";
        let (next, open) = carried(&addresses, list, later);
        assert_eq!(open, ["203.0.114.7/32 22-23 300"]);
        let unresolved = next.unresolved().map(HostName::as_str);
        assert_eq!(unresolved.collect::<Vec<_>>(), ["c.example", "d.example"]);
        // What ran out does not come back, nor what a list between has closed.
        let late = now + Duration::from_secs(330);
        assert_eq!(carried(&next, list, late).1, [""; 0]);
        assert_eq!(carried(&next, "b.example:22", later).1, [""; 0]);
    }

    #[test]
    fn another_list_guards_what_was_guarded_and_what_it_no_longer_lifts() {
        let now = Instant::now();
        let list = Policy::parse("a.example:22@10.0.0.0/8").unwrap();
        let mut addresses = Addresses::new(&list, vec!["203.0.114.7/32".parse().unwrap()]);
        let answer = resolved(0, &["10.1.2.3", "203.0.114.7", "203.0.114.8"], 300);
        assert_eq!(
            opened(&mut addresses, &answer, now),
            ["10.1.2.3/32 22 330", "203.0.114.8/32 22 330"]
        );
        let (next, open) = carried(&addresses, "a.example:22,b.example", now);
        assert_eq!(open, ["203.0.114.8/32 22 330"]);
        // And lifts it for what it knows, not only for what it will hear.
        let (_, open) = carried(&next, "a.example:22@10.0.0.0/8", now);
        assert_eq!(open, ["10.1.2.3/32 22 330", "203.0.114.8/32 22 330"]);
    }

    #[test]
    fn an_address_of_two_names_stays_while_either_is_listed_and_for_as_long() {
        let now = Instant::now();
        let mut addresses = addresses("a.example:22,b.example:22");
        opened(&mut addresses, &resolved(0, &["203.0.114.7"], 3600), now);
        opened(&mut addresses, &resolved(1, &["203.0.114.7"], 1), now);
        for (list, seconds) in [("a.example:22,b.example:22", 3630), ("b.example:22", 60)] {
            let open = carried(&addresses, list, now).1;
            assert_eq!(open, [format!("203.0.114.7/32 22 {seconds}")], "{list}");
        }
    }

    #[test]
    fn a_name_keeps_an_address_that_the_guest_is_connected_to_and_no_other() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut addresses = addresses("a.example:22-23,b.example:80,c.example:22");
        opened(
            &mut addresses,
            &resolved(0, &["203.0.114.7", "203.0.114.8"], 1),
            now,
        );
        opened(&mut addresses, &resolved(1, &["203.0.114.7"], 1), now);
        opened(&mut addresses, &resolved(2, &["203.0.114.7"], 300), now);
        assert!(addresses.ending(now, after(15)).is_empty());
        let (at, soon) = (after(50), after(65));
        assert_eq!(addresses.ending(at, soon).len(), 2);
        let live = ["203.0.114.7:23", "203.0.114.9:22"].map(|to| to.parse().unwrap());
        let mut kept = Vec::new();
        let keep = |opening: AddressRule, until: Instant| {
            kept.push((opening.net.to_string(), until));
            Ok(())
        };
        let live = BTreeSet::from(live);
        addresses
            .prolong(&live, (at, soon), after(110), keep)
            .unwrap();
        assert_eq!(kept, [("203.0.114.7/32".to_owned(), after(110))]);
        let list = "a.example:22-23,b.example:80";
        let open = carried(&addresses, list, after(70)).1;
        assert_eq!(open, ["203.0.114.7/32 22-23 40"]);
        // What has ended is not there to be kept.
        let never = |opening, _| panic!("{opening:?}");
        let window = (after(400), after(415));
        addresses.prolong(&live, window, after(500), never).unwrap();
    }

    #[test]
    fn what_is_no_name_opens_nothing_and_is_an_error() {
        let mut addresses = addresses("a.example:22");
        for index in [1, u32::MAX] {
            let answer = resolved(index, &["203.0.114.7"], 60);
            let open = |opening, _| panic!("{opening:?}");
            let wrong = addresses.open(&answer, Instant::now(), open).unwrap_err();
            assert_eq!(wrong.kind(), io::ErrorKind::InvalidData, "{index}");
        }
    }

    #[test]
    fn what_could_not_be_opened_is_not_remembered_as_open() {
        let mut addresses = addresses("a.example:22");
        let now = Instant::now();
        let full = |_, _| Err(io::ErrorKind::StorageFull.into());
        let answer = resolved(0, &["203.0.114.7"], 3600);
        assert!(addresses.open(&answer, now, full).is_err());
        assert_eq!(carried(&addresses, "a.example:22", now).1, [""; 0]);
    }

    #[test]
    fn a_flood_of_addresses_is_cut() {
        let mut addresses = addresses("a.example:22");
        let many: Vec<String> = (0..200).map(|n| format!("203.0.114.{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let opened = opened(&mut addresses, &resolved(0, &many, 60), Instant::now());
        assert_eq!(opened.len(), MOST_ADDRESSES);
    }

    #[test]
    fn what_has_ended_makes_room_and_a_hostile_name_server_cannot_make_it_grow() {
        let mut addresses = addresses("a.example:22");
        let now = Instant::now();
        let block = |n: u32| {
            let all = (0..64).map(|last| IpAddr::from(std::net::Ipv4Addr::from(n * 64 + last)));
            Resolved {
                index: 0,
                addresses: all.collect(),
                ttl: 1,
            }
        };
        for n in 0..2000 {
            opened(&mut addresses, &block(0x10_0000 + n), now);
        }
        assert_eq!(addresses.found.len(), MOST_FOUND);
        let later = now + Duration::from_secs(61);
        opened(&mut addresses, &block(0x20_0000), later);
        assert_eq!(addresses.found.len(), 64);
    }

    #[test]
    fn what_is_open_outlasts_its_answer_but_not_by_much() {
        for (ttl, seconds) in [(0, 60), (30, 60), (300, 330), (u32::MAX, 3630)] {
            assert_eq!(lasting(ttl), Duration::from_secs(seconds), "{ttl}");
        }
    }
}
