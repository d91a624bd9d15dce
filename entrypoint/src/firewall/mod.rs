//! The rules in the kernel, in whichever of its firewalls there is, and their counters read back.
//!
//! Whatever PID 1 changes of them goes through [`Firewall`]: what does not is somebody else's doing.

mod nftables;
mod opened;
mod plan;

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use policy::{HostName, Policy};
use sha2::{Digest as _, Sha256};

pub(crate) use self::plan::Plan;
use self::{nftables::Table, opened::Opened};
use crate::failure::Failure;

/// NFLOG group of the refused packets, in the container's own network namespace.
pub(crate) const LOG_GROUP: u16 = 4100;

/// Loaded rules. Nothing runs in the container before there are some.
pub(crate) struct Firewall {
    backend: Backend,
    plan: Plan,
    /// What the guest was let dial.
    opened: Opened,
    digest: String,
    counters_before: Counters,
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
    /// Loads the rules of `plan`.
    pub(crate) fn load(plan: Plan) -> Result<Self, Failure> {
        let (table, loaded) = Table::load(&plan)?;
        Ok(Self {
            backend: Backend::Nftables(table),
            plan,
            opened: Opened::default(),
            digest: hex(&Sha256::digest(loaded)),
            counters_before: Counters::default(),
        })
    }

    /// What the report calls the backend.
    pub(crate) const fn backend(&self) -> &'static str {
        match &self.backend {
            Backend::Nftables(_) => "nftables",
        }
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
        match &self.backend {
            Backend::Nftables(_) => Table::follow(&plan, &kept)?,
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
        };
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
