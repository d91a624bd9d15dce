//! Why something was refused: the closed set of words that answers, reports, logs and metrics share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why an attempt to reach something was refused.
///
/// The spelling of each ([`DenyReason::as_str`], also its form in JSON) is stable: it is what a
/// client reads, what the report carries and what metrics are labelled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenyReason {
    /// No entry covers the name.
    NotAllowed,
    /// An entry covers the host, but on other ports.
    PortNotAllowed,
    /// An entry that starts with `!` covers the destination.
    DeniedByRule,
    /// The destination is a bare address, and no address entry covers it.
    AddressLiteral,
    /// Every address that the name resolved to is guarded, see [`crate::is_guarded`].
    PrivateAddress,
    /// The stream does not say which host it is for, as TLS without SNI.
    NoName,
    /// The stream names another host than the one that was allowed.
    NameMismatch,
    /// The entry demands TLS, and the stream is something else.
    NotTls,
    /// The entry demands HTTP, and the stream is something else.
    NotHttp,
    /// The destination is not a host name or an address at all.
    Malformed,
    /// A DNS query for a name that no entry could allow.
    DnsNotAllowed,
    /// A DNS query for a record type that serves tunnels.
    DnsTypeRefused,
    /// The firewall refused a packet.
    Packet,
    /// UDP to port 443: a client that tried HTTP/3.
    Quic,
    /// Someone tried to dial into the sandbox.
    Ingress,
    /// A bound on connections or names was reached.
    Limit,
    /// The proxy was not running.
    Outage,
}

impl DenyReason {
    /// Every reason there is, in the order of their declaration.
    pub const ALL: [Self; 17] = [
        Self::NotAllowed,
        Self::PortNotAllowed,
        Self::DeniedByRule,
        Self::AddressLiteral,
        Self::PrivateAddress,
        Self::NoName,
        Self::NameMismatch,
        Self::NotTls,
        Self::NotHttp,
        Self::Malformed,
        Self::DnsNotAllowed,
        Self::DnsTypeRefused,
        Self::Packet,
        Self::Quic,
        Self::Ingress,
        Self::Limit,
        Self::Outage,
    ];

    /// The stable spelling, in `snake_case`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::PortNotAllowed => "port_not_allowed",
            Self::DeniedByRule => "denied_by_rule",
            Self::AddressLiteral => "address_literal",
            Self::PrivateAddress => "private_address",
            Self::NoName => "no_name",
            Self::NameMismatch => "name_mismatch",
            Self::NotTls => "not_tls",
            Self::NotHttp => "not_http",
            Self::Malformed => "malformed",
            Self::DnsNotAllowed => "dns_not_allowed",
            Self::DnsTypeRefused => "dns_type_refused",
            Self::Packet => "packet",
            Self::Quic => "quic",
            Self::Ingress => "ingress",
            Self::Limit => "limit",
            Self::Outage => "outage",
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DenyReason {
    type Err = UnknownReason;

    fn from_str(word: &str) -> Result<Self, UnknownReason> {
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == word)
            .ok_or(UnknownReason)
    }
}

/// The word is not the spelling of any [`DenyReason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a reason for a denial")]
pub struct UnknownReason;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn display_and_from_str_are_inverse() {
        for reason in DenyReason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(reason), "{reason}");
        }
    }

    #[test]
    fn json_has_the_same_spelling() {
        for reason in DenyReason::ALL {
            let json = serde_json::to_string(&reason).unwrap();
            assert_eq!(json, format!("\"{reason}\""));
            assert_eq!(serde_json::from_str::<DenyReason>(&json).unwrap(), reason);
        }
    }

    #[test]
    fn no_two_reasons_share_a_word() {
        let words: BTreeSet<_> = DenyReason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(words.len(), DenyReason::ALL.len());
    }

    #[test]
    fn an_unknown_word_is_no_reason() {
        for word in ["", "Not_Allowed", "not allowed", "refused"] {
            assert_eq!(word.parse::<DenyReason>(), Err(UnknownReason), "{word:?}");
        }
    }
}
