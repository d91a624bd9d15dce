//! What others did to the rules, as far as PID 1 has to answer it.

/// What others did to the rules.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Nothing of consequence.
    #[default]
    Nothing,
    /// It could not be seen this time.
    Unseen,
    /// They changed them: who.
    Changed(String),
    /// They overrode them, which loading them again does not mend: how, and who.
    Overridden(String),
}

impl Finding {
    /// This, or what was found besides where nothing is known of this.
    pub(super) fn or(self, other: Self) -> Self {
        match self {
            Self::Nothing | Self::Unseen => other,
            Self::Changed(_) | Self::Overridden(_) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_first_is_not_forgotten_for_what_was_found_besides() {
        let changed = || Finding::Changed("a".to_owned());
        let overridden = || Finding::Overridden("b".to_owned());
        for (first, second, both) in [
            (Finding::Nothing, changed(), changed()),
            (Finding::Unseen, changed(), changed()),
            (changed(), Finding::Nothing, changed()),
            (overridden(), changed(), overridden()),
            (Finding::Nothing, Finding::Nothing, Finding::Nothing),
        ] {
            assert_eq!(first.or(second), both);
        }
    }
}
