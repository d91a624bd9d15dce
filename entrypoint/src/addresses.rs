//! What names of the list resolved to is opened to the guest, where addresses decide.
//!
//! The resolver is believed in what a name resolves to, and in nothing else: which ports that opens,
//! and whether it opens anything, policy decides here.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use policy::{AddressRule, NameRule, Policy};

use crate::resolver::{MOST_ADDRESSES, Resolved};

/// The names of the list, and what was opened to them.
pub(crate) struct Addresses {
    policy: Policy,
    names: Vec<NameRule>,
    /// Until when what is open stays so: an address is there for as long as any name has it.
    until: HashMap<AddressRule, Instant>,
    /// At how many of them those are looked for that have ended.
    crowd: usize,
    /// Names that have resolved.
    known: Vec<bool>,
}

impl Addresses {
    /// Nothing is open yet. `policy` guards the container's own addresses too.
    pub(crate) fn new(policy: Policy) -> Self {
        let names = policy.name_rules();
        Self {
            known: vec![false; names.len()],
            policy,
            names,
            until: HashMap::new(),
            crowd: CROWD,
        }
    }

    /// The names, as the resolver numbers them.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.names.iter().map(|rule| rule.name().to_string());
        names.collect()
    }

    /// How many names have never resolved.
    pub(crate) fn unresolved(&self) -> usize {
        self.known.iter().filter(|&&known| !known).count()
    }

    /// Opens what the list lets be reached at the addresses of a name, for so many seconds each.
    ///
    /// # Errors
    /// Where that is not possible, or the resolver speaks of a name that there is not.
    pub(crate) fn open(
        &mut self,
        resolved: &Resolved,
        now: Instant,
        mut open: impl FnMut(AddressRule, u32) -> io::Result<()>,
    ) -> io::Result<()> {
        let index = usize::try_from(resolved.index).map_err(io::Error::other)?;
        let rule = self.names.get(index).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(known) = self.known.get_mut(index) {
            *known = true;
        }
        let addresses = resolved.addresses.get(..MOST_ADDRESSES);
        let addresses = addresses.unwrap_or(&resolved.addresses);
        if self.until.len() >= self.crowd {
            self.until.retain(|_, until| *until > now);
            self.crowd = CROWD.max(2 * self.until.len());
        }
        let asked = now + lasting(resolved.ttl);
        for opening in self.policy.openings(rule, addresses) {
            let until = self.until.get(&opening).copied();
            let until = until.map_or(asked, |until| until.max(asked));
            let seconds = (until - now).as_secs();
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            open(opening, seconds)?;
            self.until.insert(opening, until);
        }
        Ok(())
    }
}

/// Beyond the answer's own time there is some in which the name is asked for again, so that what
/// still holds never ends in between.
fn lasting(ttl: u32) -> Duration {
    (Duration::from_secs(ttl.into()) + OVERLAP).clamp(SHORTEST, LONGEST)
}

/// Seldom reached, and then seldom again.
const CROWD: usize = 1024;
/// For a resolver that takes its time, or has to be asked twice.
const OVERLAP: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(60);
/// An hour is the longest that an answer is believed, see the resolver's schedule.
const LONGEST: Duration = Duration::from_secs(3630);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn addresses(list: &str) -> Addresses {
        Addresses::new(Policy::parse(list).unwrap())
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
        let open = |opening: AddressRule, seconds| {
            opened.push(format!("{} {} {seconds}", opening.net, opening.ports));
            Ok(())
        };
        addresses.open(answer, now, open).unwrap();
        opened
    }

    #[test]
    fn a_name_opens_its_addresses_on_its_ports_and_guarded_ones_on_none() {
        let mut addresses = addresses("a.example:22");
        assert_eq!(
            (addresses.names(), addresses.unresolved()),
            (vec!["a.example".to_owned()], 1)
        );
        let answer = resolved(0, &["203.0.114.7", "169.254.169.254", "10.0.0.1", "::1"], 5);
        let opened = opened(&mut addresses, &answer, Instant::now());
        assert_eq!(opened, ["203.0.114.7/32 22 60"]);
        assert_eq!(addresses.unresolved(), 0);
    }

    #[test]
    fn an_address_stays_for_as_long_as_any_name_has_it() {
        let mut addresses = addresses("a.example:22,b.example:22");
        let now = Instant::now();
        opened(&mut addresses, &resolved(0, &["203.0.114.7"], 3600), now);
        let again = opened(&mut addresses, &resolved(1, &["203.0.114.7"], 1), now);
        assert_eq!(again, ["203.0.114.7/32 22 3630"]);
        let later = now + Duration::from_secs(3600);
        let last = opened(&mut addresses, &resolved(1, &["203.0.114.7"], 1), later);
        assert_eq!(last, ["203.0.114.7/32 22 60"]);
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
        let short = resolved(0, &["203.0.114.7"], 1);
        assert_eq!(
            opened(&mut addresses, &short, now),
            ["203.0.114.7/32 22 60"]
        );
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
    fn what_has_ended_is_forgotten() {
        let mut addresses = addresses("a.example:22");
        let mut now = Instant::now();
        for n in 0..100 {
            let block = (0..64).map(|last| format!("203.{n}.114.{last}"));
            let block: Vec<String> = block.collect();
            let block: Vec<&str> = block.iter().map(String::as_str).collect();
            opened(&mut addresses, &resolved(0, &block, 1), now);
            now += Duration::from_secs(61);
        }
        assert!(
            addresses.until.len() <= CROWD + MOST_ADDRESSES,
            "{}",
            addresses.until.len()
        );
    }

    #[test]
    fn what_is_open_outlasts_its_answer_but_not_by_much() {
        for (ttl, seconds) in [(0, 60), (30, 60), (300, 330), (u32::MAX, 3630)] {
            assert_eq!(lasting(ttl), Duration::from_secs(seconds), "{ttl}");
        }
    }
}
