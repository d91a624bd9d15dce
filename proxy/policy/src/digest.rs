//! The identity of a policy, so that “was it allowed then?” has an answer.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// SHA-256 over the canonical, sorted, deduplicated entries, each followed by a line feed.
///
/// `Display` is 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256_of_the_text() {
        // The first example of FIPS 180-4.
        assert_eq!(
            Digest::of("abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
