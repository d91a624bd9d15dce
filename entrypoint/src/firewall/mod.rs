//! The ruleset in the kernel: loaded whole or not at all, and its counters read back.
//!
//! Whatever PID 1 changes of it goes through [`Firewall`]: what does not is somebody else's doing.

mod incoming;
mod nft;
mod openings;
mod ruleset;
mod terms;
mod transaction;

use std::{io, net::SocketAddr};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use self::openings::Openings;
pub(crate) use self::ruleset::Plan;
use crate::failure::Failure;

/// NFLOG group of the refused packets, in the container's own network namespace.
pub(crate) const LOG_GROUP: u16 = 4100;
/// Enough of a packet for its addresses and ports, IPv6 extension headers included.
const LOG_SNAPLEN: u32 = 128;
/// Packets that the kernel gathers before it wakes PID 1.
const LOG_THRESHOLD: u32 = 64;

/// A loaded ruleset. Nothing runs in the container before there is one.
pub(crate) struct Firewall {
    digest: String,
    openings: Openings,
    counters_before: Counters,
}

/// The named counters, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Refused on their way out.
    pub(crate) packets: u64,
    /// Of UDP 443.
    pub(crate) quic: u64,
    /// Refused on their way in.
    pub(crate) ingress: u64,
}

impl Firewall {
    /// Loads the ruleset of `plan` in one transaction.
    pub(crate) fn load(plan: &Plan) -> Result<Self, Failure> {
        let text = serde_json::to_string(&plan.ruleset())
            .map_err(|error| Failure::setup(nft::LOAD, error, "report this as a defect"))?;
        nft::run(&["-j", "-f", "-"], &text)?;
        let digest = hex(&Sha256::digest(&text));
        let openings = Openings::connect().map_err(Failure::system("reach the firewall's sets"))?;
        Ok(Self {
            digest,
            openings,
            counters_before: Counters::default(),
        })
    }

    /// Lets the guest dial these for so many seconds from now, also those that it could dial
    /// already. All of them, or an error.
    pub(crate) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        self.openings.open(endpoints, seconds)
    }

    /// SHA-256 of the transaction, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// What was counted since the ruleset was loaded, less what was set aside.
    pub(crate) fn counters(&self) -> Result<Counters, Failure> {
        let now = read_counters()?;
        let before = self.counters_before;
        Ok(Counters {
            packets: now.packets.saturating_sub(before.packets),
            quic: now.quic.saturating_sub(before.quic),
            ingress: now.ingress.saturating_sub(before.ingress),
        })
    }

    /// Leaves these out of the account: they are the self-test's.
    pub(crate) fn set_aside(&mut self, counted: Counters) {
        self.counters_before = counted;
    }
}

fn read_counters() -> Result<Counters, Failure> {
    let text = nft::run(&["-j", "list", "counters", "table", "inet", TABLE], "")?;
    parse_counters(&text)
        .map_err(|error| Failure::setup("read the counters", error, "use nft 1.0 or later"))
}

/// The crate's own type holds 32 bits, which a flood passes in hours.
fn parse_counters(text: &str) -> Result<Counters, serde_json::Error> {
    let listing: Listing = serde_json::from_str(text)?;
    let packets = |name| {
        let counters = listing
            .nftables
            .iter()
            .filter_map(|object| object.counter.as_ref());
        counters
            .filter(|counter| counter.name == name)
            .map(|counter| counter.packets)
            .sum()
    };
    Ok(Counters {
        packets: packets(DENIED_PACKETS),
        quic: packets(DENIED_QUIC),
        ingress: packets(DENIED_INGRESS),
    })
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    counter: Option<ListedCounter>,
}

#[derive(Deserialize)]
struct ListedCounter {
    name: String,
    packets: u64,
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

const TABLE: &str = "sandbox_egress";
const DENIED_PACKETS: &str = "denied_packets";
const DENIED_QUIC: &str = "denied_quic";
const DENIED_INGRESS: &str = "denied_ingress";
const LINK_CONTROL: &str = "link_control";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_may_exceed_32_bits() {
        let text = r#"{"nftables":[{"metainfo":{"version":"1.0.6"}},
            {"counter":{"family":"inet","name":"denied_packets","table":"sandbox_egress","handle":1,
                "packets":5000000000,"bytes":9}},
            {"counter":{"family":"inet","name":"denied_quic","table":"sandbox_egress","handle":2,
                "packets":2,"bytes":9}}]}"#;
        let counters = parse_counters(text).unwrap();
        assert_eq!(
            counters,
            Counters {
                packets: 5_000_000_000,
                quic: 2,
                ingress: 0
            }
        );
    }

    #[test]
    fn counters_that_are_not_listed_are_nothing_yet() {
        assert_eq!(
            parse_counters(r#"{"nftables":[]}"#).unwrap(),
            Counters::default()
        );
    }

    #[test]
    fn a_listing_that_is_none_is_an_error_and_not_nothing() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"nftables":[{"counter":{"name":"denied_quic"}}]}"#,
        ] {
            assert!(parse_counters(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_digest_is_lower_case_hexadecimal_of_full_length() {
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }
}
