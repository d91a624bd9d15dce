//! The rules as one table of nftables: loaded whole or not at all, and its counters read back.

mod change;
mod incoming;
mod nft;
mod openings;
mod ruleset;
mod terms;
mod transaction;

use std::{io, net::SocketAddr};

use serde::Deserialize;

use self::openings::Openings;
use super::{Counters, LOAD, LOG_GROUP, LOG_SNAPLEN, LOG_THRESHOLD, Plan, opened::Kept};
use crate::failure::Failure;

/// The loaded table.
pub(super) struct Table {
    openings: Openings,
}

impl Table {
    /// Loads the rules of `plan` in one transaction, and returns that transaction as well.
    pub(super) fn load(plan: &Plan) -> Result<(Self, String), Failure> {
        let text = serde_json::to_string(&plan.ruleset())
            .map_err(|error| Failure::setup(LOAD, error, "report this as a defect"))?;
        nft::run(&["-j", "-f", "-"], &text)?;
        let openings = Openings::connect().map_err(Failure::system("reach the firewall's sets"))?;
        Ok((Self { openings }, text))
    }

    /// Lets the guest dial these for so many seconds from now.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        self.openings.open(endpoints, seconds)
    }

    /// Has the table follow another list, in one transaction.
    pub(super) fn follow(plan: &Plan, kept: &[Kept]) -> Result<(), Failure> {
        let text = serde_json::to_string(&plan.exchange(kept))
            .map_err(|error| Failure::setup(LOAD, error, "report this as a defect"))?;
        nft::run(&["-j", "-f", "-"], &text).map(drop)
    }

    /// What was counted since the table was loaded.
    pub(super) fn counters() -> Result<Counters, Failure> {
        let text = nft::run(&["-j", "list", "counters", "table", "inet", TABLE], "")?;
        parse_counters(&text)
            .map_err(|error| Failure::setup("read the counters", error, "use nft 1.0 or later"))
    }
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
}
