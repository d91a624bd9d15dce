//! One run of a client: whether it is told of the proxy, and what stands in its way.

/// Whether the client is told of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variables {
    /// It has the variables that the entrypoint sets.
    Set,
    /// It has none of them.
    Unset,
}

/// What stands in the way of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Situation {
    /// Nothing.
    Allowed,
    /// The allowlist.
    Denied,
    /// Nothing, but nobody listens there.
    Down,
}

/// One run of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Whether it is told of the proxy.
    pub variables: Variables,
    /// What stands in its way.
    pub situation: Situation,
}

impl Variables {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Set, Self::Unset];

    /// As a test's name has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Set => "with",
            Self::Unset => "without",
        }
    }
}

impl Situation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Denied, Self::Down];

    /// As a test's name has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Down => "down",
        }
    }

    /// The name that the client is sent to.
    pub(super) const fn host(self) -> &'static str {
        match self {
            Self::Allowed => "allowed.test",
            Self::Denied => "denied.test",
            Self::Down => "down.test",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_situation_has_a_host_of_its_own() {
        let hosts: BTreeSet<_> = Situation::ALL.map(Situation::host).into();
        assert_eq!(hosts.len(), Situation::ALL.len());
    }
}
