//! What the kernel says of changes to its rules: every one of them, and who made it.
//!
//! The notices of one transaction come one after the other and end with the generation that it made
//! (`nf_tables.h`); each carries the address of the netlink socket it was asked for on.

use std::io;

use netlink_packet_core::{NetlinkBuffer, NlasIterator};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

use super::{NFTABLES, TABLE, others};
use crate::{readiness::Readiness, receiving};

/// A listener to all changes in this network namespace. It takes `NET_ADMIN` to open, and none to
/// go on.
pub(super) struct Notices {
    socket: Socket,
    readiness: Readiness,
    buffer: Vec<u8>,
}

/// What others did, of what was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Who changed our own table.
    pub(super) changed: Option<Author>,
    /// What now stands beside it and overrides it, and who put it there.
    pub(super) outranked: Option<(&'static str, Author)>,
    /// The last generation that was told of.
    pub(super) generation: Option<u32>,
    /// Whether there were notices that could not be read.
    pub(super) lost: bool,
}

/// Who made a change.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Author {
    port: u32,
    /// Its name and its id on the host, where the kernel told.
    process: Option<(String, u32)>,
}

impl Notices {
    /// Listens from now on.
    ///
    /// Must be called within the runtime.
    pub(super) fn listen() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        receiving::enlarge(&socket)?;
        socket.add_membership(GROUP)?;
        socket.set_non_blocking(true)?;
        let readiness = Readiness::of(&socket)?;
        Ok(Self {
            socket,
            readiness,
            buffer: vec![0; DATAGRAM],
        })
    }

    /// Waits until there is something to read, and reads what there is. Changes made on the socket
    /// `own` are left out.
    pub(super) async fn next(&mut self, own: u32) -> io::Result<Seen> {
        let Self {
            socket,
            readiness,
            buffer,
        } = self;
        let mut seen = Seen::default();
        let first = readiness
            .read(|| socket.recv(&mut &mut buffer[..], 0))
            .await;
        if seen.take(first, buffer, own)? {
            self.read_on(&mut seen, own)?;
        }
        Ok(seen)
    }

    /// Reads what there is, without waiting.
    pub(super) fn now(&mut self, own: u32) -> io::Result<Seen> {
        let mut seen = Seen::default();
        self.read_on(&mut seen, own)?;
        Ok(seen)
    }

    /// Never goes on for ever: whoever writes faster than this reads is answered all the same.
    fn read_on(&mut self, seen: &mut Seen, own: u32) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let read = self.socket.recv(&mut &mut self.buffer[..], 0);
            if !seen.take(read, &self.buffer, own)? {
                break;
            }
        }
        Ok(())
    }
}

impl Seen {
    /// Takes in what was read; whether there may be more.
    fn take(&mut self, read: io::Result<usize>, buffer: &[u8], own: u32) -> io::Result<bool> {
        match read {
            Ok(length) => {
                self.add(buffer.get(..length).unwrap_or_default(), own);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.raw_os_error() == Some(receiving::OVERRUN) => {
                self.lost = true;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes in a datagram. What cannot be understood may be anything.
    fn add(&mut self, mut bytes: &[u8], own: u32) {
        while !bytes.is_empty() {
            let Ok(message) = NetlinkBuffer::new_checked(bytes) else {
                self.lost = true;
                return;
            };
            let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
            self.note(&message, own);
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }

    fn note(&mut self, message: &NetlinkBuffer<&[u8]>, own: u32) {
        let [subsystem, kind] = message.message_type().to_be_bytes();
        let payload = message.payload();
        let (Some(&family), Some(attributes)) = (payload.first(), payload.get(HEADER..)) else {
            self.lost = true;
            return;
        };
        if u16::from(subsystem) != NFTABLES {
            return;
        }
        let port = message.port_number();
        if kind == NEW_GENERATION {
            self.note_generation(attributes, port);
        } else if port != own {
            let by = || Author {
                port,
                process: None,
            };
            if family == INET && text(attributes, TABLE_NAME).as_deref() == Some(TABLE) {
                self.changed.get_or_insert_with(by);
            } else if let Some(what) = others::overrides(kind, family, attributes) {
                self.outranked.get_or_insert_with(|| (what, by()));
            }
        }
    }

    /// Who it was is told at the end of a transaction.
    fn note_generation(&mut self, attributes: &[u8], port: u32) {
        self.generation = number(attributes, GENERATION).or(self.generation);
        let process = text(attributes, PROCESS_NAME).zip(number(attributes, PROCESS_ID));
        let outranked = self.outranked.as_mut().map(|(_, author)| author);
        for author in self.changed.as_mut().into_iter().chain(outranked) {
            if author.port == port && author.process.is_none() {
                author.process.clone_from(&process);
            }
        }
    }
}

impl std::fmt::Display for Author {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.process {
            Some((name, id)) => write!(f, "`{name}`, process {id} of the host"),
            None => f.write_str("an unknown process"),
        }
    }
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(ATTRIBUTE_HEADER..length)
}

/// The values of all attributes of this kind.
pub(super) fn all(attributes: &[u8], kind: u16) -> impl Iterator<Item = &[u8]> {
    NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .filter(move |attribute| attribute.kind() == kind)
        .filter_map(|attribute| {
            let length = usize::from(attribute.length());
            attribute.into_inner().get(ATTRIBUTE_HEADER..length)
        })
}

/// A string, less the zero at its end.
pub(super) fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = attribute(attributes, kind)?;
    let end = bytes.iter().position(|&byte| byte == 0);
    let bytes = bytes.get(..end.unwrap_or(bytes.len()))?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// A number in the order of the network.
pub(super) fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    let bytes = attribute(attributes, kind)?;
    bytes.try_into().ok().map(u32::from_be_bytes)
}

/// `NFNLGRP_NFTABLES`
const GROUP: u32 = 7;
/// `struct nfgenmsg`
const HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// `NFPROTO_INET`
const INET: u8 = 1;
/// `NFT_MSG_NEWGEN`
const NEW_GENERATION: u8 = 15;
/// `NFTA_TABLE_NAME`, and the same number in what is part of a table.
const TABLE_NAME: u16 = 1;
/// `NFTA_GEN_ID`
const GENERATION: u16 = 1;
/// `NFTA_GEN_PROC_PID`, as the host's own namespace counts.
const PROCESS_ID: u16 = 2;
/// `NFTA_GEN_PROC_NAME`
const PROCESS_NAME: u16 = 3;
/// More than the kernel puts into one.
const DATAGRAM: usize = 64 * 1024;
const AT_ONCE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    const OWN: u32 = 1;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn notice(kind: u8, family: u8, port: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let attributes = attributes.concat();
        let length = u32::try_from(20 + attributes.len()).unwrap();
        [
            &length.to_ne_bytes()[..],
            &[kind, 10, 0, 0],
            &[0; 4],
            &port.to_ne_bytes(),
            &[family, 0, 0, 0],
            &attributes,
        ]
        .concat()
    }

    fn change(port: u32, table: &str) -> Vec<u8> {
        notice(6, INET, port, &[attribute_of(1, table.as_bytes())])
    }

    fn applied(port: u32, generation: u32) -> Vec<u8> {
        let attributes = [
            attribute_of(1, &generation.to_be_bytes()),
            attribute_of(2, &77_u32.to_be_bytes()),
            attribute_of(3, b"nft\0"),
        ];
        notice(NEW_GENERATION, 0, port, &attributes)
    }

    fn seen(datagrams: &[Vec<u8>]) -> Seen {
        let mut seen = Seen::default();
        for datagram in datagrams {
            seen.add(datagram, OWN);
        }
        seen
    }

    #[test]
    fn who_changed_our_table_is_named_by_the_end_of_its_transaction() {
        let seen = seen(&[change(9, "sandbox_egress\0"), applied(8, 4), applied(9, 5)]);
        let author = seen.changed.unwrap();
        assert_eq!(author.to_string(), "`nft`, process 77 of the host");
        assert_eq!((seen.generation, seen.lost), (Some(5), false));
    }

    #[test]
    fn our_own_changes_and_those_of_other_tables_are_none() {
        for datagram in [
            change(OWN, "sandbox_egress\0"),
            change(9, "sandbox_egress2\0"),
            change(9, "nat\0"),
            notice(6, 2, 9, &[attribute_of(1, b"sandbox_egress\0")]),
        ] {
            assert_eq!(seen(&[datagram, applied(9, 5)]).changed, None);
        }
    }

    #[test]
    fn several_messages_of_one_datagram_are_all_read() {
        let both = [change(9, "nat\0"), change(9, "sandbox_egress\0")].concat();
        assert!(seen(&[both]).changed.is_some());
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let whole = change(9, "sandbox_egress\0");
        for end in 1..whole.len() {
            let seen = seen(&[whole[..end].to_vec()]);
            assert!(seen.lost || seen.changed.is_some(), "{end}");
        }
        assert!(seen(&[vec![0xff; 64]]).lost);
    }

    #[test]
    fn an_overrun_is_told_and_any_other_error_is_one() {
        let mut seen = Seen::default();
        let overrun = io::Error::from_raw_os_error(receiving::OVERRUN);
        assert!(seen.take(Err(overrun), &[], OWN).unwrap() && seen.lost);
        let nothing = io::ErrorKind::WouldBlock.into();
        assert!(!seen.take(Err(nothing), &[], OWN).unwrap());
        let broken = io::ErrorKind::BrokenPipe.into();
        assert!(seen.take(Err(broken), &[], OWN).is_err());
    }

    #[test]
    fn an_author_of_whom_nothing_was_told_is_unknown() {
        assert_eq!(Author::default().to_string(), "an unknown process");
    }

    #[test]
    fn attributes_cut_anywhere_are_whole_or_none() {
        let whole = attribute_of(3, b"name\0");
        for end in 0..whole.len() {
            let found = text(&whole[..end], 3);
            assert!(found.is_none() || found.as_deref() == Some("name"), "{end}");
        }
        assert_eq!(number(&attribute_of(1, &[1, 2, 3]), 1), None);
    }

    #[tokio::test]
    async fn the_kernel_tells_of_every_way_to_change_our_table() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let nft = |command: &str| {
            let output = Command::new("nft").arg(command).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
        };
        nft(&format!(
            "add table inet {TABLE}; add chain inet {TABLE} c {{ type filter hook output priority 0; }}
             add set inet {TABLE} s {{ type ipv4_addr; }}; add rule inet {TABLE} c drop
             add table ip nat"
        ));
        let mut notices = Notices::listen().unwrap();
        nft("add chain ip nat OUTPUT { type nat hook output priority -100; }");
        let seen = notices.next(OWN).await.unwrap();
        assert!(
            seen.changed.is_none() && seen.generation.is_some(),
            "{seen:?}"
        );
        for command in [
            "insert rule inet T c accept",
            "add element inet T s { 192.0.2.1 }",
            "delete element inet T s { 192.0.2.1 }",
            "flush chain inet T c",
            "add chain inet T d",
            "chain inet T c { policy accept; }",
            "add table inet T { flags dormant; }",
            "flush ruleset",
        ] {
            nft(&command.replace('T', TABLE));
            let seen = notices.next(OWN).await.unwrap();
            let author = seen.changed.unwrap_or_else(|| panic!("{command}"));
            assert!(
                author.to_string().starts_with("`nft`, "),
                "{command}: {author}"
            );
        }
        assert_eq!(notices.now(OWN).unwrap(), Seen::default());
    }
}
