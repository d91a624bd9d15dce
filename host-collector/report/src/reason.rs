//! A reason as a reader keeps it: a word it knows, or one that is newer than itself.

use std::fmt;

use policy::DenyReason;
use serde::{Deserialize, Serialize};

/// Why something was refused, from a sender that may know more words than this version.
///
/// A newer word is kept, because a refusal whose reason is news is a refusal all the same. It is
/// kept only if it looks like one (`[a-z0-9_]`, at most [`Reason::MAX_WORD`] bytes), because words
/// end up as keys of the log and labels of metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Reason {
    /// A word of this version.
    Known(DenyReason),
    /// A word of a later one.
    Newer(Box<str>),
}

impl Reason {
    /// The greatest length of a newer word, in bytes.
    pub const MAX_WORD: usize = 32;

    /// What stands for words that are no words, and for newer ones beyond those kept apart.
    #[must_use]
    pub fn unnamed() -> Self {
        Self::Newer("other".into())
    }

    /// The spelling on the wire and in the log.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(reason) => reason.as_str(),
            Self::Newer(word) => word,
        }
    }

    /// Whether this version does not know the word.
    #[must_use]
    pub const fn is_newer(&self) -> bool {
        matches!(self, Self::Newer(_))
    }
}

impl From<DenyReason> for Reason {
    fn from(reason: DenyReason) -> Self {
        Self::Known(reason)
    }
}

impl From<String> for Reason {
    fn from(word: String) -> Self {
        if let Ok(reason) = word.parse() {
            return Self::Known(reason);
        }
        let is_word = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if word.is_empty() || word.len() > Self::MAX_WORD || !word.bytes().all(is_word) {
            Self::unnamed()
        } else {
            Self::Newer(word.into())
        }
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.as_str().into()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(word: &str) -> Reason {
        serde_json::from_value(serde_json::Value::from(word)).unwrap()
    }

    #[test]
    fn every_known_word_is_read_as_known() {
        for reason in DenyReason::ALL {
            assert_eq!(read(reason.as_str()), Reason::Known(reason), "{reason}");
        }
    }

    #[test]
    fn a_newer_word_keeps_its_spelling() {
        let reason = read("quota_2");
        assert!(reason.is_newer());
        assert_eq!(serde_json::to_string(&reason).unwrap(), "\"quota_2\"");
    }

    #[test]
    fn what_is_no_word_has_no_spelling_of_its_own() {
        for raw in ["", "a b", "x\n", "\u{202e}", "Not_Allowed", &"a".repeat(33)] {
            assert_eq!(read(raw), Reason::unnamed(), "{raw:?}");
        }
    }
}
