//! The name of a run: of its directory, its label, and its lines in the log.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 24 lower-case hexadecimal digits from the system's randomness, so that a few of them name a run
/// and no two hosts ever make the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RunId(String);

/// What is no name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a run: that has {DIGITS} lower-case hexadecimal digits")]
pub struct NoRunId;

impl TryFrom<String> for RunId {
    type Error = NoRunId;

    fn try_from(name: String) -> Result<Self, NoRunId> {
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        (name.len() == DIGITS && name.bytes().all(is_digit))
            .then_some(Self(name))
            .ok_or(NoRunId)
    }
}

const DIGITS: usize = 24;

impl RunId {
    /// A new name.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex::<12>().map(Self)
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `N` random bytes in lower-case hexadecimal.
pub(crate) fn random_hex<const N: usize>() -> Result<String, getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// The bytes of exactly `N` pairs of hexadecimal digits.
pub(crate) fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| {
        let byte = digit(high)? << 4 | digit(low)?;
        u8::try_from(byte).ok()
    });
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes.filter(|_| rest.is_empty())?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_safe_as_a_file_name_and_never_the_same_twice() {
        let (a, b) = (RunId::random().unwrap(), RunId::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 24);
        assert!(
            a.as_str()
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{a}"
        );
    }

    #[test]
    fn only_what_could_have_been_made_here_is_a_name() {
        let name = RunId::random().unwrap();
        assert_eq!(RunId::try_from(name.to_string()), Ok(name.clone()));
        for other in [
            "",
            "..",
            &name.as_str()[1..],
            &format!("{name}0"),
            &"G".repeat(24),
            &"A".repeat(24),
        ] {
            assert_eq!(RunId::try_from(other.to_owned()), Err(NoRunId), "{other}");
        }
    }

    #[test]
    fn hexadecimal_keeps_leading_zeros() {
        assert_eq!(hex(&[0x00, 0x0f, 0xa0]), "000fa0");
    }

    #[test]
    fn reading_hexadecimal_is_the_inverse_of_writing_it() {
        assert_eq!(unhex(&hex(&[0, 1, 0xaf, 0xff])), Some([0, 1, 0xaf, 0xff]));
        for no_digits in ["", "0", "0g", "000", "+1", "ü1"] {
            assert_eq!(unhex::<1>(no_digits), None, "{no_digits}");
        }
    }
}
