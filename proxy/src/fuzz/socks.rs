//! What a SOCKS client says.

use std::{fmt::Debug, net::IpAddr};

use crate::socks::{Address, Command, Greeting, Request, SocksError, VERSION};

type Read<T> = Result<Option<(T, usize)>, SocksError>;

/// However a message is cut on its way it is the same message, of bounded length; and a request
/// written anew asks for the same.
///
/// # Panics
/// Where it does not hold.
pub fn socks(bytes: &[u8]) {
    grown(bytes, Greeting::parse);
    grown(bytes, Request::parse);
    if let Ok(Some((greeting, length))) = Greeting::parse(bytes) {
        let methods = bytes.get(2..length).unwrap_or_default();
        assert_eq!(greeting.anonymous, methods.contains(&0));
    }
    if let Ok(Some((request, length))) = Request::parse(bytes) {
        let written = written(&request);
        // A command that is none of SOCKS stays as it came, like every other byte.
        assert_eq!(bytes.get(..length), Some(&written[..]), "{request:?}");
    }
}

/// Read at every length, the answer is the same once there is one.
fn grown<T: PartialEq + Debug>(bytes: &[u8], parse: impl Fn(&[u8]) -> Read<T>) {
    let whole = parse(bytes);
    for end in 0..=bytes.len().min(LONGEST) {
        let early = parse(bytes.get(..end).unwrap_or(bytes));
        match &early {
            Ok(None) => {}
            Ok(Some((_, length))) => {
                assert!(
                    *length <= end && early == whole,
                    "{early:?} at {end}, then {whole:?}"
                );
            }
            // Which of two mistakes is told depends on which was seen first.
            Err(_) => assert!(whole.is_err(), "{early:?} at {end}, then {whole:?}"),
        }
    }
    assert!(
        whole != Ok(None) || bytes.len() < LONGEST,
        "{} bytes, and no end",
        bytes.len()
    );
}

fn written(request: &Request) -> Vec<u8> {
    let command = match request.command {
        Command::Connect => 1,
        Command::Bind => 2,
        Command::UdpAssociate => 3,
        Command::Unknown(other) => other,
    };
    let mut bytes = vec![VERSION, command, 0];
    match &request.address {
        Address::Ip(IpAddr::V4(address)) => bytes.extend([&[1][..], &address.octets()].concat()),
        Address::Ip(IpAddr::V6(address)) => bytes.extend([&[4][..], &address.octets()].concat()),
        Address::Domain(name) => {
            bytes.extend([3, u8::try_from(name.len()).unwrap_or_default()]);
            bytes.extend(name);
        }
    }
    bytes.extend(request.port.to_be_bytes());
    bytes
}

/// The longest message: a request with a domain of 255 bytes.
const LONGEST: usize = 4 + 1 + 255 + 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_request_for_anything_means_the_same_however_it_comes(
            command: u8,
            address in prop_oneof![
                any::<[u8; 4]>().prop_map(|octets| [&[1][..], &octets].concat()),
                any::<[u8; 16]>().prop_map(|octets| [&[4][..], &octets].concat()),
                proptest::collection::vec(any::<u8>(), 0..=255)
                    .prop_map(|name| [&[3, u8::try_from(name.len()).unwrap()][..], &name].concat()),
                any::<u8>().prop_map(|kind| vec![kind]),
            ],
            port: u16,
            after in proptest::collection::vec(any::<u8>(), 0..5),
        ) {
            socks(&[&[VERSION, command, 0][..], &address, &port.to_be_bytes(), &after].concat());
        }

        #[test]
        fn any_bytes_are_a_message_or_are_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            socks(&bytes);
            socks(&[&[VERSION][..], &bytes].concat());
            socks(&[&[VERSION, 1, 0, 3][..], &bytes].concat());
        }
    }
}
