//! Another list under rules that stand: what depends on the list is exchanged in one transaction, and
//! everything else, what was counted so far included, is left alone.

use nftables::schema::Nftables;

use super::{
    openings::SETS,
    ruleset::LIFTED,
    transaction::{RANGES, STREAMS, Transaction},
};
use crate::firewall::{opened::Kept, plan::Plan};

impl Plan {
    /// Puts what this plan has of its list in the place of what is loaded. Of the addresses that the
    /// guest was let dial, those in `kept` stay, each for as long as it had.
    pub(super) fn exchange(&self, kept: &[Kept]) -> Nftables<'static> {
        let mut rules = Transaction::onto_what_is_loaded();
        for chain in [STREAMS, RANGES] {
            rules.flush_chain(chain);
        }
        for set in [LIFTED, SETS] {
            rules.flush_sets(set);
        }
        rules.fill(LIFTED, &self.lifted);
        rules.reopen(SETS, kept);
        self.redirect_streams(&mut rules);
        self.accept_ranges(&mut rules);
        rules.into_nftables()
    }
}
