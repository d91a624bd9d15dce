//! The rules as one table of nftables: loaded whole or not at all, and its counters read back.

mod by_address;
mod change;
mod flows;
mod incoming;
mod nft;
mod notices;
mod openings;
mod others;
mod outgoing;
mod ruleset;
mod terms;
mod transaction;

use std::{io, net::SocketAddr};

use ::nftables::schema::Nftables;
use policy::AddressRule;
use serde::Deserialize;

use self::{
    notices::{Notices, Seen},
    openings::Openings,
};
use super::{
    AddressPlan, Counters, Finding, LOAD, LOG_GROUP, LOG_SNAPLEN, LOG_THRESHOLD, Plan, opened::Kept,
};
use crate::failure::Failure;

/// The loaded table, watched.
pub(super) struct Table {
    openings: Openings,
    notices: Notices,
    /// The generation up to which every change is accounted for.
    known: u32,
    /// What the kernel counts and nobody has told of yet: the notice may be on its way.
    untold: Option<u32>,
    /// What was found while something else was being done.
    found: Finding,
}

impl Table {
    /// Loads a ruleset in one transaction, and returns that transaction as well.
    pub(super) fn load(ruleset: &Nftables<'static>) -> Result<(Self, String), Failure> {
        let transaction = apply(ruleset)?;
        let openings = Openings::connect().map_err(Failure::system("reach the firewall's sets"))?;
        let notices = Notices::listen().map_err(Failure::system(WATCH))?;
        let known = openings.generation().map_err(Failure::system(WATCH))?;
        let table = Self {
            openings,
            notices,
            known,
            untold: None,
            found: Finding::Nothing,
        };
        Ok((table, transaction))
    }

    /// Lets the guest dial these for so many seconds from now.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        self.openings.open(endpoints, seconds)
    }

    /// Has the table follow another list, in one transaction.
    pub(super) fn follow(&mut self, plan: &Plan, kept: &[Kept]) -> Result<(), Failure> {
        self.exchange(&plan.exchange(kept))
    }

    /// The same where addresses decide: what is `held` is open then.
    pub(super) fn follow_addresses(
        &mut self,
        before: &AddressPlan,
        plan: &AddressPlan,
        held: &[(AddressRule, u32)],
    ) -> Result<(), Failure> {
        self.exchange(&plan.exchange(before, held))
    }

    fn exchange(&mut self, exchange: &Nftables<'static>) -> Result<(), Failure> {
        let earlier = self.look().map_err(Failure::system(WATCH))?;
        let meanwhile = self.transact(exchange)?;
        self.found = match meanwhile {
            Finding::Nothing => earlier,
            Finding::Changed(_) | Finding::Overridden(_) => meanwhile,
        };
        Ok(())
    }

    /// Makes the table anew, whatever has become of it. Nothing is open in it.
    pub(super) fn reload(&mut self, ruleset: &Nftables<'static>) -> Result<(), Failure> {
        let earlier = self.look().map_err(Failure::system(WATCH))?;
        let meanwhile = self.transact(ruleset)?;
        // What was changed before is mended now. What was overridden is not.
        self.found = match earlier {
            Finding::Overridden(_) => earlier,
            Finding::Nothing | Finding::Changed(_) => meanwhile,
        };
        Ok(())
    }

    /// Opens again what was open before the table was made anew.
    pub(super) fn restore(&mut self, open: &[Kept]) -> io::Result<()> {
        self.openings.restore(open)
    }

    /// Whether there is something to be found by the next look, or the one after it.
    pub(super) fn has_news(&mut self) -> io::Result<bool> {
        self.found = self.look()?;
        Ok(self.found != Finding::Nothing || self.openings.generation()? != self.known)
    }

    /// Applies a transaction, and says what others changed while it was being applied: each
    /// transaction has the next number, whosoever it is.
    fn transact(&mut self, transaction: &Nftables<'static>) -> Result<Finding, Failure> {
        let before = self.openings.generation().map_err(Failure::system(WATCH))?;
        apply(transaction)?;
        // These are our own, even those for which the socket had no room.
        let own = self.openings.port();
        self.notices.now(own).map_err(Failure::system(WATCH))?;
        let after = self.openings.generation().map_err(Failure::system(WATCH))?;
        (self.known, self.untold) = (after, None);
        if after == following(before) {
            return Ok(Finding::Nothing);
        }
        Ok(Finding::Changed(MEANWHILE.to_owned()))
    }

    /// Waits for what others do to the rules.
    pub(super) async fn changed(&mut self) -> io::Result<Finding> {
        if self.found != Finding::Nothing {
            return Ok(std::mem::take(&mut self.found));
        }
        let seen = self.notices.next(self.openings.port()).await?;
        Ok(self.judge(seen))
    }

    /// Looks what others did to the rules until now.
    pub(super) fn look(&mut self) -> io::Result<Finding> {
        if self.found != Finding::Nothing {
            return Ok(std::mem::take(&mut self.found));
        }
        let seen = self.notices.now(self.openings.port())?;
        let finding = self.judge(seen);
        let generation = self.openings.generation()?;
        if finding != Finding::Nothing || generation == self.known {
            return Ok(finding);
        }
        // The kernel counts first and tells then. What is not told by the next look never was.
        if self.untold.replace(generation) == Some(generation) {
            self.known = generation;
            return Ok(Finding::Changed(UNSEEN.to_owned()));
        }
        Ok(Finding::Nothing)
    }

    fn judge(&mut self, seen: Seen) -> Finding {
        self.known = seen.generation.unwrap_or(self.known);
        if let Some((what, author)) = seen.outranked {
            return Finding::Overridden(format!("{author}, made {what}"));
        }
        match seen.changed {
            Some(author) => Finding::Changed(author.to_string()),
            None if seen.lost => Finding::Changed(UNSEEN.to_owned()),
            None => Finding::Nothing,
        }
    }

    /// The same of an address on a range of ports.
    pub(super) fn open_range(&mut self, opening: AddressRule, seconds: u32) -> io::Result<()> {
        self.openings.open_range(opening, seconds)
    }

    /// Opens all of these again, each for as long as it is held.
    pub(super) fn hold(&self, held: &[(AddressRule, u32)]) -> io::Result<()> {
        self.openings.hold(held)
    }

    /// What was counted since the table was loaded.
    pub(super) fn counters() -> Result<Counters, Failure> {
        let text = nft::run(&["-j", "list", "counters", "table", "inet", TABLE], "")?;
        parse_counters(&text)
            .map_err(|error| Failure::setup("read the counters", error, "use nft 1.0 or later"))
    }
}

/// Has nft apply a transaction, and returns its text.
fn apply(transaction: &Nftables<'static>) -> Result<String, Failure> {
    let text = serde_json::to_string(transaction)
        .map_err(|error| Failure::setup(LOAD, error, "report this as a defect"))?;
    nft::run(&["-j", "-f", "-"], &text)?;
    Ok(text)
}

/// The generation after this one; the kernel has no generation 0.
const fn following(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
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
/// `NFNL_SUBSYS_NFTABLES`
const NFTABLES: u16 = 10;
const WATCH: &str = "watch the firewall";
/// Who made a change at the same time as PID 1.
const MEANWHILE: &str = "somebody, while PID 1 changed them";
/// Who made changes of which not all notices arrived.
const UNSEEN: &str = "somebody, in more ways than could be seen";
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

    fn nft(command: &str) {
        nft::run(&[command], "").unwrap();
    }

    /// A table in a network of this thread's own.
    fn table() -> Table {
        let alone = ::nix::sched::unshare(::nix::sched::CloneFlags::CLONE_NEWNET);
        alone.expect("this test needs root");
        Table::load(&plan().ruleset()).unwrap().0
    }

    fn plan() -> Plan {
        crate::firewall::plan::tests::plan("example.com:22", &[])
    }

    #[tokio::test]
    async fn another_list_is_a_change_of_our_own() {
        let mut table = table();
        table.follow(&plan(), &[]).unwrap();
        table.follow(&plan(), &[]).unwrap();
        for _ in 0..3 {
            assert_eq!(table.look().unwrap(), Finding::Nothing);
        }
    }

    #[tokio::test]
    async fn changes_of_which_no_notice_arrived_are_found_by_their_number() {
        let mut table = table();
        nft("add table ip x");
        table.notices = Notices::listen().unwrap();
        assert_eq!(table.look().unwrap(), Finding::Nothing, "it may be late");
        assert_eq!(table.look().unwrap(), Finding::Changed(UNSEEN.to_owned()));
        assert_eq!(table.look().unwrap(), Finding::Nothing, "once");
    }

    #[tokio::test]
    async fn what_overrides_the_rules_is_found_and_not_forgotten_when_they_are_loaded_again() {
        let mut table = table();
        nft("add table ip x; add chain ip x y { type nat hook output priority -150; }");
        table.reload(&plan().ruleset()).unwrap();
        let found = table.changed().await.unwrap();
        assert!(matches!(found, Finding::Overridden(_)), "{found:?}");
    }

    #[tokio::test]
    async fn what_was_undone_since_it_was_loaded_again_is_news_and_its_loading_is_none() {
        let mut table = table();
        table.reload(&plan().ruleset()).unwrap();
        assert!(!table.has_news().unwrap());
        nft("flush ruleset");
        assert!(Table::counters().is_err());
        assert!(table.has_news().unwrap());
        assert!(table.has_news().unwrap(), "until it is found");
        let found = table.changed().await.unwrap();
        assert!(matches!(found, Finding::Changed(_)), "{found:?}");
        assert!(!table.has_news().unwrap());
    }

    #[test]
    fn there_is_no_generation_0() {
        assert_eq!((following(1), following(u32::MAX)), (2, 1));
    }
}
