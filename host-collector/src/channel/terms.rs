//! What one run's channel is held to, also by the collector that takes it over from another.

use serde::{Deserialize, Serialize};

use super::{secret::Secret, way::Transport};

/// The secrets of a run, and what its container must know. Kept in the run's directory, which
/// nobody else can enter, since a collector that was killed must be able to go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Terms {
    /// What proves that a peer is the container that was launched.
    pub nonce: Secret,
    /// What proves that it is the one that was welcomed.
    pub resume_token: Secret,
    /// Decides what the sample shows, so that a guest cannot.
    pub seed: [u8; 16],
    /// The digest of the allowlist: a container that reads it otherwise is turned away.
    pub policy_digest: Option<String>,
    /// The ways that reports may take.
    #[serde(default)]
    pub transport: Transport,
}

impl Terms {
    /// New secrets.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random(policy_digest: Option<String>) -> Result<Self, getrandom::Error> {
        let mut seed = [0; 16];
        getrandom::fill(&mut seed)?;
        Ok(Self {
            nonce: Secret::random()?,
            resume_token: Secret::random()?,
            seed,
            policy_digest,
            transport: Transport::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_collector_reads_the_same_terms() {
        let terms = Terms::random(Some("aa".into())).unwrap();
        let read: Terms = serde_json::from_str(&serde_json::to_string(&terms).unwrap()).unwrap();
        assert!(terms.nonce.matches(read.nonce.expose()));
        assert!(terms.resume_token.matches(read.resume_token.expose()));
        assert_eq!(
            (terms.seed, terms.policy_digest),
            (read.seed, read.policy_digest)
        );
    }

    #[test]
    fn no_two_runs_have_a_secret_in_common() {
        let (one, other) = (Terms::random(None).unwrap(), Terms::random(None).unwrap());
        assert!(!one.nonce.matches(other.nonce.expose()));
        assert!(!one.nonce.matches(one.resume_token.expose()));
        assert_ne!(one.seed, other.seed);
    }
}
