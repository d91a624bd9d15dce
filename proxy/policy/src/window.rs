//! The one name that is no destination: under it the sandbox itself answers its guest.
//!
//! It is known here, and not to the proxy alone, so that no [`crate::Permit`] for it can exist:
//! whatever a list says, nobody resolves it and nobody dials it.

use crate::decision::Denial;
use crate::host::Host;
use crate::name::HostName;
use crate::reason::DenyReason;

/// The host of the guest's window, `http://egress.sandbox/`.
pub const WINDOW: &str = "egress.sandbox";

impl HostName {
    /// [`WINDOW`].
    #[must_use]
    pub fn window() -> Self {
        Self::canonical(WINDOW)
    }

    /// Whether it is [`WINDOW`].
    #[must_use]
    pub fn is_window(&self) -> bool {
        self.as_str() == WINDOW
    }
}

impl Host {
    /// Whether it is [`WINDOW`].
    #[must_use]
    pub fn is_window(&self) -> bool {
        match self {
            Self::Name(name) => name.is_window(),
            Self::Address(_) => false,
        }
    }
}

/// What is decided on it as a destination.
pub(crate) fn denial() -> Denial {
    let hint = format!(
        "`{WINDOW}` is the sandbox's own window and no destination, no entry opens it: \
         read http://{WINDOW}/ on port 80"
    );
    Denial {
        hint: Some(hint),
        ..Denial::new(DenyReason::NotAllowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Destination, Policy};

    #[test]
    fn no_entry_makes_the_window_a_destination() {
        for list in [
            "egress.sandbox",
            "egress.sandbox:*/tcp@10.0.0.0/8",
            "a.example",
        ] {
            let policy = Policy::parse(list).unwrap();
            for (spelling, port) in [("egress.sandbox", 80), ("EGRESS.Sandbox.", 443)] {
                let to = Destination::parse(spelling, port).unwrap();
                let Decision::Deny(denial) = policy.decide(&to) else {
                    panic!("{list} opens {to}")
                };
                assert_eq!(denial.reason, DenyReason::NotAllowed, "{list}");
                let hint = denial.hint.unwrap();
                assert!(hint.contains("http://egress.sandbox/"), "{hint}");
            }
            let name = HostName::parse("egress.sandbox").unwrap();
            assert!(policy.decide_name(&name).is_none(), "{list}");
        }
    }

    #[test]
    fn names_around_it_are_names_like_any_other() {
        let policy = Policy::parse("other.sandbox, *.egress.sandbox").unwrap();
        for name in ["other.sandbox", "x.egress.sandbox"] {
            let to = Destination::parse(name, 443).unwrap();
            assert!(!to.host.is_window());
            assert!(matches!(policy.decide(&to), Decision::Allow(_)), "{name}");
        }
    }

    #[test]
    fn an_address_is_never_the_window() {
        assert!(!Host::parse("192.0.2.80").unwrap().is_window());
    }
}
