//! Secrets of one run: what proves that a peer is the container that was launched.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::run_id::random_hex;

/// 256 random bits, in hexadecimal.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A new secret.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex::<32>().map(Self)
    }

    /// The secret itself, for the one who shall know it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where the first difference is.
    #[must_use]
    pub fn matches(&self, candidate: &str) -> bool {
        self.0.as_bytes().ct_eq(candidate.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_matches() {
        let secret = Secret::random().unwrap();
        let whole = secret.expose().to_owned();
        assert_eq!(whole.len(), 64);
        assert!(secret.matches(&whole));
        for other in [
            "",
            &whole[..63],
            &format!("{whole}0"),
            &whole
                .to_uppercase()
                .replace(|c: char| c.is_ascii_digit(), "x"),
        ] {
            assert!(!secret.matches(other), "{other}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::random().unwrap();
        assert!(!format!("{secret:?}").contains(secret.expose()));
    }
}
