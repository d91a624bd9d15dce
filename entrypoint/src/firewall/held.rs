//! What is open to the guest where addresses decide: which addresses, on which ports, until when.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use policy::AddressRule;

/// Openings, each with its end. A name that has an address for longer than another keeps it open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    until: BTreeMap<AddressRule, Instant>,
    /// At how many of them those are looked for that have ended.
    crowd: usize,
}

impl Held {
    /// When this one ends, if it is open `until` then for one of several reasons.
    pub(super) fn end_of(&self, opening: AddressRule, until: Instant) -> Instant {
        let held = self.until.get(&opening).copied();
        held.map_or(until, |held| held.max(until))
    }

    /// Notes that it is open until then, or later if it was.
    pub(crate) fn note(&mut self, opening: AddressRule, until: Instant, now: Instant) {
        if self.until.len() >= self.crowd.max(CROWD) {
            self.until.retain(|_, until| *until > now);
            self.crowd = 2 * self.until.len();
        }
        let until = self.end_of(opening, until);
        self.until.insert(opening, until);
    }

    /// All that are open, and for how many seconds: what has less than one left has one.
    pub(crate) fn all(&self, now: Instant) -> Vec<(AddressRule, u32)> {
        let open = self.until.iter().filter(|(_, until)| **until > now);
        open.map(|(opening, until)| (*opening, seconds(*until - now)))
            .collect()
    }
}

/// Whole ones, and never none.
pub(super) fn seconds(left: Duration) -> u32 {
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX).max(1)
}

/// Seldom reached, and then seldom again.
const CROWD: usize = 1024;

#[cfg(test)]
mod tests {
    use policy::PortRange;

    use super::*;

    fn opening(last: u8) -> AddressRule {
        AddressRule {
            net: std::net::IpAddr::from([203, 0, 114, last]).into(),
            ports: PortRange::new(22, 22).unwrap(),
        }
    }

    fn after(now: Instant, seconds: u64) -> Instant {
        now + Duration::from_secs(seconds)
    }

    #[test]
    fn an_address_stays_for_as_long_as_any_name_has_it() {
        let (now, mut held) = (Instant::now(), Held::default());
        for seconds in [3630, 60] {
            held.note(opening(7), after(now, seconds), now);
        }
        assert_eq!(held.all(now), [(opening(7), 3630)]);
        assert_eq!(held.end_of(opening(7), after(now, 90)), after(now, 3630));
        assert_eq!(held.end_of(opening(8), after(now, 90)), after(now, 90));
        assert_eq!(held.all(after(now, 3600)), [(opening(7), 30)]);
    }

    #[test]
    fn what_has_ended_is_not_open_and_what_is_about_to_end_is() {
        let (now, mut held) = (Instant::now(), Held::default());
        held.note(opening(7), now, now);
        assert_eq!(held.all(now), []);
        held.note(opening(7), now + Duration::from_millis(1), now);
        assert_eq!(held.all(now), [(opening(7), 1)]);
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let (mut now, mut held) = (Instant::now(), Held::default());
        for n in 0..100_u32 {
            for last in 0..64 {
                let net = std::net::Ipv4Addr::from(n << 8 | last);
                let net = std::net::IpAddr::from(net).into();
                held.note(AddressRule { net, ..opening(0) }, after(now, 60), now);
            }
            now = after(now, 61);
        }
        assert!(held.until.len() <= CROWD, "{}", held.until.len());
    }
}
