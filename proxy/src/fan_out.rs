//! How many names below each wildcard were used, and that there is an end to them.
//!
//! Whoever may make up labels below an allowed domain may write a message into them, and its name
//! server reads it. A run that is what it says it is uses a few names of a domain.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use policy::{Denial, DenyReason, HostName};

/// The names that wildcards allowed in this run.
#[derive(Debug, Default)]
pub(crate) struct FanOut(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    below: HashMap<Box<str>, HashSet<HostName>>,
    names: usize,
}

/// Whether a name that may be used was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Known,
    New,
}

impl FanOut {
    /// Lets `name` be used below `domain`: again, or as one of the first [`CEILING`].
    pub(crate) fn admit(&self, domain: &str, name: &HostName) -> Result<(), Denial> {
        let mut used = self.used();
        if used.check(domain, name)? == Standing::New {
            let names = used.below.entry(domain.into()).or_default();
            names.insert(name.clone());
            used.names += 1;
        }
        Ok(())
    }

    /// Whether [`FanOut::admit`] would let `name` be used.
    pub(crate) fn check(&self, domain: &str, name: &HostName) -> Result<(), Denial> {
        self.used().check(domain, name).map(drop)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn check(&self, domain: &str, name: &HostName) -> Result<Standing, Denial> {
        let seen = self.below.get(domain);
        if seen.is_some_and(|seen| seen.contains(name)) {
            return Ok(Standing::Known);
        }
        if seen.map_or(0, HashSet::len) >= CEILING || self.names >= CEILING_OF_ALL {
            let hint = format!(
                "{CEILING} names below `{domain}` were used in this run, or {CEILING_OF_ALL} \
                 below all wildcards; add `{name}` itself"
            );
            return Err(Denial {
                nearest: Some(format!("*.{domain}")),
                hint: Some(hint),
                ..Denial::new(DenyReason::Limit)
            });
        }
        Ok(Standing::New)
    }
}

/// Distinct names below one wildcard's domain in a run.
const CEILING: usize = 512;
/// Distinct names below all of them: a list of many wildcards must not cost memory without bound.
const CEILING_OF_ALL: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(label: usize, domain: &str) -> HostName {
        HostName::parse(&format!("n{label}.{domain}")).unwrap()
    }

    #[test]
    fn the_name_after_the_512th_is_denied_and_those_before_are_not() {
        let used = FanOut::default();
        for label in 0..CEILING {
            assert_eq!(used.admit("a.example", &name(label, "a.example")), Ok(()));
        }
        let denial = used.admit("a.example", &name(CEILING, "a.example"));
        let denial = denial.unwrap_err();
        assert_eq!(denial.reason, DenyReason::Limit);
        assert!(denial.hint.unwrap().contains("`n512.a.example`"));
        assert_eq!(used.admit("a.example", &name(0, "a.example")), Ok(()));
        assert_eq!(used.admit("b.example", &name(0, "b.example")), Ok(()));
    }

    #[test]
    fn a_check_says_what_would_be_admitted_and_admits_nothing() {
        let used = FanOut::default();
        for label in 0..2 * CEILING {
            assert_eq!(used.check("a.example", &name(label, "a.example")), Ok(()));
        }
        for label in 0..CEILING {
            assert_eq!(used.admit("a.example", &name(label, "a.example")), Ok(()));
        }
        assert_eq!(used.check("a.example", &name(0, "a.example")), Ok(()));
        let checked = used.check("a.example", &name(CEILING, "a.example"));
        assert_eq!(
            checked,
            used.admit("a.example", &name(CEILING, "a.example"))
        );
    }

    #[test]
    fn all_wildcards_together_have_an_end_too() {
        let used = FanOut::default();
        for domain in 0..CEILING_OF_ALL / CEILING {
            let domain = format!("d{domain}.example");
            for label in 0..CEILING {
                assert_eq!(used.admit(&domain, &name(label, &domain)), Ok(()));
            }
        }
        assert!(used.admit("z.example", &name(0, "z.example")).is_err());
    }
}
