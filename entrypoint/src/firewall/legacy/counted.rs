//! Reads what the rules counted out of a listing of iptables-save(8).

use super::{
    abilities::{Abilities, Ability},
    rules::{INGRESS, LEAVING, PACKET, QUIC},
};
use crate::firewall::Counters;

/// The counters in a listing of all tables that have some. None where one of them is not there.
pub(super) fn parse(listing: &str, abilities: &Abilities) -> Option<Counters> {
    let packets = |chain| listing.lines().find_map(|line| counted(line, chain));
    let leaving = if abilities.contains(&Ability::Leaving) {
        packets(LEAVING)?
    } else {
        0
    };
    Some(Counters {
        packets: packets(PACKET)?.saturating_add(leaving),
        quic: packets(QUIC)?,
        ingress: packets(INGRESS)?,
    })
}

/// The packets of the rule in `chain` that only counts: `[packets:bytes] -A chain`.
fn counted(line: &str, chain: &str) -> Option<u64> {
    let (counters, rule) = line.strip_prefix('[')?.split_once(']')?;
    let (packets, _) = counters.split_once(':')?;
    (rule.trim().strip_prefix("-A ")? == chain).then_some(packets.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "*filter\n:sandbox_packet - [0:0]\n\
        [5000000000:9] -A sandbox_packet\n[3:9] -A sandbox_packet -j NFLOG\n\
        [2:9] -A sandbox_quic\n[1:9] -A sandbox_ingress \nCOMMIT\n\
        *mangle\n[7:9] -A sandbox_leaving\nCOMMIT\n";

    #[test]
    fn only_rules_that_only_count_are_read_and_may_exceed_32_bits() {
        let all = Abilities::from(Ability::ALL);
        let expected = Counters {
            packets: 5_000_000_007,
            quic: 2,
            ingress: 1,
        };
        assert_eq!(parse(LISTING, &all), Some(expected));
    }

    #[test]
    fn a_rule_that_is_not_listed_is_no_zero() {
        let all = Abilities::from(Ability::ALL);
        for gone in ["[5000000000:9]", "[2:9]", "[1:9]", "[7:9]"] {
            assert_eq!(parse(&LISTING.replace(gone, "[x:9]"), &all), None, "{gone}");
        }
        assert_eq!(parse("", &all), None);
    }

    #[test]
    fn where_nothing_is_judged_as_it_leaves_nothing_is_expected_of_that() {
        let filter = LISTING.split("*mangle").next().unwrap();
        let counters = parse(filter, &Abilities::new()).unwrap();
        assert_eq!(counters.packets, 5_000_000_000);
    }
}
