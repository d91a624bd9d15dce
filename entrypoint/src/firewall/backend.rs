//! Where the rules are. All backends have the same effect, or say what they lack: what differs
//! between them is here, and nothing of it above.

use std::{io, net::SocketAddr};

use policy::AddressRule;

use super::{
    Counters, Finding,
    legacy::Tables,
    nftables::Table,
    opened::Kept,
    plan::{AddressPlan, Plan},
};
use crate::failure::Failure;

/// The rules that are in force.
pub(super) enum Backend {
    Nftables(Table),
    Legacy(Tables),
}

/// What the rules were made of.
pub(super) enum Loaded {
    ByName(Plan),
    ByAddress(AddressPlan),
}

impl Backend {
    /// What the report calls it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Nftables(_) => "nftables",
            Self::Legacy(_) => "iptables-legacy",
        }
    }

    /// What it lacks, one sentence each.
    pub(super) fn degradations(&self) -> Vec<&'static str> {
        match self {
            Self::Nftables(_) => Vec::new(),
            Self::Legacy(tables) => tables.degradations(),
        }
    }

    /// Whether refused packets are handed over on [`super::LOG_GROUP`].
    pub(super) fn logs(&self) -> bool {
        match self {
            Self::Nftables(_) => true,
            Self::Legacy(tables) => tables.logs(),
        }
    }

    /// Whether refused packets are counted.
    pub(super) fn counts(&self) -> bool {
        match self {
            Self::Nftables(_) => true,
            Self::Legacy(tables) => tables.counts(),
        }
    }

    /// Lets the guest dial these for so many seconds from now.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        match self {
            Self::Nftables(table) => table.open(endpoints, seconds),
            Self::Legacy(tables) => tables.open(endpoints, seconds),
        }
    }

    /// The same of an address on a range of ports.
    pub(super) fn open_range(&mut self, opening: AddressRule, seconds: u32) -> io::Result<()> {
        match self {
            Self::Nftables(table) => table.open_range(opening, seconds),
            // What addresses decide by is never loaded there.
            Self::Legacy(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Has the rules follow another list.
    pub(super) fn follow(&mut self, plan: &Plan, kept: &[Kept]) -> Result<(), Failure> {
        match self {
            Self::Nftables(table) => table.follow(plan, kept),
            Self::Legacy(tables) => tables.follow(plan, kept),
        }
    }

    /// The same where addresses decide.
    pub(super) fn follow_addresses(
        &mut self,
        before: &AddressPlan,
        plan: &AddressPlan,
        held: &[(AddressRule, u32)],
    ) -> Result<(), Failure> {
        match self {
            Self::Nftables(table) => table.follow_addresses(before, plan, held),
            Self::Legacy(_) => Err(not_so_loaded()),
        }
    }

    /// Loads the rules again, whatever has become of them. What was open is for [`Self::reopen`].
    pub(super) fn reload(&mut self, plan: &Loaded, open: &[Kept]) -> Result<(), Failure> {
        match (self, plan) {
            (Self::Nftables(table), Loaded::ByName(plan)) => table.reload(&plan.ruleset()),
            (Self::Nftables(table), Loaded::ByAddress(plan)) => table.reload(&plan.ruleset()),
            (Self::Legacy(tables), Loaded::ByName(plan)) => tables.reload(plan, open),
            // What addresses decide by is never loaded there.
            (Self::Legacy(_), Loaded::ByAddress(_)) => Ok(()),
        }
    }

    /// Opens again what was open, each for as long as it has left.
    pub(super) fn reopen(&mut self, open: &[Kept], held: &[(AddressRule, u32)]) -> io::Result<()> {
        match self {
            Self::Nftables(table) => {
                table.restore(open)?;
                table.hold(held)
            }
            // The legacy tables come with theirs.
            Self::Legacy(_) => Ok(()),
        }
    }

    /// Whether others did something that is still to be found.
    pub(super) fn has_news(&mut self) -> bool {
        match self {
            Self::Nftables(table) => table.has_news().unwrap_or(false),
            Self::Legacy(tables) => matches!(tables.look(), Finding::Changed(_)),
        }
    }

    /// Whether the kernel tells of changes. Where it does not, each look is a search.
    pub(super) const fn is_told(&self) -> bool {
        match self {
            Self::Nftables(_) => true,
            Self::Legacy(_) => false,
        }
    }

    /// Waits for what others do to the rules. Of the legacy tables the kernel tells nobody.
    pub(super) async fn changed(&mut self) -> io::Result<Finding> {
        match self {
            Self::Nftables(table) => table.changed().await,
            Self::Legacy(_) => std::future::pending().await,
        }
    }

    /// Looks what others did to the rules until now.
    pub(super) fn look(&mut self) -> io::Result<Finding> {
        match self {
            Self::Nftables(table) => table.look(),
            Self::Legacy(tables) => Ok(tables.look()),
        }
    }

    /// What was counted since they were loaded.
    pub(super) fn counters(&self) -> Result<Counters, Failure> {
        match self {
            Self::Nftables(table) => table.counters(),
            Self::Legacy(tables) => tables.counters(),
        }
    }
}

/// Whoever decides knows by what.
pub(super) fn not_so_loaded() -> Failure {
    Failure::setup("change the list", "these rules are of another kind", DEFECT)
}

const DEFECT: &str = "report this as a defect";
