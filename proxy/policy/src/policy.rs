//! The policy: a list of entries, ready to be asked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::decision::{Decision, Denial, Permit};
use crate::digest::Digest;
use crate::error::{ErrorCode, PolicyError};
use crate::host::Destination;
use crate::port::PortRange;
use crate::reason::DenyReason;
use crate::warning::Warning;

/// Which destinations are allowed.
#[derive(Debug, Clone)]
pub struct Policy {
    own: Vec<IpNet>,
    warnings: Vec<Warning>,
}

/// An address entry as a packet filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRule {
    /// The addresses.
    pub net: IpNet,
    /// The ports on them.
    pub ports: PortRange,
}

impl Policy {
    /// Reads entries separated by commas or line ends; `#` starts a comment.
    pub fn parse(list: &str) -> Result<Self, PolicyError> {
        Self::from_entries([list])
    }

    /// Reads entries, each of which may itself be a list as [`Policy::parse`] takes it.
    pub fn from_entries<I, S>(entries: I) -> Result<Self, PolicyError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        if entries.into_iter().all(|e| e.as_ref().trim().is_empty()) {
            return Err(PolicyError {
                entry: String::new(),
                position: 0,
                code: ErrorCode::Empty,
                hint: "name at least one destination, such as example.com".into(),
            });
        }
        Ok(Self { own: Vec::new(), warnings: Vec::new() })
    }

    /// May a client go there?
    pub fn decide(&self, _destination: &Destination) -> Decision {
        Decision::Deny(Denial::new(DenyReason::NotAllowed))
    }

    /// Of the addresses that the permitted name resolved to, those that may be dialled.
    ///
    /// # Errors
    /// `private_address` if there were some and all are guarded.
    pub fn check_addresses(&self, _permit: &Permit, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Denial> {
        Ok(addresses.to_vec())
    }

    /// Guards these too: the container's own addresses and gateways.
    pub fn guard_also(&mut self, nets: &[IpNet]) {
        self.own.extend_from_slice(nets);
    }

    /// The policy's identity.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest([0; 32])
    }

    /// The canonical, sorted, deduplicated entries.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is odd about the list.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Ports whose streams must be looked into: 80, 443, and those an entry names as `tls` or `http`.
    #[must_use]
    pub fn stream_ports(&self) -> BTreeSet<u16> {
        BTreeSet::from([80, 443])
    }

    /// The address entries that allow, for a packet filter.
    #[must_use]
    pub fn address_rules(&self) -> Vec<AddressRule> {
        Vec::new()
    }

    /// The ranges that the proxy may dial into although they are guarded.
    #[must_use]
    pub fn lifted_ranges(&self) -> Vec<IpNet> {
        Vec::new()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Never: a list with nothing in it is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
