//! Host names in their one canonical spelling, so that comparing two is comparing bytes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// A host name in its one canonical spelling: lower-case A-labels, no trailing dot, at most 253
/// bytes, each label 1 to 63 letters, digits, hyphens and underscores (RFC 1123 section 2.1,
/// RFC 5890 section 2.3.2.1; underscores occur in real names).
///
/// Two names are the same host if and only if they are equal, so whoever holds one compares with
/// `==` and never normalises again. An address is not a host name: `10.0.0.1` is refused, and so is
/// everything that a C library might take for an address (`127.1`, `0x7f.1`, `2130706433`), or a
/// rule written for names could be reached by an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

impl HostName {
    /// The greatest length in bytes (RFC 1035 section 2.3.4, without the root's dot).
    pub const MAX: usize = 253;

    /// Reads a name in any spelling: upper case, U-labels, one trailing dot.
    pub fn parse(raw: &str) -> Result<Self, HostNameError> {
        let ascii = to_ascii(raw)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        check(name)?;
        Ok(Self(Arc::from(name)))
    }

    /// A name that is known to be in its canonical spelling.
    pub(crate) fn canonical(name: &'static str) -> Self {
        Self(Arc::from(name))
    }

    /// The canonical spelling.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for HostName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(raw: &str) -> Result<Self, HostNameError> {
        Self::parse(raw)
    }
}

/// Why a string is not a [`HostName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostNameError {
    /// There is nothing, or nothing but a dot.
    #[error("a host name cannot be empty")]
    Empty,
    /// The name is longer than [`HostName::MAX`] bytes.
    #[error("a host name has at most 253 bytes")]
    TooLong,
    /// Two dots in a row, or a dot at the start.
    #[error("a label between two dots cannot be empty")]
    EmptyLabel,
    /// A label is longer than 63 bytes.
    #[error("a label has at most 63 bytes")]
    LabelTooLong,
    /// A label starts or ends with a hyphen.
    #[error("a label cannot start or end with a hyphen")]
    Hyphen,
    /// A character that no host name has.
    #[error("{0:?} cannot be part of a host name")]
    Character(char),
    /// A label that IDNA (UTS 46) does not map to a valid A-label.
    #[error("not a valid internationalised name")]
    Idna,
    /// The last label is a number, so that some resolvers would take the whole for an IPv4 address.
    #[error("a name cannot end in a number; write an address as four decimal numbers")]
    Numeric,
}

/// Maps to lower-case A-labels. Nearly every name is plain ASCII and needs no tables for that.
fn to_ascii(raw: &str) -> Result<Cow<'_, str>, HostNameError> {
    // Mapping may shorten a name (ignored code points, full-width forms), but nobody writes one of
    // a thousand bytes, and the tables need not see a megabyte.
    if raw.len() > 4 * HostName::MAX {
        return Err(HostNameError::TooLong);
    }
    if raw.is_ascii() && !has_a_label(raw) {
        return Ok(if raw.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(raw.to_ascii_lowercase())
        } else {
            Cow::Borrowed(raw)
        });
    }
    Uts46::new()
        .to_ascii(
            raw.as_bytes(),
            AsciiDenyList::EMPTY,
            Hyphens::Allow,
            DnsLength::Ignore,
        )
        .map_err(|_| HostNameError::Idna)
}

/// Whether some label may claim to be Punycode, which is to be believed only after decoding.
fn has_a_label(raw: &str) -> bool {
    raw.as_bytes()
        .windows(4)
        .any(|prefix| prefix.eq_ignore_ascii_case(b"xn--"))
}

fn check(name: &str) -> Result<(), HostNameError> {
    if name.is_empty() {
        return Err(HostNameError::Empty);
    }
    name.split('.').try_for_each(check_label)?;
    if name.len() > HostName::MAX {
        return Err(HostNameError::TooLong);
    }
    if is_number(name.rsplit('.').next().unwrap_or_default()) {
        return Err(HostNameError::Numeric);
    }
    Ok(())
}

fn check_label(label: &str) -> Result<(), HostNameError> {
    if label.is_empty() {
        return Err(HostNameError::EmptyLabel);
    }
    let stray =
        |c: &char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'));
    if let Some(c) = label.chars().find(stray) {
        return Err(HostNameError::Character(c));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(HostNameError::Hyphen);
    }
    if label.len() > 63 {
        return Err(HostNameError::LabelTooLong);
    }
    Ok(())
}

/// What `inet_aton` would read as a number: decimal, octal or `0x`. URL parsers ask the same of the
/// last label (WHATWG URL, "ends in a number").
fn is_number(label: &str) -> bool {
    label.strip_prefix("0x").map_or_else(
        || label.bytes().all(|b| b.is_ascii_digit()),
        |hex| hex.bytes().all(|b| b.is_ascii_hexdigit()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_name_is_equal() {
        for (raw, canonical) in [
            ("github.com", "github.com"),
            ("GitHub.COM", "github.com"),
            ("github.com.", "github.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("XN--bcher-kva.example", "xn--bcher-kva.example"),
            ("example。com", "example.com"),
            ("example.com。", "example.com"),
            ("ｅｘａｍｐｌｅ.com", "example.com"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("r3---sn-x.example.com", "r3---sn-x.example.com"),
            ("localhost", "localhost"),
            ("1and1.example", "1and1.example"),
        ] {
            assert_eq!(HostName::parse(raw).unwrap().as_str(), canonical, "{raw:?}");
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused_with_its_cause() {
        use HostNameError as E;
        for (raw, error) in [
            ("", E::Empty),
            (".", E::Empty),
            ("..", E::EmptyLabel),
            ("example.com..", E::EmptyLabel),
            (".example.com", E::EmptyLabel),
            ("a..b", E::EmptyLabel),
            (" ", E::Character(' ')),
            ("exam ple.com", E::Character(' ')),
            ("example.com\0.evil.net", E::Character('\0')),
            ("example.com\r\nX: 1", E::Character('\r')),
            ("example.com:443", E::Character(':')),
            ("user@example.com", E::Character('@')),
            ("example.com/path", E::Character('/')),
            ("*.example.com", E::Character('*')),
            ("-", E::Hyphen),
            ("a.-b.c", E::Hyphen),
            ("a.b-.c", E::Hyphen),
            ("xn--a.example", E::Idna),
            ("xn--.example", E::Idna),
        ] {
            assert_eq!(HostName::parse(raw), Err(error), "{raw:?}");
        }
    }

    #[test]
    fn what_a_resolver_could_take_for_an_address_is_no_name() {
        for raw in [
            "10.0.0.1",
            "127.1",
            "0x7f.1",
            "2130706433",
            "0177.0.0.1",
            "0x7f000001",
            "0x",
            "1.2.3.4.",
            "１２７.0.0.1",
            "example.1",
            "256.256.256.256",
        ] {
            assert_eq!(HostName::parse(raw), Err(HostNameError::Numeric), "{raw:?}");
        }
    }

    #[test]
    fn lengths_are_bounded_at_63_and_253() {
        let label = "a".repeat(63);
        assert!(HostName::parse(&format!("{label}.com")).is_ok());
        assert_eq!(
            HostName::parse(&format!("a{label}.com")),
            Err(HostNameError::LabelTooLong)
        );
        let longest = [label.as_str(); 4].join(".");
        let longest = longest.get(..HostName::MAX).unwrap();
        assert!(HostName::parse(longest).is_ok());
        assert!(HostName::parse(&format!("{longest}.")).is_ok());
        assert_eq!(
            HostName::parse(&format!("{longest}a")),
            Err(HostNameError::TooLong)
        );
        assert_eq!(
            HostName::parse(&"a.".repeat(1 << 20)),
            Err(HostNameError::TooLong)
        );
    }

    #[test]
    fn display_and_from_str_are_inverse() {
        let name = HostName::parse("Bücher.example.").unwrap();
        assert_eq!(name.to_string().parse(), Ok(name));
    }

    #[test]
    fn a_look_alike_is_another_name() {
        // The second has a Cyrillic letter.
        let [latin, cyrillic] =
            ["example.com", "ex\u{430}mple.com"].map(|raw| HostName::parse(raw).unwrap());
        assert_ne!(latin, cyrillic);
        assert!(cyrillic.as_str().starts_with("xn--"));
    }

    #[test]
    fn an_error_shows_no_control_character() {
        for raw in ["a\nb", "a\u{1b}[2J", "\0"] {
            let error = HostName::parse(raw).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn names_are_ordered_as_their_spelling() {
        let mut names = ["b.a", "a.b", "a"].map(|raw| HostName::parse(raw).unwrap());
        names.sort();
        assert_eq!(names.map(|name| name.to_string()), ["a", "a.b", "b.a"]);
    }
}
