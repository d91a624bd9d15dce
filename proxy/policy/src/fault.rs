//! What is wrong with one entry, before it is known which one of the list it is.

use crate::error::ErrorCode;

/// A cause and a remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: ErrorCode,
    pub(crate) hint: String,
}

impl Fault {
    pub(crate) fn new(code: ErrorCode, hint: impl Into<String>) -> Self {
        Self {
            code,
            hint: hint.into(),
        }
    }
}
