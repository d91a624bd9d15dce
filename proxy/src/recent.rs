//! What was refused lately, for whoever is inside and wonders why something does not work.
//!
//! It is a memory and no record: short, gone with this process, and without what the packet filter
//! refused. The record is `account`, which forgets each batch once PID 1 has it.

use std::collections::VecDeque;

use policy::DenyReason;
use report::{Denied, Printable, Target, Transport, link::SELF_TEST_NAME};

/// The latest kinds of refused attempt.
#[derive(Debug, Default, Clone)]
pub(crate) struct Recent {
    /// The latest first.
    kinds: VecDeque<Refusals>,
    attempts: u64,
}

/// Refused attempts of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusals {
    pub(crate) target: Target,
    pub(crate) proto: Transport,
    pub(crate) reason: DenyReason,
    pub(crate) count: u64,
    /// In milliseconds since the run began.
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
    pub(crate) hint: Option<Printable>,
}

impl Recent {
    /// Notes refused attempts and what was said about them, unless they are PID 1's own.
    pub(crate) fn note(&mut self, denied: &Denied, hint: Option<&str>) {
        let host = denied.target.host.as_ref();
        if host.is_some_and(|host| host.as_str() == SELF_TEST_NAME) {
            return;
        }
        self.attempts = self.attempts.saturating_add(denied.count);
        let place = self.kinds.iter().position(|known| known.is_like(denied));
        let mut kind = match place.and_then(|place| self.kinds.remove(place)) {
            Some(known) => known,
            None => Refusals::none_like(denied),
        };
        kind.count = kind.count.saturating_add(denied.count);
        kind.first_ms = kind.first_ms.min(denied.first);
        kind.last_ms = kind.last_ms.max(denied.last);
        if kind.hint.is_none() {
            kind.hint = hint.map(Printable::new);
        }
        self.kinds.truncate(MAX_KINDS - 1);
        self.kinds.push_front(kind);
    }

    /// The kinds that are remembered, the latest first.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Refusals> {
        self.kinds.iter()
    }

    /// All refused attempts, those of forgotten kinds among them.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts
    }
}

impl Refusals {
    fn none_like(denied: &Denied) -> Self {
        Self {
            target: denied.target.clone(),
            proto: denied.proto,
            reason: denied.reason,
            count: 0,
            first_ms: denied.first,
            last_ms: denied.last,
            hint: None,
        }
    }

    fn is_like(&self, denied: &Denied) -> bool {
        self.reason == denied.reason && self.proto == denied.proto && self.target == denied.target
    }
}

/// How many kinds are remembered: about 40 KiB at the most, and looked through at each refusal.
const MAX_KINDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(name: &str, at: u64) -> Denied {
        Denied {
            target: Target {
                host: Some(Printable::new(name)),
                address: None,
                port: Some(443),
            },
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 1,
            first: at,
            last: at,
            uid: None,
        }
    }

    fn names(recent: &Recent) -> Vec<String> {
        let hosts = recent.kinds().filter_map(|kind| kind.target.host.as_ref());
        hosts.map(ToString::to_string).collect()
    }

    #[test]
    fn one_kind_is_one_entry_with_its_count_and_its_times() {
        let mut recent = Recent::default();
        for at in [5, 3, 9] {
            recent.note(&denied("a.example", at), None);
        }
        let kinds: Vec<_> = recent.kinds().collect();
        assert_eq!(kinds.len(), 1);
        assert_eq!(
            (kinds[0].count, kinds[0].first_ms, kinds[0].last_ms),
            (3, 3, 9)
        );
    }

    #[test]
    fn whatever_differs_in_target_transport_or_reason_is_another_kind() {
        let mut recent = Recent::default();
        let first = denied("a.example", 1);
        recent.note(&first, None);
        recent.note(&denied("b.example", 1), None);
        recent.note(
            &Denied {
                proto: Transport::Udp,
                ..first.clone()
            },
            None,
        );
        recent.note(
            &Denied {
                reason: DenyReason::Limit,
                ..first
            },
            None,
        );
        assert_eq!(recent.kinds().count(), 4);
    }

    #[test]
    fn the_latest_stands_first_even_if_it_is_an_old_kind() {
        let mut recent = Recent::default();
        for name in ["a", "b", "c", "a"] {
            recent.note(&denied(name, 1), None);
        }
        assert_eq!(names(&recent), ["a", "c", "b"]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_counted_is_not() {
        let mut recent = Recent::default();
        for n in 0..1000 {
            recent.note(&denied(&format!("n{n}.example"), n), None);
        }
        assert_eq!(recent.kinds().count(), MAX_KINDS);
        assert_eq!(names(&recent)[0], "n999.example");
        assert_eq!(recent.attempts(), 1000);
    }

    #[test]
    fn what_pid_1_has_refused_to_itself_is_nobody_s_attempt() {
        let mut recent = Recent::default();
        recent.note(&denied("self-test.invalid", 1), None);
        assert_eq!((recent.kinds().count(), recent.attempts()), (0, 0));
    }

    #[test]
    fn the_first_hint_is_kept_and_is_printable() {
        let mut recent = Recent::default();
        recent.note(&denied("a", 1), None);
        recent.note(&denied("a", 2), Some("add\n`a`"));
        recent.note(&denied("a", 3), Some("another"));
        let hint = recent.kinds().next().unwrap().hint.clone().unwrap();
        assert_eq!(hint.as_str(), "add\\u{a}`a`");
    }
}
