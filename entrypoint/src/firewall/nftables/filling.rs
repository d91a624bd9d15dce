//! Very many addresses in a set of their own: nft takes seconds to read what the kernel takes in
//! tens of milliseconds.
//!
//! Single addresses are in a set that hashes them, ranges in one that sorts them. A set is filled in
//! several transactions, each no longer than any socket takes: what is not in it yet is refused.

use std::{io, net::IpAddr};

use ipnet::IpNet;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_netfilter::nftables::{
    DataAttribute, ListAttribute, NfTablesMessage, SetElementAttribute, SetElementFlags,
    SetElementList, SetElementMessage,
};
use sha2::{Digest as _, Sha256};

use super::{
    TABLE,
    wire::{Change, Wire},
};

/// What a set is filled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filling {
    set: String,
    elements: Vec<Element>,
}

/// An address, or where a range of them begins or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Element {
    key: IpAddr,
    ends: bool,
}

impl Filling {
    /// Addresses, each by itself.
    pub(super) fn of_hosts(set: String, hosts: &[IpNet]) -> Self {
        let element = |host: &IpNet| Element {
            key: host.addr(),
            ends: false,
        };
        let elements = hosts.iter().map(element).collect();
        Self { set, elements }
    }

    /// Networks of one family that do not overlap, in their order. The kernel wants no range to end
    /// where the next begins.
    pub(super) fn of_ranges(set: String, ranges: &[IpNet]) -> Self {
        let mut elements: Vec<Element> = Vec::with_capacity(2 * ranges.len());
        for range in ranges {
            let begins = Element {
                key: range.network(),
                ends: false,
            };
            let adjoins = elements.last().is_some_and(|last| last.key == begins.key);
            if adjoins {
                elements.pop();
            } else {
                elements.push(begins);
            }
            // The last address of all has none after it, and then its range has no end.
            let end = after(range.broadcast()).map(|key| Element { key, ends: true });
            elements.extend(end);
        }
        Self { set, elements }
    }

    /// The name of the set.
    pub(super) fn set(&self) -> &str {
        &self.set
    }

    /// Takes part in what the ruleset is known by.
    pub(super) fn digest(&self, digest: &mut Sha256) {
        digest.update(&self.set);
        for element in &self.elements {
            digest.update([0, element.ends.into()]);
            digest.update(key(element.key));
        }
    }

    /// How many transactions it takes.
    pub(super) fn transactions(&self) -> usize {
        self.elements.len().div_ceil(AT_ONCE)
    }

    /// Puts all of it into its set.
    pub(super) fn put(&self, wire: &Wire) -> io::Result<()> {
        for some in self.elements.chunks(AT_ONCE) {
            let messages = some.chunks(IN_A_MESSAGE).map(|some| self.message(some));
            wire.apply(messages.collect())?;
        }
        Ok(())
    }

    fn message(&self, some: &[Element]) -> Change {
        let element = |element: &Element| {
            let mut attributes = vec![SetElementAttribute::Key(DataAttribute::Value(key(
                element.key
            )))];
            if element.ends {
                attributes.push(SetElementAttribute::Flags(SetElementFlags::IntervalEnd));
            }
            ListAttribute::Element(attributes)
        };
        let elements = SetElementMessage {
            attributes: vec![
                SetElementList::Table(TABLE.to_owned()),
                SetElementList::Set(self.set.clone()),
                SetElementList::Elements(some.iter().map(element).collect()),
            ],
        };
        (NfTablesMessage::NewSetElement(elements), NLM_F_CREATE)
    }
}

fn key(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn after(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).checked_add(1)?.into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).checked_add(1)?.into()),
    })
}

/// An attribute holds 64 KiB, and an element of IPv6 takes 40 bytes.
const IN_A_MESSAGE: usize = 1024;
/// A socket sends as much as 200 KiB without being allowed more.
const AT_ONCE: usize = 4 * IN_A_MESSAGE;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    fn nft(command: &str) -> String {
        let output = Command::new("nft").arg(command).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What nft finds in a set of this type, once it is filled.
    fn filled(of: &str, filling: &Filling) -> String {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        nft(&format!(
            "add table inet {TABLE}; add set inet {TABLE} s {{ type {of}; }}"
        ));
        filling.put(&Wire::connect().unwrap()).unwrap();
        let listing = nft(&format!("list set inet {TABLE} s"));
        let (_, elements) = listing.split_once("elements = {").unwrap();
        let elements = elements.split('}').next().unwrap().split(',');
        elements.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ranges_are_what_they_were_and_those_that_adjoin_are_one() {
        let list = [
            "10.0.0.2/31",
            "10.0.0.4/30",
            "192.0.2.0/24",
            "255.255.255.0/24",
        ];
        let filling = Filling::of_ranges("s".into(), &nets(&list));
        assert_eq!(
            filled("ipv4_addr; flags interval", &filling),
            "10.0.0.2-10.0.0.7 192.0.2.0/24 255.255.255.0/24"
        );
        let list = ["2001:db8::/32", "2001:dba::/32", "ffff:ffff::/32"];
        let filling = Filling::of_ranges("s".into(), &nets(&list));
        assert_eq!(
            filled("ipv6_addr; flags interval", &filling),
            list.join(" ")
        );
    }

    #[test]
    fn more_than_one_transaction_takes_arrive() {
        let hosts: Vec<IpNet> = (0..10_000_u32)
            .map(|n| IpAddr::from(std::net::Ipv4Addr::from(0x1400_0000 + 2 * n)).into())
            .collect();
        let filling = Filling::of_hosts("s".into(), &hosts);
        assert_eq!(filling.transactions(), 3);
        let found = filled("ipv4_addr", &filling);
        assert_eq!(found.split(' ').count(), hosts.len());
        let ranges: Vec<IpNet> = (0..10_000_u32)
            .map(|n| format!("{}/31", std::net::Ipv4Addr::from(0x1400_0000 + 4 * n)))
            .map(|text| text.parse().unwrap())
            .collect();
        let filling = Filling::of_ranges("s".into(), &ranges);
        let found = filled("ipv4_addr; flags interval", &filling);
        assert_eq!(found.split(' ').count(), ranges.len());
    }

    #[test]
    fn a_set_that_is_not_there_is_an_error() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let filling = Filling::of_hosts("s".into(), &nets(&["192.0.2.1/32"]));
        assert!(filling.put(&Wire::connect().unwrap()).is_err());
    }

    #[test]
    fn every_element_changes_the_digest() {
        let digest = |list: &[&str]| {
            let mut digest = Sha256::new();
            Filling::of_ranges("s".into(), &nets(list)).digest(&mut digest);
            digest.finalize()
        };
        let whole = digest(&["10.0.0.0/24", "10.0.2.0/24"]);
        assert_eq!(whole, digest(&["10.0.0.0/24", "10.0.2.0/24"]));
        for other in [&["10.0.0.0/24"][..], &["10.0.0.0/24", "10.0.2.0/25"]] {
            assert_ne!(whole, digest(other), "{other:?}");
        }
    }
}
