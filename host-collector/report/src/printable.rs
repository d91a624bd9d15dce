//! Text that came from a guest, made safe to print, to log and to store.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

/// A string without anything that could act on a terminal or forge a line: control characters,
/// bidirectional overrides and other invisible characters are written as `\u{…}`, and its length is
/// at most [`Printable::MAX`] bytes.
///
/// Reading one from JSON escapes again, so that whoever holds one need not ask where it came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Printable(Box<str>);

impl Printable {
    /// The greatest length in bytes, escapes included: a host name is at most 253.
    pub const MAX: usize = 256;

    /// Escapes and cuts `raw`; what was cut is marked with `…`.
    #[must_use]
    pub fn new(raw: &str) -> Self {
        let mut out = String::with_capacity(raw.len().min(Self::MAX));
        for c in raw.chars() {
            let mark = out.len();
            push_escaped(&mut out, c);
            if out.len() > Self::MAX - ELLIPSIS.len() {
                out.truncate(mark);
                out.push_str(ELLIPSIS);
                break;
            }
        }
        Self(out.into())
    }

    /// Escapes bytes that need not be UTF-8.
    #[must_use]
    pub fn from_bytes(raw: &[u8]) -> Self {
        Self::new(&String::from_utf8_lossy(raw))
    }

    /// The escaped text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Printable {
    fn from(raw: String) -> Self {
        Self::new(&raw)
    }
}

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn push_escaped(out: &mut String, c: char) {
    if is_harmless(c) {
        out.push(c);
    } else {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    }
}

/// Letters and marks of any script are harmless; what the eye cannot see is not (Unicode TR 36).
fn is_harmless(c: char) -> bool {
    let invisible = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !invisible
}

const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_survives() {
        for (raw, shown) in [
            ("example.com", "example.com"),
            ("a\nb", "a\\u{a}b"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("bücher", "bücher"),
        ] {
            assert_eq!(Printable::new(raw).as_str(), shown, "{raw:?}");
        }
    }

    #[test]
    fn a_long_string_is_cut_and_says_so() {
        let cut = Printable::new(&"\n".repeat(10_000));
        assert!(
            cut.as_str().len() <= Printable::MAX,
            "{}",
            cut.as_str().len()
        );
        assert!(cut.as_str().ends_with('…'));
    }

    #[test]
    fn escaping_twice_changes_nothing() {
        let once = Printable::new("a\r\n\u{202e}\u{7f}");
        assert_eq!(Printable::new(once.as_str()), once);
    }

    #[test]
    fn reading_from_json_escapes() {
        let read: Printable = serde_json::from_str(r#""a\nb""#).unwrap();
        assert_eq!(read.as_str(), "a\\u{a}b");
    }
}
