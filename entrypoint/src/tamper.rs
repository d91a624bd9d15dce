//! Answers whoever changes the rules beside PID 1: they are loaded again, it is told, and where they
//! cannot be had again, or not for long, the guest ends.
//!
//! There is no pause between two attempts, because the rules would be absent in it; there is a
//! bound on how many there are.

use std::{collections::VecDeque, time::Duration};

use report::GapKind;
use tokio::time::Instant;

use crate::{
    account::Account,
    firewall::{Finding, Firewall},
};

/// What is remembered between two looks at the rules.
#[derive(Debug, Default)]
pub(crate) struct TamperWatch {
    /// When they were last known to be ours, in milliseconds since the run began.
    good_at: u64,
    reloads: VecDeque<Instant>,
    given_up: bool,
    has_found: bool,
}

/// What is to be done about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Answer {
    /// Nothing: the rules are in force.
    GoOn,
    /// The guest is to end at once.
    EndGuest,
}

impl TamperWatch {
    /// Watches rules that have just been loaded and proved.
    pub(crate) fn new(account: &Account) -> Self {
        Self {
            good_at: account.now(),
            ..Self::default()
        }
    }

    /// Whether rules were found changed, and the counters with them.
    pub(crate) const fn has_found(&self) -> bool {
        self.has_found
    }

    /// Answers a finding.
    pub(crate) fn answer(
        &mut self,
        finding: Finding,
        account: &mut Account,
        firewall: &mut Firewall,
    ) -> Answer {
        if self.given_up {
            return Answer::GoOn;
        }
        self.has_found |= matches!(finding, Finding::Changed(_) | Finding::Overridden(_));
        match finding {
            Finding::Nothing => self.good_at = account.now(),
            Finding::Unseen => {}
            Finding::Changed(by) => {
                let what = format!("the rules were changed by {by}");
                account.begin_gap(GapKind::Tamper, self.good_at, &what);
                if let Err(why) = self.restore(account, firewall) {
                    return self.give_up(&format!("{what}; {why}"), account);
                }
                let what = format!("{what}, and loaded again");
                account.end_gap(GapKind::Tamper, self.good_at, &what);
                self.good_at = account.now();
            }
            Finding::Overridden(what) => return self.give_up(&what, account),
        }
        Answer::GoOn
    }

    /// Loads the rules again, unless that was done too often of late.
    fn restore(&mut self, account: &Account, firewall: &mut Firewall) -> Result<(), String> {
        if !self.may_reload(Instant::now()) {
            return Err(format!(
                "they had been loaded again {MOST} times within {} s",
                WITHIN.as_secs()
            ));
        }
        firewall
            .reload(account.sampled())
            .map_err(|failure| failure.one_line())
    }

    fn may_reload(&mut self, now: Instant) -> bool {
        while self
            .reloads
            .front()
            .is_some_and(|&at| now.duration_since(at) >= WITHIN)
        {
            self.reloads.pop_front();
        }
        if self.reloads.len() >= MOST {
            return false;
        }
        self.reloads.push_back(now);
        true
    }

    /// The gap stays open: it lasts as long as the run.
    fn give_up(&mut self, why: &str, account: &mut Account) -> Answer {
        self.given_up = true;
        let what = format!("{why}; the guest was ended");
        account.begin_gap(GapKind::Tamper, self.good_at, &what);
        Answer::EndGuest
    }
}

/// How often the rules are loaded again, in how long. Whoever goes on after that means it.
const MOST: usize = 8;
const WITHIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_now_and_then_is_mended_for_ever_and_a_flood_of_them_is_not() {
        let mut watch = TamperWatch::default();
        let start = Instant::now();
        for minute in 0..100 {
            assert!(watch.may_reload(start + WITHIN * minute), "{minute}");
        }
        let last = start + WITHIN * 100;
        let mended = (0..100).filter(|_| watch.may_reload(last)).count();
        assert_eq!(mended, MOST);
        assert!(watch.may_reload(last + WITHIN));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut watch = TamperWatch::default();
        let start = Instant::now();
        for second in 0..1000 {
            let _ = watch.may_reload(start + Duration::from_secs(second));
        }
        assert!(watch.reloads.len() <= MOST);
    }
}
