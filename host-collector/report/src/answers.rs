//! What a container said of the lists that it was given while it ran.

use std::collections::BTreeMap;

use crate::{PolicyOutcome, PolicyReport, Printable};

/// What was said of each list, by generation and digest; the first word counts.
///
/// A container may speak of lists that it was never given. What is kept is bounded, and the lowest
/// generations are, which are those that a host gives.
#[derive(Debug, Default, Clone)]
pub struct Answers {
    said: BTreeMap<(u64, Printable), Answer>,
    dropped: u64,
}

/// What was said of one list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether it is in force.
    pub outcome: PolicyOutcome,
    /// When that was said, in milliseconds since the run began.
    pub at: u64,
    /// Why not, where it is not.
    pub detail: Option<Printable>,
}

impl Answers {
    /// The most that are kept.
    pub const MOST: usize = 1024;

    /// Takes in what was said at that time, in milliseconds since the run began.
    pub fn add(&mut self, report: &PolicyReport, at: u64) {
        let key = (report.generation, report.digest.clone());
        self.said.entry(key).or_insert_with(|| Answer {
            outcome: report.outcome,
            at,
            detail: report.detail.clone(),
        });
        if self.said.len() > Self::MOST {
            self.said.pop_last();
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// What was said of the list of this generation that has this digest.
    #[must_use]
    pub fn on(&self, generation: u64, digest: &str) -> Option<&Answer> {
        self.said.get(&(generation, Printable::new(digest)))
    }

    /// The lists that something was said of.
    pub fn spoken_of(&self) -> impl Iterator<Item = (u64, &Printable)> {
        self.said
            .keys()
            .map(|(generation, digest)| (*generation, digest))
    }

    /// How many more there were than are kept.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(generation: u64, digest: &str, outcome: PolicyOutcome) -> PolicyReport {
        PolicyReport {
            generation,
            digest: Printable::new(digest),
            outcome,
            detail: None,
        }
    }

    #[test]
    fn the_first_word_on_a_list_counts() {
        let mut answers = Answers::default();
        answers.add(&report(2, "ab", PolicyOutcome::InForce), 5);
        answers.add(&report(2, "ab", PolicyOutcome::Refused), 9);
        let answer = answers.on(2, "ab").unwrap();
        assert_eq!((answer.outcome, answer.at), (PolicyOutcome::InForce, 5));
    }

    #[test]
    fn a_word_on_another_list_of_the_generation_is_none_on_this_one() {
        let mut answers = Answers::default();
        answers.add(&report(2, "cd", PolicyOutcome::InForce), 5);
        assert_eq!(answers.on(2, "ab"), None);
        answers.add(&report(2, "ab", PolicyOutcome::Refused), 6);
        assert_eq!(answers.on(2, "ab").unwrap().outcome, PolicyOutcome::Refused);
        assert_eq!(answers.spoken_of().count(), 2);
    }

    #[test]
    fn invented_generations_cannot_crowd_out_those_that_were_given() {
        let mut answers = Answers::default();
        for generation in 0..3000 {
            answers.add(
                &report(1_000_000 + generation, "x", PolicyOutcome::InForce),
                1,
            );
        }
        answers.add(&report(2, "ab", PolicyOutcome::InForce), 5);
        assert!(answers.on(2, "ab").is_some());
        assert_eq!(answers.spoken_of().count(), Answers::MOST);
        assert_eq!(answers.dropped(), 3001 - Answers::MOST as u64);
    }
}
