//! The rules in the kernel, in whichever of its firewalls there is, and their counters read back.
//!
//! Whatever PID 1 changes of them goes through [`Firewall`]: what does not is somebody else's doing.

mod legacy;
mod nftables;
mod opened;
mod plan;
mod program;

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use policy::{HostName, Policy};
use sha2::{Digest as _, Sha256};

pub(crate) use self::plan::Plan;
use self::{legacy::Tables, nftables::Table, opened::Opened};
use crate::failure::Failure;

/// NFLOG group of the refused packets, in the container's own network namespace.
pub(crate) const LOG_GROUP: u16 = 4100;
/// Enough of a packet for its addresses and ports, IPv6 extension headers included.
const LOG_SNAPLEN: u32 = 128;
/// Packets that the kernel gathers before it wakes PID 1.
const LOG_THRESHOLD: u32 = 64;
const LOAD: &str = "load the firewall";

/// Loaded rules. Nothing runs in the container before there are some.
pub(crate) struct Firewall {
    backend: Backend,
    plan: Plan,
    /// What the guest was let dial.
    opened: Opened,
    digest: String,
    counters_before: Counters,
    degradations: Vec<String>,
}

/// What is to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Whose addresses these are.
    pub(crate) name: &'a HostName,
    /// What the guest is to reach.
    pub(crate) endpoints: &'a [SocketAddr],
    /// For how long from now.
    pub(crate) seconds: u32,
}

/// Where the rules are. All of them have the same effect, or say what they lack.
enum Backend {
    Nftables(Table),
    Legacy(Tables),
}

/// What was refused, in packets.
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
    /// Loads the rules of `plan`: what works is found out by trying, nftables first.
    pub(crate) fn load(plan: Plan) -> Result<Self, Failure> {
        let nftables = match Table::load(&plan) {
            Ok((table, loaded)) => return Ok(Self::with(plan, Backend::Nftables(table), &loaded)),
            Err(failure) => failure,
        };
        match Tables::load(&plan) {
            Ok((tables, loaded)) => {
                let mut firewall = Self::with(plan, Backend::Legacy(tables), &loaded);
                let cause = nftables.cause();
                firewall.degradations = vec![format!("nftables could not be used: {cause}")];
                Ok(firewall)
            }
            Err(legacy) => Err(legacy.after(&nftables)),
        }
    }

    fn with(plan: Plan, backend: Backend, loaded: &str) -> Self {
        Self {
            backend,
            plan,
            opened: Opened::default(),
            digest: hex(&Sha256::digest(loaded)),
            counters_before: Counters::default(),
            degradations: Vec::new(),
        }
    }

    /// What the report calls the backend.
    pub(crate) const fn backend(&self) -> &'static str {
        match &self.backend {
            Backend::Nftables(_) => "nftables",
            Backend::Legacy(_) => "iptables-legacy",
        }
    }

    /// What could not be had and was done without, one sentence each.
    pub(crate) fn degradations(&self) -> impl Iterator<Item = String> {
        let lacks = match &self.backend {
            Backend::Nftables(_) => Vec::new(),
            Backend::Legacy(tables) => tables.degradations(),
        };
        let own = self.degradations.iter().cloned();
        own.chain(lacks.into_iter().map(str::to_owned))
    }

    /// Whether refused packets are handed over on [`LOG_GROUP`].
    pub(crate) fn logs(&self) -> bool {
        match &self.backend {
            Backend::Nftables(_) => true,
            Backend::Legacy(tables) => tables.logs(),
        }
    }

    /// Leaves out of the account what was counted until now: it is the self-test's. Whether it is
    /// as much as the rules refused, or this kernel says of itself that it counts less.
    pub(crate) fn set_aside(&mut self, refused: u64) -> Result<bool, Failure> {
        let counted = self.counters()?;
        if counted.packets < refused {
            let forgiven = match &mut self.backend {
                Backend::Nftables(_) => false,
                Backend::Legacy(tables) => tables.forgive_uncounted(),
            };
            if !forgiven {
                return Ok(false);
            }
        }
        self.counters_before = counted;
        Ok(true)
    }

    /// Lets the guest dial what a name resolved to, also what it could dial already. All of it, or an
    /// error.
    pub(crate) fn open(&mut self, request: Request<'_>) -> io::Result<()> {
        let Request {
            name,
            endpoints,
            seconds,
        } = request;
        match &mut self.backend {
            Backend::Nftables(table) => table.open(endpoints, seconds)?,
            Backend::Legacy(tables) => tables.open(endpoints, seconds)?,
        }
        let now = Instant::now();
        let until = now + Duration::from_secs(seconds.into());
        self.opened.note(name, endpoints, until, now);
        Ok(())
    }

    /// Has the rules follow another list, all of it or nothing. What the guest was let dial and that
    /// list does not open is closed.
    ///
    /// Established connections go on: what was authorised is the connection.
    pub(crate) fn follow(&mut self, policy: &Policy) -> Result<(), Failure> {
        let plan = self.plan.following(policy);
        let kept = self.opened.keep(policy, Instant::now());
        match &mut self.backend {
            Backend::Nftables(_) => Table::follow(&plan, &kept)?,
            Backend::Legacy(tables) => tables.follow(&plan, &kept)?,
        }
        self.plan = plan;
        Ok(())
    }

    /// SHA-256 of what was loaded, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// What was counted since the rules were loaded, less what was set aside.
    pub(crate) fn counters(&self) -> Result<Counters, Failure> {
        let now = match &self.backend {
            Backend::Nftables(_) => Table::counters()?,
            Backend::Legacy(tables) => tables.counters()?,
        };
        let before = self.counters_before;
        Ok(Counters {
            packets: now.packets.saturating_sub(before.packets),
            quic: now.quic.saturating_sub(before.quic),
            ingress: now.ingress.saturating_sub(before.ingress),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_lower_case_hexadecimal_of_full_length() {
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }
}
