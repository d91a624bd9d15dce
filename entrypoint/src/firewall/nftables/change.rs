//! Another list under rules that stand: what depends on the list is exchanged in one transaction, and
//! everything else, what was counted so far included, is left alone.

use policy::AddressRule;

use super::{
    filling::Filling,
    openings::{self, SETS},
    ruleset::LIFTED,
    transaction::{RANGES, Ruleset, STREAMS, Transaction},
};
use crate::firewall::{
    opened::Kept,
    plan::{AddressPlan, Plan, guarded_of},
};

/// What of a list stands in the table, and the next takes the place of.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// How often a list took the place of another, or tried to. No name of a set is used twice, or
    /// what was left of a failure could be in it.
    pub(super) turn: u32,
    /// The sets that are too large for nft.
    pub(super) large: Vec<String>,
}

impl Standing {
    /// A table that was loaded with these.
    pub(super) fn loaded(fillings: &[Filling]) -> Self {
        let large = names(fillings);
        Self { turn: 0, large }
    }

    /// The list that these are for stands now.
    pub(super) fn succeed(&mut self, fillings: &[Filling]) {
        self.large = names(fillings);
    }
}

pub(super) fn names(fillings: &[Filling]) -> Vec<String> {
    let names = fillings.iter().map(Filling::set);
    names.map(str::to_owned).collect()
}

impl Plan {
    /// Puts what this plan has of its list in the place of what is loaded. Of the addresses that the
    /// guest was let dial, those in `kept` stay, each for as long as it had.
    pub(super) fn exchange(&self, kept: &[Kept], standing: &Standing) -> Ruleset {
        let mut rules = Transaction::onto_what_is_loaded(standing.turn);
        for chain in [STREAMS, RANGES] {
            rules.flush_chain(chain);
        }
        for set in [LIFTED, SETS] {
            rules.flush_sets(set);
        }
        rules.fill(LIFTED, &self.lifted_and_guarded());
        rules.reopen(SETS, kept);
        self.redirect_streams(&mut rules);
        self.accept_ranges(&mut rules);
        rules.drop_sets(&standing.large);
        rules.into_ruleset()
    }
}

impl AddressPlan {
    /// The same where addresses decide: what is `held` is open, and nothing else of what was.
    pub(super) fn exchange(
        &self,
        before: &Self,
        held: &[(AddressRule, u32)],
        standing: &Standing,
    ) -> Ruleset {
        let mut rules = Transaction::onto_what_is_loaded(standing.turn);
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
        rules.fill(LIFTED, &guarded_of(&self.lifted, &self.guarded));
        rules.hold(held);
        self.judge_listed(&mut rules);
        rules.drop_sets(&standing.large);
        rules.into_ruleset()
    }
}
