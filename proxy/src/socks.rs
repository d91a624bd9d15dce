//! Reads what SOCKS clients say, and writes what they are told (RFC 1928).
//!
//! Every message is read from the start of a slice, and is whole, or not yet, or wrong: whatever the
//! pieces in which it comes, the answer is the same, and no message is longer than 262 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The methods of authentication that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Whether it would do without any.
    pub(crate) anonymous: bool,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) address: Address,
    pub(crate) port: u16,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Connect,
    Bind,
    UdpAssociate,
    /// None that RFC 1928 knows.
    Unknown(u8),
}

/// With whom it is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(IpAddr),
    /// 1 to 255 bytes, of which nothing is known.
    Domain(Vec<u8>),
}

/// Why bytes are not a message. The text is for people; the client is told a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksError {
    #[error("a SOCKS5 message begins with 5, this one with {0}")]
    Version(u8),
    #[error("a client offers at least one method of authentication")]
    NoMethods,
    #[error("the third byte of a SOCKS5 request is 0, here it is {0}")]
    Reserved(u8),
    #[error("SOCKS5 has the address types 1, 3 and 4, and not {0}")]
    AddressType(u8),
    #[error("the domain of a SOCKS5 request is empty")]
    NoDomain,
}

/// What a client is told of its request (RFC 1928 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl Greeting {
    /// Reads one greeting and says how long it is; `None` until it is whole.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, SocksError> {
        let Some((&version, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        require_version(version)?;
        let Some((&count, rest)) = rest.split_first() else {
            return Ok(None);
        };
        if count == 0 {
            return Err(SocksError::NoMethods);
        }
        let count = usize::from(count);
        Ok(rest.get(..count).map(|methods| {
            let anonymous = methods.contains(&NO_AUTHENTICATION);
            (Self { anonymous }, 2 + count)
        }))
    }
}

impl Request {
    /// Reads one request and says how long it is; `None` until it is whole.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, SocksError> {
        if let Some(&version) = bytes.first() {
            require_version(version)?;
        }
        if let Some(&reserved) = bytes.get(2).filter(|&&byte| byte != 0) {
            return Err(SocksError::Reserved(reserved));
        }
        let Some((&[_, command, _, address_type], rest)) = bytes.split_first_chunk() else {
            return Ok(None);
        };
        let Some((address, rest)) = Address::parse(address_type, rest)? else {
            return Ok(None);
        };
        let Some((&port, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let request = Self {
            command: Command::from(command),
            address,
            port: u16::from_be_bytes(port),
        };
        Ok(Some((request, bytes.len() - rest.len())))
    }
}

impl Address {
    /// Reads one, and gives back what follows it.
    fn parse(address_type: u8, bytes: &[u8]) -> Result<Option<(Self, &[u8])>, SocksError> {
        match address_type {
            IPV4 => Ok(bytes
                .split_first_chunk::<4>()
                .map(|(octets, rest)| (Self::Ip(Ipv4Addr::from(*octets).into()), rest))),
            IPV6 => Ok(bytes
                .split_first_chunk::<16>()
                .map(|(octets, rest)| (Self::Ip(Ipv6Addr::from(*octets).into()), rest))),
            DOMAIN => match bytes.split_first() {
                Some((0, _)) => Err(SocksError::NoDomain),
                Some((&length, rest)) => Ok(rest
                    .split_at_checked(length.into())
                    .map(|(domain, rest)| (Self::Domain(domain.to_owned()), rest))),
                None => Ok(None),
            },
            _ => Err(SocksError::AddressType(address_type)),
        }
    }
}

impl From<u8> for Command {
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Connect,
            2 => Self::Bind,
            3 => Self::UdpAssociate,
            _ => Self::Unknown(byte),
        }
    }
}

impl Reply {
    /// As it is sent. Where it succeeded, the address that the connection was made from would
    /// follow; it is of no use to anybody, so the unspecified one does, as from most servers.
    pub(crate) fn to_bytes(self) -> [u8; 10] {
        [VERSION, self as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
    }
}

fn require_version(version: u8) -> Result<(), SocksError> {
    if version == VERSION {
        Ok(())
    } else {
        Err(SocksError::Version(version))
    }
}

/// What every message of SOCKS5 begins with. No method of HTTP does.
pub(crate) const VERSION: u8 = 5;
/// What a request of SOCKS4 or its variant 4a begins with.
pub(crate) const OLD_VERSION: u8 = 4;
/// The answer to a greeting: none of the methods is used, the request may follow.
pub(crate) const ANONYMOUS: [u8; 2] = [VERSION, NO_AUTHENTICATION];
/// The answer to a greeting: none of the methods will do.
pub(crate) const NO_METHOD: [u8; 2] = [VERSION, 0xff];
/// The answer to whatever SOCKS4 asks for: rejected or failed.
pub(crate) const OLD_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

const NO_AUTHENTICATION: u8 = 0;
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(bytes: &[u8]) -> Request {
        let (request, length) = Request::parse(bytes).unwrap().expect("a whole request");
        assert_eq!(length, bytes.len(), "{bytes:?}");
        request
    }

    #[test]
    fn a_client_need_only_offer_to_do_without_authentication_among_others() {
        for (methods, anonymous) in [
            (&[0][..], true),
            (&[0, 2], true),
            (&[1, 2, 0], true),
            (&[2], false),
            (&[0xff], false),
        ] {
            let count = u8::try_from(methods.len()).unwrap();
            let bytes = [&[5, count], methods].concat();
            let greeting = Greeting { anonymous };
            assert_eq!(
                Greeting::parse(&bytes),
                Ok(Some((greeting, bytes.len()))),
                "{methods:?}"
            );
        }
    }

    #[test]
    fn a_greeting_of_another_version_or_without_methods_is_refused() {
        assert_eq!(Greeting::parse(&[4]), Err(SocksError::Version(4)));
        assert_eq!(Greeting::parse(&[5, 0]), Err(SocksError::NoMethods));
    }

    #[test]
    fn a_request_names_an_address_of_any_type_and_a_port() {
        let v4 = asked(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 22]);
        assert_eq!(v4.address, Address::Ip("192.0.2.1".parse().unwrap()));
        assert_eq!((v4.command, v4.port), (Command::Connect, 22));
        let v6 = [
            5, 1, 0, 4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x1f, 0x90,
        ];
        let v6 = asked(&v6);
        assert_eq!(v6.address, Address::Ip("2001:db8::1".parse().unwrap()));
        assert_eq!(v6.port, 8080);
        let domain = asked(b"\x05\x01\0\x03\x09a.example\x01\xbb");
        assert_eq!(domain.address, Address::Domain(b"a.example".to_vec()));
        assert_eq!(domain.port, 443);
    }

    #[test]
    fn a_domain_is_as_long_as_a_byte_can_say_and_never_empty() {
        let longest = [&b"\x05\x01\0\x03\xff"[..], &[b'x'; 255], b"\0\x50"].concat();
        assert_eq!(asked(&longest).address, Address::Domain(vec![b'x'; 255]));
        assert_eq!(longest.len(), 262);
        assert_eq!(
            Request::parse(b"\x05\x01\0\x03\0"),
            Err(SocksError::NoDomain)
        );
    }

    #[test]
    fn commands_are_told_apart() {
        for (byte, command) in [
            (2, Command::Bind),
            (3, Command::UdpAssociate),
            (0, Command::Unknown(0)),
            (0xf0, Command::Unknown(0xf0)),
        ] {
            let bytes = [5, byte, 0, 1, 192, 0, 2, 1, 0, 22];
            assert_eq!(asked(&bytes).command, command, "{byte}");
        }
    }

    #[test]
    fn a_mistake_is_told_as_soon_as_it_is_there() {
        for (bytes, error) in [
            (&[4][..], SocksError::Version(4)),
            (b"G", SocksError::Version(b'G')),
            (&[5, 1, 1], SocksError::Reserved(1)),
            (&[5, 1, 0, 2], SocksError::AddressType(2)),
            (&[5, 1, 0, 0], SocksError::AddressType(0)),
        ] {
            assert_eq!(Request::parse(bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn what_follows_a_message_is_not_its_own() {
        let (_, length) = Greeting::parse(&[5, 1, 0, 5, 1, 0]).unwrap().unwrap();
        assert_eq!(length, 3);
        let early = b"\x05\x01\0\x03\x01a\0\x16SSH-2.0";
        assert_eq!(Request::parse(early).unwrap().unwrap().1, 8);
    }

    #[test]
    fn a_reply_carries_an_address_that_says_nothing() {
        assert_eq!(Reply::Succeeded.to_bytes(), [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Reply::NotAllowed.to_bytes()[1], 2);
    }

    /// Bytes that resemble a request often enough to get somewhere.
    fn resembling() -> impl Strategy<Value = Vec<u8>> {
        let head = (4u8..7, 0u8..5, 0u8..2, 0u8..6, 0u8..12)
            .prop_map(|(a, b, c, d, e)| vec![a, b, c, d, e]);
        (head, proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(head, rest)| [head, rest].concat())
    }

    /// What is read when ever more of `bytes` has come, up to the first answer.
    fn in_pieces<T>(bytes: &[u8], parse: impl Fn(&[u8]) -> T, waits: impl Fn(&T) -> bool) -> T {
        let answers = (0..=bytes.len()).map(|end| parse(&bytes[..end]));
        let mut answers = answers.skip_while(|answer| waits(answer));
        answers.next().unwrap_or_else(|| parse(bytes))
    }

    proptest! {
        #[test]
        fn however_a_request_is_cut_it_is_the_same(bytes in resembling()) {
            let piecewise = in_pieces(&bytes, Request::parse, |answer| *answer == Ok(None));
            prop_assert_eq!(piecewise, Request::parse(&bytes));
        }

        #[test]
        fn however_a_greeting_is_cut_it_is_the_same(bytes in resembling()) {
            let piecewise = in_pieces(&bytes, Greeting::parse, |answer| *answer == Ok(None));
            prop_assert_eq!(piecewise, Greeting::parse(&bytes));
        }

        #[test]
        fn no_bytes_make_it_wait_for_more_than_a_message(bytes in proptest::collection::vec(any::<u8>(), 262..300)) {
            prop_assert_ne!(Request::parse(&bytes), Ok(None));
            prop_assert_ne!(Greeting::parse(&bytes), Ok(None));
        }
    }
}
