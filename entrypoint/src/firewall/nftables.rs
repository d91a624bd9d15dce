//! The rules as one table of nftables: loaded whole or not at all, watched, and its counters read.

mod by_address;
mod change;
mod filling;
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
mod wire;

use std::{io, net::SocketAddr};

use ::nftables::schema::Nftables;
use policy::AddressRule;
use sha2::{Digest as _, Sha256};

use self::{
    change::Standing,
    filling::Filling,
    notices::{Notices, Seen},
    openings::Openings,
    transaction::{Ruleset, Transaction},
    wire::Wire,
};
use super::{
    AddressPlan, Counters, Finding, LOAD, LOG_GROUP, LOG_SNAPLEN, LOG_THRESHOLD, Plan, opened::Kept,
};
use crate::failure::Failure;

/// The loaded table, watched.
pub(super) struct Table {
    wire: Wire,
    openings: Openings,
    notices: Notices,
    /// The generation up to which every change is accounted for.
    known: u32,
    /// What the kernel counts and nobody has told of yet: the notice may be on its way.
    untold: Option<u32>,
    /// What was found while something else was being done.
    found: Finding,
    standing: Standing,
}

impl Table {
    /// Loads a ruleset, and returns what it is known by as well. The rules are loaded in one
    /// transaction; large sets are filled after it, from empty.
    pub(super) fn load(ruleset: &Ruleset) -> Result<(Self, Sha256), Failure> {
        let transaction = apply(&ruleset.rules)?;
        let wire = Wire::connect().map_err(Failure::system("reach the firewall"))?;
        let mut digest = Sha256::new_with_prefix(transaction);
        for filling in &ruleset.fillings {
            filling.digest(&mut digest);
            filling.put(&wire).map_err(Failure::system(FILL))?;
        }
        let notices = Notices::listen().map_err(Failure::system(WATCH))?;
        let known = wire.generation().map_err(Failure::system(WATCH))?;
        let table = Self {
            wire,
            openings: Openings::default(),
            notices,
            known,
            untold: None,
            found: Finding::Nothing,
            standing: Standing::loaded(&ruleset.fillings),
        };
        Ok((table, digest))
    }

    /// Lets the guest dial these for so many seconds from now.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        self.openings.open(&self.wire, endpoints, seconds)
    }

    /// Has the table follow another list, in one transaction: sets that are too large for it are
    /// there before, and no rule looks into them.
    pub(super) fn follow(&mut self, plan: &Plan, kept: &[Kept]) -> Result<(), Failure> {
        self.standing.turn += 1;
        self.exchange(&plan.exchange(kept, &self.standing))?;
        self.openings.become_those(kept);
        Ok(())
    }

    /// The same where addresses decide: what is `held` is open then.
    pub(super) fn follow_addresses(
        &mut self,
        before: &AddressPlan,
        plan: &AddressPlan,
        held: &[(AddressRule, u32)],
    ) -> Result<(), Failure> {
        self.standing.turn += 1;
        self.exchange(&plan.exchange(before, held, &self.standing))?;
        self.openings.become_held(held);
        Ok(())
    }

    fn exchange(&mut self, next: &Ruleset) -> Result<(), Failure> {
        let earlier = self.look().map_err(Failure::system(WATCH))?;
        let exchanged = self.prepare(next).and_then(|before| {
            let meanwhile = self.transact(&next.rules)?;
            Ok(before.or(meanwhile))
        });
        let meanwhile = exchanged.inspect_err(|_| self.clear_away(&next.fillings))?;
        self.standing.succeed(&next.fillings);
        self.found = meanwhile.or(earlier);
        Ok(())
    }

    /// Makes the table anew, whatever has become of it. Nothing is open in it.
    pub(super) fn reload(&mut self, ruleset: &Ruleset) -> Result<(), Failure> {
        let earlier = self.look().map_err(Failure::system(WATCH))?;
        let meanwhile = self.transact(&ruleset.rules)?;
        self.standing = Standing::loaded(&ruleset.fillings);
        let meanwhile = meanwhile.or(self.fill(&ruleset.fillings)?);
        // What was changed before is mended now. What was overridden is not.
        self.found = match earlier {
            Finding::Overridden(_) => earlier,
            Finding::Nothing | Finding::Unseen | Finding::Changed(_) => meanwhile,
        };
        Ok(())
    }

    /// Opens again what was open before the table was made anew.
    pub(super) fn restore(&mut self, open: &[Kept]) -> io::Result<()> {
        self.openings.restore(&self.wire, open)
    }

    /// Whether there is something to be found by the next look, or the one after it.
    pub(super) fn has_news(&mut self) -> io::Result<bool> {
        self.found = self.look()?;
        Ok(self.found != Finding::Nothing || self.wire.generation()? != self.known)
    }

    /// Makes and fills the sets that the rules of `next` look into.
    fn prepare(&mut self, next: &Ruleset) -> Result<Finding, Failure> {
        let Some(ahead) = next.ahead.as_ref().filter(|_| !next.fillings.is_empty()) else {
            return Ok(Finding::Nothing);
        };
        let made = self.transact(ahead)?;
        Ok(made.or(self.fill(&next.fillings)?))
    }

    /// Takes away sets that no rule came to look into. What is left of them does no harm.
    fn clear_away(&mut self, fillings: &[Filling]) {
        for name in change::names(fillings) {
            let mut rules = Transaction::onto_what_is_loaded(self.standing.turn);
            rules.drop_sets(&[name]);
            let _ = self.transact(&rules.into_ruleset().rules);
        }
    }

    fn fill(&mut self, fillings: &[Filling]) -> Result<Finding, Failure> {
        if fillings.is_empty() {
            return Ok(Finding::Nothing);
        }
        let count = fillings.iter().map(Filling::transactions).sum();
        self.alone(count, |wire| {
            let mut fillings = fillings.iter();
            fillings
                .try_for_each(|filling| filling.put(wire))
                .map_err(Failure::system(FILL))
        })
    }

    fn transact(&mut self, transaction: &Nftables<'static>) -> Result<Finding, Failure> {
        self.alone(1, |_| apply(transaction).map(drop))
    }

    /// Applies so many transactions, and says what others changed while they were being applied:
    /// each transaction has the next number, whosoever it is.
    fn alone(
        &mut self,
        count: usize,
        work: impl FnOnce(&Wire) -> Result<(), Failure>,
    ) -> Result<Finding, Failure> {
        let before = self.wire.generation().map_err(Failure::system(WATCH))?;
        work(&self.wire)?;
        // These are our own, even those for which the socket had no room.
        let own = self.wire.port();
        self.notices.now(own).map_err(Failure::system(WATCH))?;
        let after = self.wire.generation().map_err(Failure::system(WATCH))?;
        (self.known, self.untold) = (after, None);
        if after == (0..count).fold(before, |generation, _| following(generation)) {
            return Ok(Finding::Nothing);
        }
        Ok(Finding::Changed(MEANWHILE.to_owned()))
    }

    /// Waits for what others do to the rules.
    pub(super) async fn changed(&mut self) -> io::Result<Finding> {
        if self.found != Finding::Nothing {
            return Ok(std::mem::take(&mut self.found));
        }
        let seen = self.notices.next(self.wire.port()).await?;
        Ok(self.judge(seen))
    }

    /// Looks what others did to the rules until now.
    pub(super) fn look(&mut self) -> io::Result<Finding> {
        if self.found != Finding::Nothing {
            return Ok(std::mem::take(&mut self.found));
        }
        let seen = self.notices.now(self.wire.port())?;
        let finding = self.judge(seen);
        let generation = self.wire.generation()?;
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
        self.openings.open_range(&self.wire, opening, seconds)
    }

    /// Opens all of these again, each for as long as it is held.
    pub(super) fn hold(&mut self, held: &[(AddressRule, u32)]) -> io::Result<()> {
        self.openings.hold(&self.wire, held)
    }

    /// What was counted since the table was loaded.
    pub(super) fn counters(&self) -> Result<Counters, Failure> {
        self.wire
            .counters()
            .map_err(Failure::system("read the counters"))
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

const TABLE: &str = "sandbox_egress";
/// `NFNL_SUBSYS_NFTABLES`
const NFTABLES: u16 = 10;
const WATCH: &str = "watch the firewall";
const FILL: &str = "fill the firewall's sets";
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

    /// A list with so many addresses that a set of their own is made for them.
    fn long_list(at: u8) -> Plan {
        let host = |n: u32| format!("45.{at}.{}.{}:9", n / 100, 2 * (n % 100));
        let entries: Vec<_> = (0..5000)
            .map(host)
            .chain(["46.0.0.0/31:9".to_owned()])
            .collect();
        let ranges = (0..300).map(|n| format!("47.{at}.{n}.0/25:9", n = n % 256));
        let list = [entries, ranges.collect()].concat().join(",");
        crate::firewall::plan::tests::plan(&list, &[])
    }

    fn listed() -> String {
        nft::run(&["list table inet sandbox_egress"], "").unwrap()
    }

    #[tokio::test]
    async fn a_long_list_is_filled_in_and_followed_and_loaded_again_and_none_is_anybody_else_s_doing()
     {
        let mut first = table();
        let (first_list, next_list) = (long_list(1), long_list(2));
        let check = |table: &mut Table, at: u8, other: u8| {
            for _ in 0..3 {
                assert_eq!(table.look().unwrap(), Finding::Nothing);
            }
            let listing = listed();
            assert!(listing.contains(&format!("45.{at}.49.198")), "{at}");
            assert!(listing.contains(&format!("47.{at}.255.0/25")), "{at}");
            assert!(!listing.contains(&format!("45.{other}.")), "{other}");
            assert_eq!(listing.matches("set large").count(), 2, "{at}");
            assert_eq!(listing.matches("@large").count(), 2, "{at}");
        };
        first.follow(&first_list, &[]).unwrap();
        check(&mut first, 1, 2);
        first.follow(&next_list, &[]).unwrap();
        check(&mut first, 2, 1);
        first.reload(&first_list.ruleset()).unwrap();
        check(&mut first, 1, 2);
        first.follow(&next_list, &[]).unwrap();
        check(&mut first, 2, 1);
        first.follow(&plan(), &[]).unwrap();
        assert!(!listed().contains("large"), "{}", listed());
    }

    #[tokio::test]
    async fn a_long_list_that_cannot_be_followed_changes_nothing_and_leaves_nothing() {
        let (mut table, _) = {
            let _ = table();
            Table::load(&long_list(1).ruleset()).unwrap()
        };
        let before = listed();
        // The name that is to be deleted is not there.
        table.standing.large.push("nobody".to_owned());
        assert!(table.follow(&long_list(2), &[]).is_err());
        assert_eq!(listed(), before);
    }

    #[test]
    fn a_long_list_is_known_by_each_of_its_addresses() {
        let digest = |plan: &Plan| {
            let _ = ::nix::sched::unshare(::nix::sched::CloneFlags::CLONE_NEWNET);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let _entered = runtime.as_ref().unwrap().enter();
            Table::load(&plan.ruleset()).unwrap().1.finalize()
        };
        assert_eq!(digest(&long_list(1)), digest(&long_list(1)));
        assert_ne!(digest(&long_list(1)), digest(&long_list(2)));
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
        assert!(table.counters().is_err());
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
