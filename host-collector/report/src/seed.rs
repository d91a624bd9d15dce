//! A secret order of everything: the same for all who know a run's secret, and for nobody else.
//!
//! Who takes the things that come first in that order takes a fair sample of them, wherever and
//! whenever they occur, and two who do so apart take the same. A guest cannot know which of its
//! names come first, so it cannot choose what is told of them.

use std::{fmt, net::IpAddr};

use policy::DenyReason;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Denied, Target, Transport};

/// The secret of one run, from a source of randomness that the guest cannot know. On the wire it is
/// 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Seed(pub [u8; 16]);

/// What is no seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a seed has 32 hexadecimal digits")]
pub struct SeedError;

impl Seed {
    /// The place of a thing in the order.
    ///
    /// Two things with one place would be taken for one: one run in 10^13, and nobody who does not
    /// know the secret can look for them.
    pub fn place(&self, thing: &impl Placed) -> u64 {
        let mut order = Order(Sha256::new_with_prefix(self.0));
        thing.write(&mut order);
        let digest: [u8; 32] = order.0.finalize().into();
        digest
            .first_chunk()
            .map_or(0, |first| u64::from_be_bytes(*first))
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(…)")
    }
}

impl From<Seed> for String {
    fn from(seed: Seed) -> Self {
        format!("{:032x}", u128::from_be_bytes(seed.0))
    }
}

impl TryFrom<String> for Seed {
    type Error = SeedError;

    fn try_from(text: String) -> Result<Self, SeedError> {
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(SeedError);
        }
        let number = u128::from_str_radix(&text, 16).map_err(|_| SeedError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// What has a place in the order: the same in every process and every version, so that it is written
/// out here, and not as a compiler or a library happens to hash it.
pub trait Placed {
    /// Writes what tells it from others.
    fn write(&self, order: &mut Order);
}

/// Where a thing is written to find its place.
#[derive(Debug)]
pub struct Order(Sha256);

impl Order {
    /// A number.
    pub fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    /// Bytes, so that where they end is told from what follows.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }
}

impl Placed for Target {
    fn write(&self, order: &mut Order) {
        match &self.host {
            Some(host) => {
                order.number(1);
                order.bytes(host.as_str().as_bytes());
            }
            None => order.number(0),
        }
        match self.address {
            Some(IpAddr::V4(address)) => order.bytes(&address.octets()),
            Some(IpAddr::V6(address)) => order.bytes(&address.octets()),
            None => order.bytes(&[]),
        }
        order.number(self.port.map_or(0, |port| u64::from(port) + 1));
    }
}

/// What makes refused attempts the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub(crate) target: &'a Target,
    pub(crate) proto: Transport,
    pub(crate) reason: &'a str,
}

impl Placed for Kind<'_> {
    fn write(&self, order: &mut Order) {
        self.target.write(order);
        order.bytes(self.proto.as_str().as_bytes());
        order.bytes(self.reason.as_bytes());
    }
}

impl Placed for Denied<DenyReason> {
    fn write(&self, order: &mut Order) {
        let kind = Kind {
            target: &self.target,
            proto: self.proto,
            reason: self.reason.as_str(),
        };
        kind.write(order);
    }
}

#[cfg(test)]
impl Placed for u32 {
    fn write(&self, order: &mut Order) {
        order.number((*self).into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{Body, Message, Printable, RefusedKey, Report};

    const SEED: Seed = Seed(*b"0123456789abcdef");

    fn target(host: Option<&str>, address: Option<&str>, port: Option<u16>) -> Target {
        Target {
            host: host.map(Printable::new),
            address: address.map(|address| address.parse().unwrap()),
            port,
        }
    }

    #[test]
    fn a_seed_reads_back_as_it_was_written_and_nothing_else_is_one() {
        let seed = Seed([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        let text = serde_json::to_string(&seed).unwrap();
        assert_eq!(text, "\"000102030405060708090a0b0c0d0eff\"");
        assert_eq!(serde_json::from_str::<Seed>(&text).unwrap(), seed);
        for other in [
            "",
            "0",
            "000102030405060708090A0B0C0D0EFF",
            "+00102030405060708090a0b0c0d0eff",
            "000102030405060708090a0b0c0d0eff0",
        ] {
            assert_eq!(Seed::try_from(other.to_owned()), Err(SeedError), "{other}");
        }
    }

    #[test]
    fn a_seed_is_not_printed() {
        assert_eq!(format!("{SEED:?}"), "Seed(…)");
    }

    #[test]
    fn what_differs_in_anything_has_another_place() {
        let targets = [
            target(None, None, None),
            target(Some(""), None, None),
            target(Some("a"), None, None),
            target(Some("a"), None, Some(0)),
            target(Some("a"), None, Some(1)),
            target(Some("a"), Some("192.0.2.1"), Some(1)),
            target(None, Some("192.0.2.1"), None),
            target(None, Some("::ffff:192.0.2.1"), None),
        ];
        let mut places = BTreeSet::new();
        for target in &targets {
            for proto in [Transport::Tcp, Transport::Udp] {
                for reason in ["not_allowed", "quic"] {
                    let kind = Kind {
                        target,
                        proto,
                        reason,
                    };
                    places.insert(SEED.place(&kind));
                }
            }
        }
        assert_eq!(places.len(), targets.len() * 4);
        assert_ne!(SEED.place(&1), Seed([0; 16]).place(&1));
    }

    /// A container and a collector of two versions must agree: what changes this is another protocol.
    #[test]
    fn the_place_of_a_name_stays_what_it_is() {
        let denied = denied("a.example");
        assert_eq!(SEED.place(&denied), 11_770_715_012_990_190_854);
    }

    fn denied(host: &str) -> Denied {
        Denied {
            target: target(Some(host), None, Some(443)),
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 1,
            first: 0,
            last: 0,
            uid: None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_a_name_is_made_of_the_collector_finds_its_place_too(host in "\\PC{0,300}|[\\x00-\\x1f\\u{202e}\\\\u{}]{0,40}") {
            let denied = denied(&host);
            let message = Message { body: Body::Denied(denied.clone()), seq: 1, t: 1 };
            let line = serde_json::to_vec(&message).unwrap();
            // Once over the link, once over the channel, and once more out of the journal.
            let report = Report::read(&line).unwrap();
            let again = Report::read(report.journal_line().trim_end().as_bytes()).unwrap();
            let Body::Denied(read) = again.message.body else { panic!("{line:?}") };
            prop_assert_eq!(SEED.place(&RefusedKey::from(&read)), SEED.place(&denied));
        }
    }
}
