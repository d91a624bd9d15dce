//! Ports of an entry: one, a range, or all.

use std::fmt;
use std::num::NonZeroU16;

/// Ports from `low` to `high`, both included; never empty, never port 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    // Not zero, so that an absent range costs no room in a rule.
    low: NonZeroU16,
    high: u16,
}

impl PortRange {
    /// Every port there is: 1 to 65535.
    pub const ALL: Self = Self {
        low: NonZeroU16::MIN,
        high: u16::MAX,
    };
    /// Where the web is spoken in the clear.
    pub(crate) const HTTP: Self = Self::one(NonZeroU16::MIN.saturating_add(79));
    /// Where it is spoken over TLS.
    pub(crate) const HTTPS: Self = Self::one(NonZeroU16::MIN.saturating_add(442));

    /// The range of `port` alone; `None` for 0, which nothing can listen on.
    #[must_use]
    pub fn single(port: u16) -> Option<Self> {
        NonZeroU16::new(port).map(Self::one)
    }

    /// The range of both and what is between; `None` if it would be empty or start at 0.
    #[must_use]
    pub fn new(low: u16, high: u16) -> Option<Self> {
        let low = NonZeroU16::new(low)?;
        (low.get() <= high).then_some(Self { low, high })
    }

    /// Reads what `Display` writes: `443`, `8000-8100` or `*`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::ALL);
        }
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        Self::new(number(low)?, number(high)?)
    }

    /// The lowest port.
    #[must_use]
    pub const fn low(self) -> u16 {
        self.low.get()
    }

    /// The highest port.
    #[must_use]
    pub const fn high(self) -> u16 {
        self.high
    }

    /// Whether `port` is in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.low() <= port && port <= self.high
    }

    /// Whether every port of `other` is in the range.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.low() <= other.low() && other.high <= self.high
    }

    /// What is left when the ports of `hole` are taken out: up to two ranges.
    pub(crate) fn subtract(self, hole: Self) -> impl Iterator<Item = Self> {
        let below = Self::new(self.low(), self.high.min(hole.low() - 1));
        let above = hole
            .high
            .checked_add(1)
            .and_then(|next| Self::new(self.low().max(next), self.high));
        below.into_iter().chain(above)
    }

    const fn one(port: NonZeroU16) -> Self {
        Self {
            low: port,
            high: port.get(),
        }
    }
}

/// As in an entry: `443`, `8000-8100` or `*`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low(), self.high) {
            _ if *self == Self::ALL => f.write_str("*"),
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}

/// A decimal number without a sign, which `u16`'s own parser would take.
fn number(digits: &str) -> Option<u16> {
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        digits.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_display_are_inverse() {
        for text in ["1", "443", "65535", "8000-8100", "1-65534", "*"] {
            assert_eq!(PortRange::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn one_range_has_one_spelling() {
        for (text, canonical) in [("443-443", "443"), ("1-65535", "*"), ("0443", "443")] {
            assert_eq!(
                PortRange::parse(text).unwrap().to_string(),
                canonical,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_port_is_refused() {
        for text in [
            "", "0", "0-1", "65536", "90-80", "http", "-", "1-", "-1", "+1", " 1", "1-2-3", "１",
            "**",
        ] {
            assert_eq!(PortRange::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn both_ends_belong_to_a_range() {
        let range = PortRange::new(8000, 8100).unwrap();
        for (port, within) in [(7999, false), (8000, true), (8100, true), (8101, false)] {
            assert_eq!(range.contains(port), within, "{port}");
        }
    }

    #[test]
    fn the_ports_of_the_web_are_80_and_443() {
        assert_eq!((PortRange::HTTP.low(), PortRange::HTTPS.low()), (80, 443));
    }

    #[test]
    fn taking_ports_out_leaves_the_rest() {
        for (whole, hole, left) in [
            ("1-100", "50", "1-49 51-100"),
            ("1-100", "1-50", "51-100"),
            ("1-100", "50-200", "1-49"),
            ("1-100", "*", ""),
            ("50", "1-10", "50"),
            ("50", "60-70", "50"),
            ("*", "1", "2-65535"),
            ("*", "65535", "1-65534"),
        ] {
            let [whole, hole] = [whole, hole].map(|text| PortRange::parse(text).unwrap());
            let pieces: Vec<_> = whole
                .subtract(hole)
                .map(|range| range.to_string())
                .collect();
            assert_eq!(pieces.join(" "), left, "{whole} - {hole}");
        }
    }

    #[test]
    fn port_0_is_in_no_range() {
        assert_eq!(PortRange::single(0), None);
        assert_eq!(PortRange::new(0, 10), None);
        assert!(!PortRange::ALL.contains(0));
    }

    #[test]
    fn an_empty_range_cannot_be_made() {
        assert_eq!(PortRange::new(2, 1), None);
        assert!(PortRange::new(1, 1).is_some());
    }

    #[test]
    fn a_range_covers_what_lies_within() {
        for (outer, inner, covers) in [
            ("1-100", "1-100", true),
            ("1-100", "50", true),
            ("1-100", "50-101", false),
            ("50", "1-100", false),
            ("*", "443", true),
        ] {
            let [outer, inner] = [outer, inner].map(|text| PortRange::parse(text).unwrap());
            assert_eq!(outer.covers(inner), covers, "{outer} and {inner}");
        }
    }
}
