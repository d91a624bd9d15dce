//! Speaks with `nf_tables` over netlink, without a process of nft's: for what is small, or very much.
//!
//! The kernel works while it is being told, so that its answer is there at once: one datagram there,
//! one back.

use std::io;

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{GenMessage, NfTablesMessage},
    none::ControlMessage,
};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;

use super::{
    DENIED_INGRESS, DENIED_PACKETS, DENIED_QUIC, NFTABLES, TABLE,
    notices::{attribute, number, text},
};
use crate::firewall::Counters;

/// A socket on which nobody else is heard.
pub(super) struct Wire {
    socket: Socket,
    port: u32,
}

/// A change, and the flags of its message besides those that every message has.
pub(super) type Change = (NfTablesMessage, u16);

impl Wire {
    /// Opens it, which takes `NET_ADMIN` and keeps on taking it.
    pub(super) fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        // What is refused is not said again.
        socket.set_cap_ack(true)?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket, port })
    }

    /// The address of its socket, by which the kernel names who made a change.
    pub(super) const fn port(&self) -> u32 {
        self.port
    }

    /// The number of the ruleset: each transaction, whosoever it is, has the next.
    pub(super) fn generation(&self) -> io::Result<u32> {
        let attributes = Vec::new();
        let question = NfTablesMessage::GetGen(GenMessage { attributes });
        let mut generation = None;
        self.ask(vec![question], |answer| {
            generation = number(answer, GENERATION);
        })?;
        generation.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// What the counters of the table count.
    pub(super) fn counters(&self) -> io::Result<Counters> {
        let names = [DENIED_PACKETS, DENIED_QUIC, DENIED_INGRESS];
        let mut counted = Vec::new();
        self.ask(names.map(counter).into(), |answer| {
            counted.extend(packets_of(answer));
        })?;
        let of = |name| counted.iter().find(|(counter, _)| counter == name);
        let [Some(packets), Some(quic), Some(ingress)] = names.map(of) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(Counters {
            packets: packets.1,
            quic: quic.1,
            ingress: ingress.1,
        })
    }

    /// Has the kernel apply these together, or none of them.
    pub(super) fn apply(&self, changes: Vec<Change>) -> io::Result<()> {
        let mut batch = message(CONTROL, ControlMessage::BatchBegin, 0);
        let last = changes.len().saturating_sub(1);
        for (n, (change, flags)) in changes.into_iter().enumerate() {
            // Whatever is refused is told of first, so that this is told of last.
            let flags = if n == last { flags | NLM_F_ACK } else { flags };
            batch.extend(message(CHANGE, change, flags));
        }
        batch.extend(message(CONTROL, ControlMessage::BatchEnd, 0));
        self.socket.send(&batch, 0)?;
        let mut is_something_else = false;
        let outcome = self.receive(|_| is_something_else = true);
        if outcome.is_err() || is_something_else {
            self.forget_the_rest();
        }
        if is_something_else {
            return Err(io::ErrorKind::InvalidData.into());
        }
        outcome
    }

    /// Puts questions, each of which has one answer, and hands over the attributes of those.
    fn ask(
        &self,
        questions: Vec<NfTablesMessage>,
        mut answer: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let count = questions.len();
        let questions = questions.into_iter();
        let questions: Vec<_> = questions.map(|ask| message(CHANGE, ask, 0)).collect();
        self.socket.send(&questions.concat(), 0)?;
        for _ in 0..count {
            if let Err(error) = self.receive(&mut answer) {
                self.forget_the_rest();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads one answer: what was asked for, or that something was done, or was not.
    fn receive(&self, answer: impl FnOnce(&[u8])) -> io::Result<()> {
        let mut buffer = [0; ANSWER];
        let length = match self.socket.recv(&mut &mut buffer[..], 0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read => read?,
        };
        let read = buffer.get(..length).unwrap_or_default();
        let message = NetlinkBuffer::new_checked(read).map_err(io::Error::other)?;
        if message.message_type() != NLMSG_ERROR {
            answer(message.payload().get(HEADER..).unwrap_or_default());
            return Ok(());
        }
        let code = message.payload().first_chunk().copied();
        match code.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(code) => Err(Errno::from_raw_os_error(code.saturating_neg()).into()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// What is still to be read must not be taken for the next answer. There is no more of it than
    /// there were messages.
    fn forget_the_rest(&self) {
        for _ in 0..MOST_ANSWERS {
            match self.receive(|_| {}) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// A question for a counter of the table's.
fn counter(name: &str) -> NfTablesMessage {
    let text = |kind, text: &str| DefaultNla::new(kind, [text.as_bytes(), &[0]].concat());
    NfTablesMessage::GetObject(vec![
        text(OBJECT_TABLE, TABLE),
        text(OBJECT_NAME, name),
        DefaultNla::new(OBJECT_TYPE, COUNTER.to_be_bytes().to_vec()),
    ])
}

/// The name of a counter, and how many packets it has counted.
fn packets_of(object: &[u8]) -> Option<(String, u64)> {
    let packets = attribute(attribute(object, OBJECT_DATA)?, COUNTER_PACKETS)?;
    Some((
        text(object, OBJECT_NAME)?,
        u64::from_be_bytes(packets.try_into().ok()?),
    ))
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
/// Of what is about a table of both families.
const CHANGE: (NetfilterProtoFamily, u16) = (NetfilterProtoFamily::Inet, 0);
/// `struct nfgenmsg`
const HEADER: usize = 4;
/// More than any of these answers has.
const ANSWER: usize = 4096;
const MOST_ANSWERS: usize = 1024;
/// `NFTA_GEN_ID`
const GENERATION: u16 = 1;
/// `NFTA_OBJ_TABLE`, `_NAME`, `_TYPE` and `_DATA`
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
/// `NFT_OBJECT_COUNTER`
const COUNTER: u32 = 1;
/// `NFTA_COUNTER_PACKETS`
const COUNTER_PACKETS: u16 = 2;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// A wire in a network of this thread's own.
    fn wire() -> Wire {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        Wire::connect().unwrap()
    }

    fn nft(command: &str) {
        let output = Command::new("nft").arg(command).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }

    fn with_counters(values: [(&str, u64); 3]) {
        for (name, packets) in values {
            nft(&format!(
                "add table inet {TABLE}
                 add counter inet {TABLE} {name} {{ packets {packets} bytes 1; }}"
            ));
        }
    }

    #[test]
    fn counters_are_read_by_their_names_and_may_exceed_32_bits() {
        let wire = wire();
        with_counters([
            ("denied_ingress", 3),
            ("denied_packets", 5_000_000_000),
            ("denied_quic", 2),
        ]);
        let counted = Counters {
            packets: 5_000_000_000,
            quic: 2,
            ingress: 3,
        };
        assert_eq!(wire.counters().unwrap(), counted);
    }

    #[test]
    fn a_counter_that_is_not_there_is_an_error_and_not_nothing_and_confuses_no_later_question() {
        let wire = wire();
        assert!(wire.counters().is_err(), "there is no table");
        with_counters([("denied_ingress", 3), ("denied_packets", 1), ("other", 2)]);
        for _ in 0..2 {
            assert!(wire.counters().is_err(), "one is missing");
        }
        nft(&format!("add counter inet {TABLE} denied_quic"));
        assert_eq!(wire.counters().unwrap().ingress, 3);
        assert!(wire.generation().is_ok());
    }

    #[test]
    fn each_transaction_has_the_next_number_whosoever_it_is() {
        let wire = wire();
        let first = wire.generation().unwrap();
        nft("list ruleset");
        assert_eq!(wire.generation().unwrap(), first);
        nft("add table ip other");
        assert_eq!(wire.generation().unwrap(), first + 1);
    }

    #[test]
    fn what_the_kernel_refuses_is_told_by_its_number() {
        let wire = wire();
        let question = counter("nobody");
        let error = wire.ask(vec![question], |_| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_left_of_another_answer_is_not_taken_for_an_outcome() {
        let wire = wire();
        let attributes = Vec::new();
        let question = NfTablesMessage::GetGen(GenMessage { attributes });
        wire.socket.send(&message(CHANGE, question, 0), 0).unwrap();
        assert!(wire.apply(Vec::new()).is_err());
        assert!(wire.generation().is_ok());
    }

    #[test]
    fn what_is_no_counter_has_no_packets() {
        for rubbish in [&[][..], &[0; 3], &[0xff; 64], &[8, 0, 4, 0, 1, 2, 3, 4]] {
            assert_eq!(packets_of(rubbish), None, "{rubbish:?}");
        }
    }
}
