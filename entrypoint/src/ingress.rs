//! Ports of the guest that may be dialled from outside: `proto:port` or `proto:low-high`.

use std::str::FromStr;

use crate::failure::Failure;

/// One item of `SANDBOX_INGRESS_PORTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IngressPort {
    /// The transport.
    pub(crate) proto: IngressProto,
    /// The lowest port.
    pub(crate) low: u16,
    /// The highest port.
    pub(crate) high: u16,
}

/// Transports that have ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IngressProto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl IngressProto {
    /// As nftables spells it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl FromStr for IngressPort {
    type Err = Failure;

    fn from_str(item: &str) -> Result<Self, Failure> {
        let refuse = || {
            let problem = format!("`{item}` is no port to open");
            Failure::config(
                "SANDBOX_INGRESS_PORTS",
                problem,
                "use `tcp:8080` or `udp:6000-6010`",
            )
        };
        let (proto, ports) = item.split_once(':').ok_or_else(refuse)?;
        let proto = match proto {
            "tcp" => IngressProto::Tcp,
            "udp" => IngressProto::Udp,
            _ => return Err(refuse()),
        };
        let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
        let port = |text: &str| {
            text.parse::<u16>()
                .ok()
                .filter(|&p| p != 0)
                .ok_or_else(refuse)
        };
        let (low, high) = (port(low)?, port(high)?);
        if low > high {
            Err(refuse())
        } else {
            Ok(Self { proto, low, high })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges_are_read() {
        for (item, proto, low, high) in [
            ("tcp:8080", IngressProto::Tcp, 8080, 8080),
            ("udp:6000-6010", IngressProto::Udp, 6000, 6010),
        ] {
            assert_eq!(
                item.parse::<IngressPort>().unwrap(),
                IngressPort { proto, low, high }
            );
        }
    }

    #[test]
    fn what_opens_nothing_or_too_much_is_refused() {
        for item in [
            "8080",
            "tcp:",
            "tcp:0",
            "sctp:1",
            "tcp:9-8",
            "tcp:1-",
            "tcp:*",
            "tcp:65536",
        ] {
            assert!(item.parse::<IngressPort>().is_err(), "{item}");
        }
    }

    #[test]
    fn a_refusal_names_the_item_and_how_to_write_it() {
        let line = "tcp:x".parse::<IngressPort>().unwrap_err().one_line();
        assert!(
            line.contains("`tcp:x`") && line.contains("tcp:8080"),
            "{line}"
        );
    }

    #[test]
    fn each_transport_is_spelt_as_nftables_does() {
        assert_eq!(
            [IngressProto::Tcp, IngressProto::Udp].map(IngressProto::as_str),
            ["tcp", "udp"]
        );
    }
}
