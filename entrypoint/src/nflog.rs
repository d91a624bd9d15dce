//! Reads the heads of refused packets from NFLOG: what the counters counted, and where it was going.

use std::{io, net::IpAddr, time::Duration};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nflog::{ConfigCmd, ConfigFlags, ConfigMode, PacketNla, Timeout, ULogMessage, config_request},
};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use policy::DenyReason;
use report::{Printable, Target, Transport};

use crate::{firewall::LOG_GROUP, readiness::Readiness, receiving};

/// One refused packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedPacket {
    /// Where it was going; for a refused ingress, the port that was dialled and who dialled.
    pub(crate) target: Target,
    /// What carried it.
    pub(crate) proto: Transport,
    /// Which rule refused it.
    pub(crate) reason: DenyReason,
    /// Whose it was; what comes in is nobody's, nor is what the kernel sends itself.
    pub(crate) uid: Option<u32>,
}

/// The bound log group. Bound while there is `NET_ADMIN`, it goes on delivering without.
pub(crate) struct NfLog {
    /// How many bytes of samples wait for PID 1 before some are lost.
    room: usize,
    socket: Socket,
    readiness: Readiness,
    buffer: Vec<u8>,
    has_lost: bool,
}

impl NfLog {
    /// Binds the group that the ruleset logs to.
    pub(crate) fn bind() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        // What is lost where there is less room is counted as unsampled.
        let room = receiving::enlarge(&socket)?;
        let configuration = vec![
            ConfigCmd::Bind.into(),
            ConfigMode::new_packet(PACKET_HEAD).into(),
            ConfigFlags::empty().into(),
            Timeout::from(FLUSH_AFTER).into(),
        ];
        request(&socket, configuration)?;
        socket.set_non_blocking(true)?;
        let readiness = Readiness::of(&socket)?;
        Ok(Self {
            room,
            socket,
            readiness,
            buffer: vec![0; DATAGRAM],
            has_lost: false,
        })
    }

    /// What is done without, where the kernel keeps fewer samples than it was asked to.
    pub(crate) fn degradation(&self) -> Option<Printable> {
        (self.room < receiving::BYTES).then(|| {
            Printable::new(&format!(
                "samples of refused packets wait in {} KiB instead of {}, so that a flood of them \
                 leaves more unsampled; their count is exact all the same",
                self.room / 1024,
                receiving::BYTES / 1024,
            ))
        })
    }

    /// Whether the kernel had to throw samples away: those do not come any more.
    pub(crate) const fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Waits for refused packets. None at all are returned where the kernel had to throw some away:
    /// the counters still have them, and what they have more is reported as unsampled.
    pub(crate) async fn read(&mut self) -> io::Result<Vec<RefusedPacket>> {
        let Self {
            socket,
            readiness,
            buffer,
            has_lost,
            room: _,
        } = self;
        match readiness
            .read(|| socket.recv(&mut &mut buffer[..], 0))
            .await
        {
            Ok(length) => Ok(packets(buffer.get(..length).unwrap_or_default())),
            Err(error) if error.raw_os_error() == Some(receiving::OVERRUN) => {
                *has_lost = true;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}

/// Sends one configuration request and reads the kernel's answer.
fn request(
    socket: &Socket,
    configuration: Vec<netlink_packet_netfilter::nflog::ConfigNla>,
) -> io::Result<()> {
    let message = config_request(NetfilterProtoFamily::Unspec, LOG_GROUP, configuration);
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    match NetlinkMessage::<NetfilterMessage>::deserialize(&answer).map(|m| m.payload) {
        Ok(NetlinkPayload::Error(error)) if error.code.is_none() => Ok(()),
        Ok(NetlinkPayload::Error(error)) => Err(error.to_io()),
        Ok(_) | Err(_) => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// Every packet of a datagram; messages are aligned to four bytes (netlink(7)).
fn packets(mut bytes: &[u8]) -> Vec<RefusedPacket> {
    let mut found = Vec::new();
    while let Ok(message) = NetlinkMessage::<NetfilterMessage>::deserialize(bytes) {
        let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
        if let NetlinkPayload::InnerMessage(inner) = message.payload
            && let NetfilterMessageInner::ULog(ULogMessage::Packet(attributes)) = inner.inner
        {
            found.extend(refused(&attributes));
        }
        match bytes.get(length.next_multiple_of(4)..) {
            Some(rest) if length > 0 => bytes = rest,
            _ => break,
        }
    }
    found
}

fn refused(attributes: &[PacketNla]) -> Option<RefusedPacket> {
    let (mut reason, mut head, mut uid) = (None, None, None);
    for attribute in attributes {
        if let PacketNla::Prefix(prefix) = attribute {
            reason = prefix.to_str().ok()?.parse().ok();
        } else if let PacketNla::Payload(payload) = attribute {
            head = Some(payload);
        } else if let PacketNla::Uid(owner) = attribute {
            uid = Some(*owner);
        }
    }
    let reason = reason?;
    let (target, proto) = target(head?, reason);
    Some(RefusedPacket {
        target,
        proto,
        reason,
        uid,
    })
}

/// Reads as much of a cut packet as there is. A fragment has no ports but still an address.
fn target(head: &[u8], reason: DenyReason) -> (Target, Transport) {
    let Ok(packet) = LaxSlicedPacket::from_ip(head) else {
        return (Target::default(), Transport::Other);
    };
    let ends: Option<(IpAddr, IpAddr)> = packet.net.as_ref().and_then(|net| match net {
        LaxNetSlice::Ipv4(ip) => Some((
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        )),
        LaxNetSlice::Ipv6(ip) => Some((
            ip.header().source_addr().into(),
            ip.header().destination_addr().into(),
        )),
        LaxNetSlice::Arp(_) => None,
    });
    let (port, proto) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => (Some(tcp.destination_port()), Transport::Tcp),
        Some(TransportSlice::Udp(udp)) => (Some(udp.destination_port()), Transport::Udp),
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_)) => (None, Transport::Icmp),
        Some(TransportSlice::Igmp(_)) | None => (None, Transport::Other),
    };
    let dialled_in = reason == DenyReason::Ingress;
    let address = ends.map(|(source, destination)| if dialled_in { source } else { destination });
    (
        Target {
            host: None,
            address,
            port,
        },
        proto,
    )
}

const PACKET_HEAD: u32 = 128;
const DATAGRAM: usize = 128 * 1024;
const FLUSH_AFTER: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn head(builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>) -> Vec<u8> {
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &[0; 64]).unwrap();
        bytes
    }

    #[test]
    fn a_refused_packet_tells_where_it_was_going() {
        let v4 = head(PacketBuilder::ipv4([10, 0, 0, 2], [192, 0, 2, 9], 64).udp(4000, 443));
        let (to, proto) = target(&v4, DenyReason::Quic);
        assert_eq!(
            (to.address, to.port),
            (Some([192, 0, 2, 9].into()), Some(443))
        );
        assert_eq!(proto, Transport::Udp);
        let v6 = head(PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(4000, 53));
        assert_eq!(
            target(&v6, DenyReason::Packet).0.address,
            Some([2; 16].into())
        );
    }

    #[test]
    fn a_refused_caller_is_named_by_where_it_came_from() {
        let v4 = head(PacketBuilder::ipv4([192, 0, 2, 9], [10, 0, 0, 2], 64).udp(4000, 80));
        let (from, _) = target(&v4, DenyReason::Ingress);
        assert_eq!(
            (from.address, from.port),
            (Some([192, 0, 2, 9].into()), Some(80))
        );
    }

    #[test]
    fn a_packet_cut_anywhere_is_still_counted() {
        let whole = head(PacketBuilder::ipv4([10, 0, 0, 2], [192, 0, 2, 9], 64).udp(4000, 443));
        for end in 0..whole.len() {
            let (to, _) = target(&whole[..end], DenyReason::Packet);
            assert_eq!(to.address.is_some(), end >= 20, "{end}");
        }
    }

    #[test]
    fn rubbish_from_the_socket_is_no_packet() {
        for bytes in [&[][..], &[0; 3], &[0; 64], &[0xff; 200]] {
            assert_eq!(packets(bytes), Vec::new());
        }
    }

    /// A datagram as the kernel writes it, of one message with these attributes.
    fn datagram(attributes: Vec<PacketNla>) -> Vec<u8> {
        use netlink_packet_core::{NetlinkHeader, NetlinkPayload};
        use netlink_packet_netfilter::NetfilterHeader;
        let header = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, LOG_GROUP);
        let message = NetfilterMessage::new(header, ULogMessage::Packet(attributes));
        let mut message =
            NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn logged(prefix: &str) -> Vec<u8> {
        let payload = head(PacketBuilder::ipv4([10, 0, 0, 2], [192, 0, 2, 9], 64).udp(4000, 443));
        let prefix = std::ffi::CString::new(prefix).unwrap();
        datagram(vec![PacketNla::Prefix(prefix), PacketNla::Payload(payload)])
    }

    #[test]
    fn the_prefix_of_the_rule_is_the_reason() {
        for (prefix, reason) in [
            ("packet", DenyReason::Packet),
            ("quic", DenyReason::Quic),
            ("ingress", DenyReason::Ingress),
        ] {
            let found = packets(&logged(prefix));
            assert_eq!(found.len(), 1, "{prefix}");
            assert_eq!(found[0].reason, reason);
        }
    }

    #[test]
    fn a_packet_of_a_socket_is_its_owner_s_and_any_other_nobody_s() {
        let prefix = PacketNla::Prefix(c"packet".to_owned());
        let payload = || {
            let to = PacketBuilder::ipv4([10, 0, 0, 2], [192, 0, 2, 9], 64).udp(4000, 443);
            PacketNla::Payload(head(to))
        };
        let owned = datagram(vec![prefix.clone(), payload(), PacketNla::Uid(1000)]);
        assert_eq!(packets(&owned)[0].uid, Some(1000));
        assert_eq!(packets(&datagram(vec![prefix, payload()]))[0].uid, None);
    }

    #[test]
    fn another_programs_log_is_not_ours() {
        assert_eq!(packets(&logged("somebody else's")), Vec::new());
    }

    #[test]
    fn every_message_of_a_datagram_is_read() {
        let mut bytes = logged("packet");
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(logged("quic"));
        let reasons: Vec<_> = packets(&bytes)
            .into_iter()
            .map(|packet| packet.reason)
            .collect();
        assert_eq!(reasons, [DenyReason::Packet, DenyReason::Quic]);
    }

    #[test]
    fn a_datagram_cut_anywhere_gives_whole_packets_or_none() {
        let whole = logged("packet");
        for end in 0..whole.len() {
            assert!(packets(&whole[..end]).len() <= 1, "{end}");
        }
    }

    #[test]
    fn a_message_without_a_packet_is_passed_over() {
        let prefix = std::ffi::CString::new("packet").unwrap();
        assert_eq!(
            packets(&datagram(vec![PacketNla::Prefix(prefix)])),
            Vec::new()
        );
    }

    #[test]
    fn other_protocols_are_told_by_their_address() {
        let mut bytes = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 2], [192, 0, 2, 9], 64)
            .icmpv4_echo_request(1, 2)
            .write(&mut bytes, &[])
            .unwrap();
        let (to, proto) = target(&bytes, DenyReason::Packet);
        assert_eq!((to.port, proto), (None, Transport::Icmp));
        // SCTP, whose ports nobody here reads.
        bytes[9] = 132;
        let (to, proto) = target(&bytes, DenyReason::Packet);
        assert_eq!((to.address.is_some(), proto), (true, Transport::Other));
    }
}
