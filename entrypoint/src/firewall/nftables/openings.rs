//! Lets the guest reach what names resolved to: adds to the sets that the rules look into, by netlink.
//!
//! A process of nft for each answer would take a thousand times as long, and PID 1 waits for it. What
//! is in the sets is remembered, so that the same answer again, as of a guest that asks without end,
//! costs the kernel nothing.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_netfilter::nftables::{
    DataAttribute, ListAttribute, NfTablesMessage, SetElementAttribute, SetElementList,
    SetElementMessage,
};
use policy::{AddressRule, PortRange};

use super::{
    TABLE,
    wire::{Change, Wire},
};
use crate::firewall::opened::Kept;

/// The sets of addresses that the guest may dial.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// Until when what is known to be in them is in them.
    until: BTreeMap<Element, Instant>,
    /// Whether there is more in them than was known.
    beyond: bool,
}

/// A set, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Element {
    set: String,
    key: Vec<u8>,
}

/// The name of the sets, less the number of their family.
pub(super) const SETS: &str = "allow";

/// Whether so many ports have sets of their own: a set of addresses with a port would hold each
/// address as often as there are ports.
pub(super) const fn is_wide(ports: PortRange) -> bool {
    ports.high() - ports.low() >= WIDE
}

/// The name of the sets of a wide range of ports, less the number of their family.
pub(super) fn wide_set(ports: PortRange) -> String {
    format!("ports_{}_{}_", ports.low(), ports.high())
}

/// An element of a set of what may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// All ports of the range that the set is for.
    Address(IpAddr),
    /// One port.
    Endpoint(SocketAddr),
}

/// Which elements of which set an address on a range of ports is.
pub(super) fn places(opening: AddressRule) -> (String, Vec<Place>) {
    let (address, ports) = (opening.net.addr(), opening.ports);
    let suffix = if address.is_ipv4() { '4' } else { '6' };
    if is_wide(ports) {
        let set = format!("{}{suffix}", wide_set(ports));
        return (set, vec![Place::Address(address)]);
    }
    let all = ports.low()..=ports.high();
    let endpoints = all.map(|port| Place::Endpoint(SocketAddr::new(address, port)));
    (format!("{SETS}{suffix}"), endpoints.collect())
}

impl Openings {
    /// Lets the guest dial these for so many seconds from now, also those that it could dial
    /// already. All of them, or an error.
    pub(super) fn open(
        &mut self,
        wire: &Wire,
        endpoints: &[SocketAddr],
        seconds: u32,
    ) -> io::Result<()> {
        let seconds = seconds.clamp(SHORTEST, LONGEST);
        let elements = endpoints.iter().map(|to| (Element::of(*to), seconds));
        self.fill(wire, elements.collect())
    }

    /// The same where a name has the address, on all ports of a range that the ruleset knows.
    pub(super) fn open_range(
        &mut self,
        wire: &Wire,
        opening: AddressRule,
        seconds: u32,
    ) -> io::Result<()> {
        self.hold(wire, &[(opening, seconds.clamp(SHORTEST, LONGEST))])
    }

    /// Lets the guest dial all of these, each for as long as it is held.
    pub(super) fn hold(&mut self, wire: &Wire, held: &[(AddressRule, u32)]) -> io::Result<()> {
        self.fill(wire, held_elements(held).collect())
    }

    /// Lets the guest dial these again, each for as long as it has left, in sets that are empty.
    pub(super) fn restore(&mut self, wire: &Wire, open: &[Kept]) -> io::Result<()> {
        *self = Self::default();
        self.fill(wire, kept_elements(open).collect())
    }

    /// Remembers that the sets have become these, in which each stays for as long as it has left.
    pub(super) fn become_those(&mut self, open: &[Kept]) {
        self.become_elements(kept_elements(open));
    }

    /// The same of what is held.
    pub(super) fn become_held(&mut self, held: &[(AddressRule, u32)]) {
        self.become_elements(held_elements(held));
    }

    fn become_elements(&mut self, elements: impl Iterator<Item = (Element, u32)>) {
        *self = Self::default();
        let now = Instant::now();
        for (element, lasts) in elements {
            self.note(element, now + seconds(lasts), now);
        }
    }

    /// Each element once: what a message deletes twice is not there the second time.
    fn fill(&mut self, wire: &Wire, wanted: BTreeMap<Element, u32>) -> io::Result<()> {
        // Taken before, so that what is remembered ends before what is there.
        let now = Instant::now();
        let wanted: Vec<_> = wanted.into_iter().collect();
        let due = wanted.into_iter().filter(|(element, lasts)| {
            let enough = now + seconds(*lasts)..=now + seconds(*lasts) + SPARE;
            let until = self.until.get(element);
            !until.is_some_and(|until| enough.contains(until))
        });
        let due: Vec<_> = due.collect();
        for some in due.chunk_by(|(one, _), (next, _)| one.set == next.set) {
            for some in some.chunks(BATCH) {
                self.renew(wire, some, now)?;
                for (element, lasts) in some {
                    self.note(element.clone(), now + seconds(*lasts) + SPARE, now);
                }
            }
        }
        Ok(())
    }

    /// Adding what is there does not change its timeout on every kernel, and deleting what is not
    /// there is an error on every one. Where it is known which it is, there is less to be said.
    fn renew(&self, wire: &Wire, some: &[(Element, u32)], now: Instant) -> io::Result<()> {
        let left = |(element, _): &(Element, u32)| {
            let until = self.until.get(element)?;
            until.checked_duration_since(now)
        };
        let (add, delete) = (add(some), delete(some));
        let known = if some.iter().all(|one| left(one) > Some(SPARE)) {
            Some(vec![delete.clone(), add.clone()])
        } else if !self.beyond && some.iter().all(|one| left(one).is_none()) {
            Some(vec![(add.0.clone(), add.1 | NLM_F_EXCL)])
        } else {
            None
        };
        let whatever = || wire.apply(vec![add.clone(), delete.clone(), add.clone()]);
        match known.map(|known| wire.apply(known)) {
            Some(Ok(())) => Ok(()),
            // One that ran out between two messages of a batch is not there to be deleted.
            Some(Err(_)) | None => whatever().or_else(|_| whatever()),
        }
    }

    /// What there is no room for is not known to be there.
    fn note(&mut self, element: Element, until: Instant, now: Instant) {
        if self.until.len() >= MOST {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() < MOST || self.until.contains_key(&element) {
            self.until.insert(element, until);
        } else {
            self.beyond = true;
        }
    }
}

impl Element {
    fn of(to: SocketAddr) -> Self {
        let suffix = if to.is_ipv4() { '4' } else { '6' };
        Self {
            set: format!("{SETS}{suffix}"),
            key: Place::Endpoint(to).key(),
        }
    }
}

impl Place {
    /// As the kernel holds it: address and port in the order of the network, each filled up to four
    /// bytes, as in any concatenation.
    fn key(self) -> Vec<u8> {
        match self {
            Self::Address(address) => address_key(address),
            Self::Endpoint(to) => {
                [&address_key(to.ip())[..], &to.port().to_be_bytes(), &[0, 0]].concat()
            }
        }
    }
}

fn held_elements(held: &[(AddressRule, u32)]) -> impl Iterator<Item = (Element, u32)> {
    held.iter().flat_map(|(opening, seconds)| {
        let (set, places) = places(*opening);
        places.into_iter().map(move |place| {
            let (set, key) = (set.clone(), place.key());
            (Element { set, key }, *seconds)
        })
    })
}

fn kept_elements(kept: &[Kept]) -> impl Iterator<Item = (Element, u32)> {
    kept.iter().map(|kept| (Element::of(kept.to), kept.seconds))
}

fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Elements of one set.
fn add(some: &[(Element, u32)]) -> Change {
    (NfTablesMessage::NewSetElement(elements(some)), NLM_F_CREATE)
}

fn delete(some: &[(Element, u32)]) -> Change {
    (NfTablesMessage::DeleteSetElement(elements(some)), 0)
}

fn elements(some: &[(Element, u32)]) -> SetElementMessage {
    let spare = u64::try_from(SPARE.as_millis()).unwrap_or_default();
    let element = |(element, seconds): &(Element, u32)| {
        ListAttribute::Element(vec![
            SetElementAttribute::Key(DataAttribute::Value(element.key.clone())),
            SetElementAttribute::Timeout(u64::from(*seconds) * 1000 + spare),
        ])
    };
    let set = some.first().map(|(element, _)| element.set.clone());
    SetElementMessage {
        attributes: vec![
            SetElementList::Table(TABLE.to_owned()),
            SetElementList::Set(set.unwrap_or_default()),
            SetElementList::Elements(some.iter().map(element).collect()),
        ],
    }
}

const fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds as u64)
}

/// An attribute holds 64 KiB, and an element of IPv6 takes 44 bytes.
const BATCH: usize = 512;
const SHORTEST: u32 = 60;
const LONGEST: u32 = 86_400;
/// The most ports, less one, that are opened one by one.
const WIDE: u16 = 16;
/// How much longer something is open than it was asked for, so that it need not be renewed with each
/// answer.
const SPARE: Duration = Duration::from_millis(900);
/// Of elements that are remembered.
const MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, process::Command};

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Whatever runs in this thread from now on, and what it starts, has a network of its own with
    /// the two sets.
    fn sets() -> (Wire, Openings) {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        nft(&format!(
            "add table inet {TABLE}
             add set inet {TABLE} allow4 {{ type ipv4_addr . inet_service; flags timeout; }}
             add set inet {TABLE} allow6 {{ type ipv6_addr . inet_service; flags timeout; size 3; }}"
        ));
        (Wire::connect().unwrap(), Openings::default())
    }

    fn nft(command: &str) -> String {
        let output = Command::new("nft").arg(command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The elements with the seconds that they have left.
    fn left(set: &str) -> Vec<(String, u64)> {
        let listing = nft(&format!("list set inet {TABLE} {set}"));
        let (_, elements) = listing.split_once("elements = {").unwrap_or_default();
        let elements = elements.split('}').next().unwrap_or_default();
        let elements = elements.split(',').filter(|text| !text.trim().is_empty());
        let mut left: Vec<_> = elements
            .map(|element| {
                let (key, rest) = element.split_once(" timeout ").unwrap();
                let (_, expires) = rest.split_once("expires ").unwrap();
                (key.trim().to_owned(), seconds(expires))
            })
            .collect();
        left.sort();
        left
    }

    /// `1m59s996ms` and the like.
    fn seconds(text: &str) -> u64 {
        let text = text.trim();
        let (minutes, rest) = match text.split_once('m') {
            Some((minutes, rest)) if !rest.starts_with('s') => (minutes, rest),
            _ => ("0", text),
        };
        let seconds = rest.split('s').next().unwrap_or_default();
        minutes.parse::<u64>().unwrap() * 60 + seconds.parse::<u64>().unwrap_or_default()
    }

    fn endpoints(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_of_both_families_are_added_with_their_port() {
        let (wire, mut openings) = sets();
        let both = endpoints(&["203.0.113.7:22", "203.0.113.8:9418", "[2001:db8::7]:22"]);
        openings.open(&wire, &both, 120).unwrap();
        let keys = |set| {
            left(set)
                .into_iter()
                .map(|(key, _)| key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys("allow4"), ["203.0.113.7 . 22", "203.0.113.8 . 9418"]);
        assert_eq!(keys("allow6"), ["2001:db8::7 . 22"]);
    }

    #[test]
    fn opening_again_starts_the_time_again_and_is_never_shorter_than_a_minute() {
        let (wire, mut openings) = sets();
        let one = endpoints(&["203.0.113.7:22"]);
        openings.open(&wire, &one, 1).unwrap();
        assert!(
            (58..=60).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
        openings.open(&wire, &one, 600).unwrap();
        assert!(
            (598..=600).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
        openings.open(&wire, &one, 120).unwrap();
        assert!(
            (118..=120).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
    }

    #[test]
    fn what_was_not_added_is_an_error_and_the_next_request_is_not_confused_by_it() {
        let (wire, mut openings) = sets();
        let many: Vec<SocketAddr> = (0..9)
            .map(|n| ([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 22).into())
            .collect();
        assert!(openings.open(&wire, &many, 60).is_err());
        assert_eq!(left("allow6"), []);
        openings.open(&wire, &many[..1], 60).unwrap();
        nft(&format!(
            "flush set inet {TABLE} allow6; delete set inet {TABLE} allow6"
        ));
        assert!(openings.open(&wire, &many[1..2], 60).is_err());
        openings
            .open(&wire, &endpoints(&["203.0.113.7:22"]), 60)
            .unwrap();
    }

    #[test]
    fn an_address_that_two_names_have_is_opened_like_any_other() {
        let (wire, mut openings) = sets();
        let twice = endpoints(&["203.0.113.7:22", "203.0.113.7:22"]);
        openings.open(&wire, &twice, 60).unwrap();
        openings.open(&wire, &twice, 60).unwrap();
        assert_eq!(left("allow4").len(), 1);
    }

    #[test]
    fn what_was_open_is_open_again_for_as_long_as_it_has_left() {
        let (wire, mut openings) = sets();
        let kept = |to: &str, seconds| Kept {
            to: to.parse().unwrap(),
            seconds,
        };
        let open = [
            kept("203.0.113.7:22", 600),
            kept("203.0.113.8:22", 20),
            kept("[2001:db8::7]:22", 60),
        ];
        openings.restore(&wire, &open).unwrap();
        let [(seven, long), (eight, short)] = &left("allow4")[..] else {
            panic!("{:?}", left("allow4"))
        };
        assert_eq!(
            (&**seven, &**eight),
            ("203.0.113.7 . 22", "203.0.113.8 . 22")
        );
        assert!((590..=600).contains(long) && (10..=20).contains(short));
        assert_eq!(left("allow6").len(), 1);
        openings.restore(&wire, &[]).unwrap();
    }

    #[test]
    fn the_same_answer_again_costs_no_transaction_while_what_is_there_lasts_as_long() {
        let (wire, mut openings) = sets();
        let one = endpoints(&["203.0.113.7:22"]);
        let mut transactions = |seconds| {
            let before = wire.generation().unwrap();
            openings.open(&wire, &one, seconds).unwrap();
            wire.generation().unwrap() - before
        };
        assert_eq!([600, 600, 600].map(&mut transactions), [1, 0, 0]);
        assert_eq!([120, 120, 1200, 1200].map(&mut transactions), [1, 0, 1, 0]);
        assert!((1198..=1201).contains(&left("allow4")[0].1));
    }

    #[test]
    fn what_somebody_added_or_took_out_is_opened_all_the_same() {
        let (wire, mut openings) = sets();
        nft(&format!(
            "add element inet {TABLE} allow4 {{ 203.0.113.7 . 22 timeout 1h }}"
        ));
        let one = endpoints(&["203.0.113.7:22"]);
        openings.open(&wire, &one, 120).unwrap();
        assert!((118..=120).contains(&left("allow4")[0].1));
        nft(&format!("flush set inet {TABLE} allow4"));
        openings.open(&wire, &one, 600).unwrap();
        assert!((598..=600).contains(&left("allow4")[0].1));
    }

    #[test]
    fn what_the_sets_have_become_is_known() {
        let (wire, mut openings) = sets();
        let one = endpoints(&["203.0.113.7:22"]);
        openings.open(&wire, &one, 600).unwrap();
        nft(&format!("flush set inet {TABLE} allow4"));
        openings.become_those(&[]);
        openings.open(&wire, &one, 600).unwrap();
        assert_eq!(left("allow4").len(), 1);
        openings.restore(&wire, &[]).unwrap();
        openings.open(&wire, &one, 600).unwrap();
        assert!((598..=600).contains(&left("allow4")[0].1));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_not_is_opened_all_the_same() {
        let (wire, mut openings) = sets();
        let many: Vec<SocketAddr> = (0..3 * MOST / 2)
            .map(|n| {
                let n = u32::try_from(n).unwrap();
                (Ipv4Addr::from(0xc600_0000 + n), 22).into()
            })
            .collect();
        for _ in 0..2 {
            openings.open(&wire, &many, 60).unwrap();
            openings.open(&wire, &many, 600).unwrap();
        }
        assert_eq!(openings.until.len(), MOST);
        let left = left("allow4");
        assert_eq!(left.len(), many.len());
        assert!(left.iter().all(|(_, left)| (590..=600).contains(left)));
    }

    #[test]
    fn a_wide_range_of_ports_is_opened_by_the_address_and_a_narrow_one_by_each_port() {
        let (wire, mut openings) = sets();
        nft(&format!(
            "add set inet {TABLE} ports_8000_9000_4 {{ type ipv4_addr; flags timeout; }}"
        ));
        for (low, high) in [(8000, 9000), (22, 23)] {
            let opening = AddressRule {
                net: "203.0.113.7/32".parse().unwrap(),
                ports: PortRange::new(low, high).unwrap(),
            };
            openings.open_range(&wire, opening, 60).unwrap();
        }
        let keys = |set| {
            left(set)
                .into_iter()
                .map(|(key, _)| key)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys("ports_8000_9000_4"), ["203.0.113.7"]);
        assert_eq!(keys("allow4"), ["203.0.113.7 . 22", "203.0.113.7 . 23"]);
        let unknown = AddressRule {
            net: "203.0.113.7/32".parse().unwrap(),
            ports: PortRange::ALL,
        };
        assert!(
            openings.open_range(&wire, unknown, 60).is_err(),
            "there is no such set"
        );
    }

    #[test]
    fn what_is_held_is_opened_for_as_long_as_it_has_left_in_whichever_set_it_is() {
        let (wire, mut openings) = sets();
        nft(&format!(
            "add set inet {TABLE} ports_8000_9000_4 {{ type ipv4_addr; flags timeout; }}"
        ));
        let held = |net: &str, low, high, seconds| {
            let ports = PortRange::new(low, high).unwrap();
            let net = net.parse().unwrap();
            (AddressRule { net, ports }, seconds)
        };
        openings
            .hold(
                &wire,
                &[
                    held("203.0.113.7/32", 8000, 9000, 20),
                    held("203.0.113.7/32", 22, 23, 600),
                    held("2001:db8::7/128", 22, 22, 600),
                ],
            )
            .unwrap();
        assert!((10..=20).contains(&left("ports_8000_9000_4")[0].1));
        assert_eq!(left("allow4").len(), 2);
        assert_eq!(left("allow6").len(), 1);
        openings.hold(&wire, &[]).unwrap();
    }

    #[test]
    fn as_many_as_a_request_may_name_are_added() {
        let (wire, mut openings) = sets();
        let many: Vec<SocketAddr> = (0..4096_u16)
            .map(|n| ([203, 0, 113, n.to_be_bytes()[1]], 1 + n / 256).into())
            .collect();
        openings.open(&wire, &many, 60).unwrap();
        assert_eq!(left("allow4").len(), many.len());
    }
}
