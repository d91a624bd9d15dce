//! Why a list is refused, told so that the line can be found and mended.

use std::fmt;

use crate::fault::{ErrorCode, Fault};
use crate::spelling;

/// An allowlist that cannot be used.
///
/// `Display` is one line that names the entry, its position, the cause and the remedy, whatever was
/// in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// The entry, cut if it is long, with control and invisible characters escaped and a password
    /// left out; empty if the list as a whole is refused.
    pub entry: String,
    /// Which of the entries it is, from 1, blank ones not counted; 1 for the list as a whole.
    pub position: usize,
    /// What is wrong.
    pub code: ErrorCode,
    /// What would be right.
    pub hint: String,
}

impl PolicyError {
    pub(crate) fn in_entry(entry: &str, position: usize, fault: Fault) -> Self {
        Self {
            entry: spelling::shown(entry),
            position,
            code: fault.code,
            hint: fault.hint,
        }
    }

    /// A list with nothing in it: the strictest-looking request must not be the one that does
    /// nothing.
    pub(crate) fn empty_list() -> Self {
        Self {
            entry: String::new(),
            position: 1,
            code: ErrorCode::Empty,
            hint: "name at least one destination, as in example.com".into(),
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entry,
            position,
            code,
            hint,
        } = self;
        if entry.is_empty() {
            write!(f, "the allowlist {}: {hint}", code.sentence())
        } else {
            write!(
                f,
                "entry {position} of the allowlist, `{entry}`, {}: {hint}",
                code.sentence()
            )
        }
    }
}

impl std::error::Error for PolicyError {}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_that_names_entry_position_cause_and_remedy() {
        let fault = Fault::new(ErrorCode::Url, "did you mean github.com?");
        let error = PolicyError::in_entry("github.com/\nx", 3, fault);
        assert_eq!(
            error.to_string(),
            "entry 3 of the allowlist, `github.com/\\nx`, is a URL or a path: did you mean github.com?"
        );
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        assert_eq!(
            PolicyError::empty_list().to_string(),
            "the allowlist names nothing: name at least one destination, as in example.com"
        );
    }

    #[test]
    fn a_password_in_an_entry_is_not_repeated() {
        let fault = Fault::new(ErrorCode::Userinfo, "leave out the user");
        let error = PolicyError::in_entry("user:secret@github.com", 1, fault).to_string();
        assert!(error.contains("user:***@github.com"), "{error}");
    }

    #[test]
    fn a_code_is_displayed_as_it_is_spelt() {
        assert_eq!(ErrorCode::WildcardPosition.to_string(), "wildcard_position");
    }
}
