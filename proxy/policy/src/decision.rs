//! The answer to “may it go there?”: a permit, or a denial that explains itself.

use std::sync::Arc;

use crate::host::{Destination, HostError};
use crate::reason::DenyReason;
use crate::stream::StreamKinds;

/// What [`crate::Policy::decide`] answers.
#[derive(Debug, Clone)]
#[must_use]
pub enum Decision {
    /// The destination is allowed.
    Allow(Permit),
    /// It is not.
    Deny(Denial),
}

/// Proof that policy allowed this destination. Only [`crate::Policy::decide`] makes one, so whoever
/// asks for one in a signature cannot be called without a decision.
#[derive(Debug, Clone)]
#[must_use]
pub struct Permit {
    pub(crate) destination: Destination,
    pub(crate) rule: Arc<str>,
    pub(crate) kinds: StreamKinds,
}

impl Permit {
    /// What was allowed.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The entry that allows it, in its canonical spelling.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// What may be seen on the stream; never empty.
    #[must_use]
    pub fn kinds(&self) -> StreamKinds {
        self.kinds
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
}

impl Denial {
    /// A denial without a hint, for what is found out later on the stream.
    #[must_use]
    pub fn new(reason: DenyReason) -> Self {
        Self { reason, nearest: None, hint: None }
    }
}

/// What names no host is `malformed`, and the cause is the hint.
impl From<HostError> for Denial {
    fn from(error: HostError) -> Self {
        Self { hint: Some(error.to_string()), ..Self::new(DenyReason::Malformed) }
    }
}
