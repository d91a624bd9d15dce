//! Where a client wants to go: a host, by name or by address, and a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::name::{HostName, HostNameError};

/// A host as a client may name it.
///
/// An address is never v4-mapped when it comes from [`Host::parse`]: `::ffff:10.0.0.1` reaches the
/// same machine as `10.0.0.1`, so it is judged as that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// By name.
    Name(HostName),
    /// By address.
    Address(IpAddr),
}

impl Host {
    /// Reads a name, an IPv4 address in dotted decimal, or an IPv6 address with or without brackets.
    pub fn parse(raw: &str) -> Result<Self, HostError> {
        if let Some(rest) = raw.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(HostError::Brackets)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| HostError::Brackets)?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = raw.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        Ok(Self::Name(HostName::parse(raw)?))
    }
}

/// Without brackets, as a log names a host.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(raw: &str) -> Result<Self, HostError> {
        Self::parse(raw)
    }
}

/// A host and a port on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The port; nothing is ever allowed on port 0.
    pub port: u16,
}

impl Destination {
    /// Reads the host, see [`Host::parse`].
    pub fn parse(host: &str, port: u16) -> Result<Self, HostError> {
        Ok(Self {
            host: Host::parse(host)?,
            port,
        })
    }
}

/// `host:port`, an IPv6 address in brackets.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            host @ (Host::Name(_) | Host::Address(_)) => write!(f, "{host}:{}", self.port),
        }
    }
}

/// Why a string names no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Neither an address nor a name.
    #[error(transparent)]
    Name(#[from] HostNameError),
    /// Brackets that hold something else than an IPv6 address, or that do not close.
    #[error("brackets hold an IPv6 address and nothing else, not even a zone")]
    Brackets,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for (raw, shown) in [
            ("GitHub.com.", "github.com"),
            ("10.0.0.1", "10.0.0.1"),
            ("[2001:DB8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[::ffff:10.0.0.1]", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::10.0.0.1", "::a00:1"),
        ] {
            let host = Host::parse(raw).unwrap_or_else(|error| panic!("{raw}: {error}"));
            assert_eq!(host.to_string(), shown, "{raw}");
            assert_eq!(shown.parse(), Ok(host), "{raw}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for raw in [
            "",
            " ",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "[10.0.0.1]",
            "[fe80::1%25eth0]",
            "fe80::1%eth0",
            "[::1",
            "::1]",
            "[]",
            "[[::1]]",
            "github.com:443",
            "10.0.0.1:443",
            "[::1]:443",
            "10.0.0.0/8",
            "a@b",
            "1.2.3.4.5",
        ] {
            assert!(Host::parse(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn an_error_shows_no_control_character() {
        for raw in ["a\nb", "a\u{1b}[2J", "\u{0}"] {
            let error = Host::parse(raw).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn a_destination_shows_an_ipv6_address_in_brackets() {
        for (host, shown) in [
            ("github.com", "github.com:443"),
            ("10.0.0.1", "10.0.0.1:443"),
            ("::1", "[::1]:443"),
        ] {
            assert_eq!(Destination::parse(host, 443).unwrap().to_string(), shown);
        }
    }
}
