//! Lets the guest reach what names resolved to: adds to the sets that the rules look into, by netlink.
//!
//! A process of nft for each answer would take a thousand times as long, and PID 1 waits for it. The
//! kernel applies a batch while it is being sent, so that its answer is there at once.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{
        DataAttribute, GenAttribute, GenMessage, ListAttribute, NfTablesMessage,
        SetElementAttribute, SetElementList, SetElementMessage,
    },
    none::ControlMessage,
};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

use policy::{AddressRule, PortRange};

use super::{NFTABLES, TABLE};
use crate::firewall::opened::Kept;

/// The way to the sets of addresses that the guest may dial.
pub(super) struct Openings {
    socket: Socket,
    port: u32,
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
    /// Opens the way, which takes `NET_ADMIN` and keeps on taking it.
    pub(super) fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        socket.set_non_blocking(true)?;
        Ok(Self { socket, port })
    }

    /// The address of its socket, by which the kernel names who made a change.
    pub(super) const fn port(&self) -> u32 {
        self.port
    }

    /// The number of the ruleset: each transaction, whosoever it is, has the next.
    pub(super) fn generation(&self) -> io::Result<u32> {
        let ask = NfTablesMessage::GetGen(GenMessage {
            attributes: Vec::new(),
        });
        self.socket.send(&message(CHANGE, ask, 0), 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        generation_in(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Lets the guest dial these for so many seconds from now, also those that it could dial
    /// already. All of them, or an error.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        let seconds = seconds.clamp(SHORTEST, LONGEST);
        let (v4, v6): (Vec<_>, Vec<_>) = endpoints.iter().partition(|to| to.is_ipv4());
        for (suffix, endpoints) in [("4", v4), ("6", v6)] {
            let endpoints: Vec<&SocketAddr> = endpoints;
            let keys: BTreeMap<_, _> = endpoints
                .into_iter()
                .map(|to| (endpoint_key(*to), seconds))
                .collect();
            self.fill(&format!("{SETS}{suffix}"), &keys)?;
        }
        Ok(())
    }

    /// Lets the guest dial these again, each for as long as it has left.
    pub(super) fn restore(&self, open: &[Kept]) -> io::Result<()> {
        for (suffix, is_v4) in [("4", true), ("6", false)] {
            let open = open.iter().filter(|kept| kept.to.is_ipv4() == is_v4);
            let keys = open
                .map(|kept| (endpoint_key(kept.to), kept.seconds))
                .collect();
            self.fill(&format!("{SETS}{suffix}"), &keys)?;
        }
        Ok(())
    }

    /// The same where a name has the address, on all ports of a range that the ruleset knows.
    pub(super) fn open_range(&mut self, opening: AddressRule, seconds: u32) -> io::Result<()> {
        self.hold(&[(opening, seconds.clamp(SHORTEST, LONGEST))])
    }

    /// Lets the guest dial all of these, each for as long as it is held.
    pub(super) fn hold(&self, held: &[(AddressRule, u32)]) -> io::Result<()> {
        let mut sets: BTreeMap<String, BTreeMap<Vec<u8>, u32>> = BTreeMap::new();
        for (opening, seconds) in held {
            let (set, places) = places(*opening);
            let keys = sets.entry(set).or_default();
            keys.extend(places.into_iter().map(|place| (place.key(), *seconds)));
        }
        sets.iter().try_for_each(|(set, keys)| self.fill(set, keys))
    }

    /// Each key once: what a message deletes twice is not there the second time.
    fn fill(&self, set: &str, keys: &BTreeMap<Vec<u8>, u32>) -> io::Result<()> {
        let keys: Vec<_> = keys.iter().collect();
        for some in keys.chunks(BATCH) {
            // One that ran out between two messages of a batch is not there to be deleted.
            self.refresh(set, some)
                .or_else(|_| self.refresh(set, some))?;
        }
        Ok(())
    }

    /// Adding what is there does not change its timeout on every kernel, and deleting what is not
    /// there is an error on every one. So: add, delete, add, in one transaction.
    fn refresh(&self, set: &str, keys: &[(&Vec<u8>, &u32)]) -> io::Result<()> {
        let elements = elements(set, keys);
        let add = || NfTablesMessage::NewSetElement(elements.clone());
        let delete = NfTablesMessage::DeleteSetElement(elements.clone());
        let batch = [
            message(CONTROL, ControlMessage::BatchBegin, 0),
            message(CHANGE, add(), NLM_F_CREATE),
            message(CHANGE, delete, 0),
            message(CHANGE, add(), NLM_F_CREATE | NLM_F_ACK),
            message(CONTROL, ControlMessage::BatchEnd, 0),
        ];
        self.socket.send(&batch.concat(), 0)?;
        self.outcome()
    }

    /// Reads all that the kernel has to say of a batch: every error, and that it was applied.
    fn outcome(&self) -> io::Result<()> {
        let mut outcome = Err(io::ErrorKind::UnexpectedEof.into());
        loop {
            let answer = match self.socket.recv_from_full() {
                Ok((answer, _)) => answer,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return outcome,
                Err(error) => return Err(error),
            };
            let payload = NetlinkMessage::<NetfilterMessage>::deserialize(&answer)
                .map_err(io::Error::other)?
                .payload;
            if let NetlinkPayload::Error(error) = payload {
                match (error.code, &outcome) {
                    (Some(_), _) => outcome = Err(error.to_io()),
                    (None, Err(none)) if none.kind() == io::ErrorKind::UnexpectedEof => {
                        outcome = Ok(());
                    }
                    (None, _) => {}
                }
            }
        }
    }
}

fn generation_in(answer: &[u8]) -> Option<u32> {
    let answer = NetlinkMessage::<NetfilterMessage>::deserialize(answer).ok()?;
    if let NetlinkPayload::InnerMessage(message) = answer.payload
        && let NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(generation)) = message.inner
    {
        return generation.attributes.iter().find_map(|attribute| {
            if let GenAttribute::Id(id) = attribute {
                Some(*id)
            } else {
                None
            }
        });
    }
    None
}

fn elements(set: &str, keys: &[(&Vec<u8>, &u32)]) -> SetElementMessage {
    let element = |(key, seconds): &(&Vec<u8>, &u32)| {
        ListAttribute::Element(vec![
            SetElementAttribute::Key(DataAttribute::Value((*key).clone())),
            SetElementAttribute::Timeout(u64::from(**seconds) * 1000),
        ])
    };
    SetElementMessage {
        attributes: vec![
            SetElementList::Table(TABLE.to_owned()),
            SetElementList::Set(set.to_owned()),
            SetElementList::Elements(keys.iter().map(element).collect()),
        ],
    }
}

impl Place {
    /// As the kernel holds it.
    fn key(self) -> Vec<u8> {
        match self {
            Self::Address(address) => address_key(address),
            Self::Endpoint(to) => endpoint_key(to),
        }
    }
}

/// Address and port in the order of the network, each filled up to four bytes: how the kernel holds
/// a concatenation.
fn endpoint_key(to: SocketAddr) -> Vec<u8> {
    [&address_key(to.ip())[..], &to.port().to_be_bytes(), &[0, 0]].concat()
}

fn address_key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn message(
    header: (NetfilterProtoFamily, u16),
    inner: impl Into<NetfilterMessageInner>,
    flags: u16,
) -> Vec<u8> {
    let (family, resource) = header;
    let header = NetfilterHeader::new(family, 0, resource);
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Of what opens and closes a batch: for which subsystem it is.
const CONTROL: (NetfilterProtoFamily, u16) = (NetfilterProtoFamily::Unspec, NFTABLES);
/// Of a change to a table of both families.
const CHANGE: (NetfilterProtoFamily, u16) = (NetfilterProtoFamily::Inet, 0);
/// An attribute holds 64 KiB, and an element of IPv6 takes 44 bytes.
const BATCH: usize = 512;
const SHORTEST: u32 = 60;
const LONGEST: u32 = 86_400;
/// The most ports, less one, that are opened one by one.
const WIDE: u16 = 16;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Whatever runs in this thread from now on, and what it starts, has a network of its own with
    /// the two sets.
    fn sets() -> Openings {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        nft(&format!(
            "add table inet {TABLE}
             add set inet {TABLE} allow4 {{ type ipv4_addr . inet_service; flags timeout; }}
             add set inet {TABLE} allow6 {{ type ipv6_addr . inet_service; flags timeout; size 3; }}"
        ));
        Openings::connect().unwrap()
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
        let mut openings = sets();
        let both = endpoints(&["203.0.113.7:22", "203.0.113.8:9418", "[2001:db8::7]:22"]);
        openings.open(&both, 120).unwrap();
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
        let mut openings = sets();
        let one = endpoints(&["203.0.113.7:22"]);
        openings.open(&one, 1).unwrap();
        assert!(
            (58..=60).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
        openings.open(&one, 600).unwrap();
        assert!(
            (598..=600).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
        openings.open(&one, 120).unwrap();
        assert!(
            (118..=120).contains(&left("allow4")[0].1),
            "{:?}",
            left("allow4")
        );
    }

    #[test]
    fn what_was_not_added_is_an_error_and_the_next_request_is_not_confused_by_it() {
        let mut openings = sets();
        let many: Vec<SocketAddr> = (0..9)
            .map(|n| ([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 22).into())
            .collect();
        assert!(openings.open(&many, 60).is_err());
        assert_eq!(left("allow6"), []);
        openings.open(&many[..1], 60).unwrap();
        nft(&format!(
            "flush set inet {TABLE} allow6; delete set inet {TABLE} allow6"
        ));
        assert!(openings.open(&many[..1], 60).is_err());
        openings.open(&endpoints(&["203.0.113.7:22"]), 60).unwrap();
    }

    #[test]
    fn an_address_that_two_names_have_is_opened_like_any_other() {
        let mut openings = sets();
        let twice = endpoints(&["203.0.113.7:22", "203.0.113.7:22"]);
        openings.open(&twice, 60).unwrap();
        openings.open(&twice, 60).unwrap();
        assert_eq!(left("allow4").len(), 1);
    }

    #[test]
    fn what_was_open_is_open_again_for_as_long_as_it_has_left() {
        let openings = sets();
        let kept = |to: &str, seconds| Kept {
            to: to.parse().unwrap(),
            seconds,
        };
        let open = [
            kept("203.0.113.7:22", 600),
            kept("203.0.113.8:22", 20),
            kept("[2001:db8::7]:22", 60),
        ];
        openings.restore(&open).unwrap();
        let [(seven, long), (eight, short)] = &left("allow4")[..] else {
            panic!("{:?}", left("allow4"))
        };
        assert_eq!(
            (&**seven, &**eight),
            ("203.0.113.7 . 22", "203.0.113.8 . 22")
        );
        assert!((590..=600).contains(long) && (10..=20).contains(short));
        assert_eq!(left("allow6").len(), 1);
        openings.restore(&[]).unwrap();
    }

    #[test]
    fn each_transaction_has_the_next_number_whosoever_it_is() {
        let mut openings = sets();
        let first = openings.generation().unwrap();
        openings.open(&endpoints(&["203.0.113.7:22"]), 60).unwrap();
        assert_eq!(openings.generation().unwrap(), first + 1);
        nft("list ruleset");
        assert_eq!(openings.generation().unwrap(), first + 1);
        nft("add table ip other");
        assert_eq!(openings.generation().unwrap(), first + 2);
    }

    #[test]
    fn a_wide_range_of_ports_is_opened_by_the_address_and_a_narrow_one_by_each_port() {
        let mut openings = sets();
        nft(&format!(
            "add set inet {TABLE} ports_8000_9000_4 {{ type ipv4_addr; flags timeout; }}"
        ));
        for (low, high) in [(8000, 9000), (22, 23)] {
            let opening = AddressRule {
                net: "203.0.113.7/32".parse().unwrap(),
                ports: PortRange::new(low, high).unwrap(),
            };
            openings.open_range(opening, 60).unwrap();
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
            openings.open_range(unknown, 60).is_err(),
            "there is no such set"
        );
    }

    #[test]
    fn what_is_held_is_opened_for_as_long_as_it_has_left_in_whichever_set_it_is() {
        let openings = sets();
        nft(&format!(
            "add set inet {TABLE} ports_8000_9000_4 {{ type ipv4_addr; flags timeout; }}"
        ));
        let held = |net: &str, low, high, seconds| {
            let ports = PortRange::new(low, high).unwrap();
            let net = net.parse().unwrap();
            (AddressRule { net, ports }, seconds)
        };
        openings
            .hold(&[
                held("203.0.113.7/32", 8000, 9000, 20),
                held("203.0.113.7/32", 22, 23, 600),
                held("2001:db8::7/128", 22, 22, 600),
            ])
            .unwrap();
        assert!((10..=20).contains(&left("ports_8000_9000_4")[0].1));
        assert_eq!(left("allow4").len(), 2);
        assert_eq!(left("allow6").len(), 1);
        openings.hold(&[]).unwrap();
    }

    #[test]
    fn as_many_as_a_request_may_name_are_added() {
        let mut openings = sets();
        let many: Vec<SocketAddr> = (0..4096_u16)
            .map(|n| ([203, 0, 113, n.to_be_bytes()[1]], 1 + n / 256).into())
            .collect();
        openings.open(&many, 60).unwrap();
        assert_eq!(left("allow4").len(), many.len());
    }
}
