//! The answer to “may it go there?”: a permit, or a denial that explains itself.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::host::{Destination, Host, HostError};
use crate::reason::DenyReason;
use crate::rule::RuleId;
use crate::rules::Rules;
use crate::stream::{StreamKind, StreamKinds};

/// What [`crate::Policy::decide`] answers.
#[derive(Debug, Clone)]
#[must_use]
pub enum Decision {
    /// The destination is allowed.
    Allow(Permit),
    /// It is not.
    Deny(Denial),
}

/// Proof that policy allowed this destination. Only [`crate::Policy::decide`] makes one, so what
/// asks for one in its signature cannot be reached without a decision.
#[derive(Clone)]
#[must_use]
pub struct Permit {
    destination: Destination,
    rules: Arc<Rules>,
    rule: RuleId,
    kinds: StreamKinds,
}

impl Permit {
    pub(crate) fn new(
        destination: Destination,
        rules: Arc<Rules>,
        rule: RuleId,
        kinds: StreamKinds,
    ) -> Self {
        Self {
            destination,
            rules,
            rule,
            kinds,
        }
    }

    /// What was allowed.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The entry that allows it, in its canonical spelling; of several the most specific.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rules.spelling(self.rule)
    }

    /// The domain whose wildcard allows the destination; `None` if an entry names it.
    #[must_use]
    pub fn below(&self) -> Option<&str> {
        self.rules.wildcard(self.rule)
    }

    /// What is checked once the connection is there, which nobody can foretell from the list: one
    /// phrase, for people.
    #[must_use]
    pub fn terms(&self) -> &'static str {
        match self.destination.host {
            Host::Address(_) => "no name is checked: the entry is for the address",
            Host::Name(_) if self.kinds.is_opaque() => {
                "whatever is sent; refused if it resolves to special addresses that no entry names"
            }
            Host::Name(_) if self.kinds.contains(StreamKind::Tls) => {
                "for TLS to this name; refused if it resolves to special addresses that no entry \
                 names"
            }
            Host::Name(_) => {
                "for HTTP to this name; refused if it resolves to special addresses that no entry \
                 names"
            }
        }
    }

    /// What may be seen on the stream, any of which will do; never empty.
    #[must_use]
    pub fn kinds(&self) -> StreamKinds {
        self.kinds
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("destination", &self.destination)
            .field("rule", &self.rule())
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

/// Why something was refused, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The stable word for it.
    pub reason: DenyReason,
    /// The entry that came nearest, in its canonical spelling.
    pub nearest: Option<String>,
    /// One sentence that a person or a model can act on.
    pub hint: Option<String>,
    /// The address that the host resolved to, where that is why.
    pub address: Option<IpAddr>,
}

impl Denial {
    /// A denial without a hint, for what is found out later on the stream.
    #[must_use]
    pub const fn new(reason: DenyReason) -> Self {
        Self {
            reason,
            nearest: None,
            hint: None,
            address: None,
        }
    }
}

/// What names no host is `malformed`, and the cause is the hint.
impl From<HostError> for Denial {
    fn from(error: HostError) -> Self {
        Self {
            hint: Some(error.to_string()),
            ..Self::new(DenyReason::Malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_host_is_malformed_and_says_why() {
        let denial = Denial::from(Destination::parse("exa mple.com", 443).unwrap_err());
        assert_eq!(denial.reason, DenyReason::Malformed);
        assert_eq!(
            denial.hint.as_deref(),
            Some("' ' cannot be part of a host name")
        );
    }
}
