//! The entry that would have let one refused attempt pass, by the reason of the refusal.

use std::net::IpAddr;

use policy::{AddressClass, DenyReason, Host};
use report::Transport;

use crate::session::DeniedHost;

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoEntry {
    pub(crate) text: &'static str,
    /// Whether the entry that stands in the way says it better.
    pub(crate) is_explained_by_rule: bool,
}

/// The entry. Whether it then decides as it should is for the caller to see.
pub(crate) fn entry(host: &DeniedHost) -> Result<String, NoEntry> {
    let Ok(reason) = host.reason.parse::<DenyReason>() else {
        return no("this version does not know the reason");
    };
    // Names come from a guest: what is no name is no entry either, whatever the grammar of lists
    // would make of it.
    if host
        .host
        .as_ref()
        .is_some_and(|name| Host::parse(name).is_err())
    {
        return no("no entry can name it");
    }
    match (reason, &host.host, &host.address) {
        // Its port is that of the resolver, where nobody wants to go.
        (DenyReason::DnsNotAllowed, Some(name), _) => Ok(name.clone()),
        (DenyReason::NotAllowed, Some(name), _) if is_web(host) => Ok(name.clone()),
        (DenyReason::NotAllowed | DenyReason::PortNotAllowed, Some(_), _) => Ok(host.target()),
        (DenyReason::AddressLiteral | DenyReason::Packet, None, Some(_))
            if host.proto == Transport::Tcp && host.port.is_some() =>
        {
            Ok(host.target())
        }
        (DenyReason::PrivateAddress, Some(_), Some(address)) if !is_service(address) => no(
            "it resolves to this machine or its link, where clouds keep their metadata; nothing is \
                suggested for that",
        ),
        (DenyReason::PrivateAddress, Some(name), Some(address))
            if is_web(host) || is_question(host) =>
        {
            Ok(format!("{name}@{address}"))
        }
        (DenyReason::PrivateAddress, Some(_), Some(address)) => {
            Ok(format!("{}@{address}", host.target()))
        }
        (reason, ..) => Err(why_not(reason)),
    }
}

/// Whether the list alone decides on it, and not what is seen later.
pub(super) fn is_of_the_list(host: &DeniedHost) -> bool {
    matches!(
        host.reason.parse(),
        Ok(DenyReason::NotAllowed | DenyReason::DnsNotAllowed | DenyReason::PortNotAllowed)
    )
}

/// Whether a name was asked for and nobody has said on which port it was wanted.
pub(crate) fn is_question(host: &DeniedHost) -> bool {
    let is_about_addresses = host.reason.parse() == Ok(DenyReason::PrivateAddress);
    host.port.is_none()
        || host.reason.parse() == Ok(DenyReason::DnsNotAllowed)
        || is_about_addresses && host.port == Some(DNS_PORT)
}

/// Whether services that somebody means to reach have such addresses.
fn is_service(address: &str) -> bool {
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    !matches!(
        policy::is_guarded(address),
        Some(
            AddressClass::Unspecified
                | AddressClass::ThisNetwork
                | AddressClass::Loopback
                | AddressClass::LinkLocal
                | AddressClass::Multicast
                | AddressClass::Broadcast
        )
    )
}

fn is_web(host: &DeniedHost) -> bool {
    matches!(host.port, None | Some(80 | 443))
}

fn no(text: &'static str) -> Result<String, NoEntry> {
    Err(because(text))
}

const fn because(text: &'static str) -> NoEntry {
    NoEntry {
        text,
        is_explained_by_rule: false,
    }
}

const fn why_not(reason: DenyReason) -> NoEntry {
    match reason {
        DenyReason::DeniedByRule => NoEntry {
            text: "an entry with `!` denies it, and no other can overrule that",
            is_explained_by_rule: true,
        },
        DenyReason::NotAllowed
        | DenyReason::DnsNotAllowed
        | DenyReason::PortNotAllowed
        | DenyReason::AddressLiteral => because("the record does not say which host it was"),
        DenyReason::PrivateAddress => {
            because("it resolves into a range that is guarded; if that is meant, add `NAME@RANGE`")
        }
        DenyReason::NoName => because("the client named no host; allow its address if it cannot"),
        DenyReason::NameMismatch => because("the client named two hosts: only one can be meant"),
        DenyReason::NotTls => {
            because("what was sent is no TLS; `NAME:PORT/tcp` would let anything pass on that port")
        }
        DenyReason::NotHttp => because(
            "what was sent is no HTTP; `NAME:PORT/tcp` would let anything pass on that port",
        ),
        DenyReason::Malformed => because("no entry can name it"),
        DenyReason::DnsTypeRefused => because("questions of this type are never answered"),
        DenyReason::Packet => because("only TCP to an address can be allowed by an entry"),
        DenyReason::Quic => because("QUIC is refused so that clients use TCP, where names decide"),
        DenyReason::Ingress => because("it came from outside; `--publish` opens a port"),
        DenyReason::Limit => because("a limit was reached, whatever the list says"),
        DenyReason::Outage => because("the proxy was not running, whatever the list says"),
    }
}

const DNS_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suggest::tests::denied;

    #[test]
    fn the_reason_tells_which_entry_would_help() {
        let guarded = |target| DeniedHost {
            address: Some("10.1.2.3".into()),
            ..denied(target, "private_address", 1)
        };
        for (host, expected) in [
            (denied("a.example:443", "not_allowed", 1), Some("a.example")),
            (
                denied("a.example:8443", "not_allowed", 1),
                Some("a.example:8443"),
            ),
            (
                denied("a.example:443", "port_not_allowed", 1),
                Some("a.example:443"),
            ),
            (
                denied("a.example:53", "dns_not_allowed", 1),
                Some("a.example"),
            ),
            (denied("192.0.2.1:22", "packet", 1), Some("192.0.2.1:22")),
            (denied("192.0.2.1", "packet", 1), None),
            (guarded("a.example:443"), Some("a.example@10.1.2.3")),
            (guarded("a.example:22"), Some("a.example:22@10.1.2.3")),
            (guarded("a.example:53"), Some("a.example@10.1.2.3")),
            (denied("a.example:443", "private_address", 1), None),
            (denied("a.example:443", "quota_2", 1), None),
        ] {
            assert_eq!(entry(&host).ok().as_deref(), expected, "{host:?}");
        }
    }

    #[test]
    fn what_is_no_name_is_no_entry() {
        for name in [
            "a,b.example",
            "!x.example",
            "@github",
            "*",
            "*.com",
            "a b",
            "x:1",
            "$(x)",
            "",
        ] {
            let host = DeniedHost {
                host: Some(name.into()),
                ..denied("x:443", "not_allowed", 1)
            };
            assert_eq!(
                entry(&host).unwrap_err().text,
                "no entry can name it",
                "{name}"
            );
        }
    }

    #[test]
    fn only_tcp_is_allowed_by_address() {
        let datagram = DeniedHost {
            proto: Transport::Udp,
            ..denied("192.0.2.1:53", "packet", 1)
        };
        assert!(entry(&datagram).unwrap_err().text.contains("only TCP"));
        let v6 = DeniedHost {
            address: Some("2001:db8::1".into()),
            ..denied("192.0.2.1:22", "address_literal", 1)
        };
        assert_eq!(entry(&v6).unwrap(), "[2001:db8::1]:22");
    }

    #[test]
    fn the_machine_itself_and_its_link_are_no_place_for_what_a_list_names() {
        for address in [
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "224.0.0.1",
        ] {
            let host = DeniedHost {
                address: Some(address.into()),
                ..denied("a.example:443", "private_address", 1)
            };
            let why = entry(&host).unwrap_err().text;
            assert!(why.contains("metadata"), "{address}: {why}");
        }
    }

    #[test]
    fn every_reason_that_no_entry_helps_is_put_into_words() {
        for reason in DenyReason::ALL {
            let nobody = DeniedHost {
                host: None,
                ..denied("x", reason.as_str(), 1)
            };
            assert!(entry(&nobody).unwrap_err().text.len() > 10, "{reason}");
        }
    }
}
