//! Entries that are legal and yet surely not what was meant.

use std::fmt;

/// Something odd about a list that is worth a line on stderr. `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// No entry allows anything.
    NothingAllowed,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingAllowed => f.write_str("no entry allows anything"),
        }
    }
}
