//! Ports of an entry: one, a range, all, or the two of the web.

use std::fmt;

/// Ports from `low` to `high`, both included; never empty, never port 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    low: u16,
    high: u16,
}

impl PortRange {
    /// Every port there is: 1 to 65535.
    pub const ALL: Self = Self { low: 1, high: u16::MAX };

    /// The range of `port` alone; `None` for 0, which nothing can listen on.
    #[must_use]
    pub const fn single(port: u16) -> Option<Self> {
        Self::new(port, port)
    }

    /// The range of both and what is between; `None` if it would be empty or start at 0.
    #[must_use]
    pub const fn new(low: u16, high: u16) -> Option<Self> {
        if low == 0 || low > high { None } else { Some(Self { low, high }) }
    }

    /// The lowest port.
    #[must_use]
    pub const fn low(self) -> u16 {
        self.low
    }

    /// The highest port.
    #[must_use]
    pub const fn high(self) -> u16 {
        self.high
    }

    /// Whether `port` is in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.low <= port && port <= self.high
    }
}

/// As in an entry: `443`, `8000-8100` or `*`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            _ if *self == Self::ALL => f.write_str("*"),
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}
