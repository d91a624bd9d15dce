//! Another list under rules that stand: what depends on the list is exchanged in one transaction, and
//! everything else, what was counted so far included, is left alone.

use nftables::schema::Nftables;
use policy::AddressRule;

use super::{
    openings::{self, SETS},
    ruleset::LIFTED,
    transaction::{RANGES, STREAMS, Transaction},
};
use crate::firewall::{
    opened::Kept,
    plan::{AddressPlan, Plan},
};

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

impl AddressPlan {
    /// The same where addresses decide: what is `held` is open, and nothing else of what was.
    pub(super) fn exchange(&self, before: &Self, held: &[(AddressRule, u32)]) -> Nftables<'static> {
        let mut rules = Transaction::onto_what_is_loaded();
        rules.flush_chain(RANGES);
        for set in [LIFTED, SETS] {
            rules.flush_sets(set);
        }
        for ports in before.wide() {
            let set = openings::wide_set(*ports);
            if self.ports.contains(ports) {
                rules.flush_sets(&set);
            } else {
                rules.delete_sets(&set);
            }
        }
        for ports in self.wide().filter(|ports| !before.ports.contains(ports)) {
            rules.addresses(&openings::wide_set(*ports));
        }
        rules.fill(LIFTED, &self.lifted);
        rules.hold(held);
        self.judge_listed(&mut rules);
        rules.into_nftables()
    }
}
