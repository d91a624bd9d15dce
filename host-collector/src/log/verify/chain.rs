//! The chain of lines: each names the digest of the one before it.

use std::collections::HashMap;

use super::{Findings, Kind, Place};
use crate::{
    log::lines::Digest,
    run_id::{hex, unhex},
};

/// The lines of runs in their order, with what they say of the lines before them.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    links: Vec<Link>,
    /// Of the line that was read last, a run's or not.
    last: Option<Digest>,
}

/// A line of a run.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) place: Place,
    digest: Digest,
    /// The digest of the line that stands before it.
    before: Option<Digest>,
    /// The digest of the run's line before it. Something else may have come between: that is a
    /// finding of its own, and does not break the chain.
    run_before: Option<Digest>,
    /// What it says of that.
    prev: Prev,
}

#[derive(Debug)]
enum Prev {
    Named(Digest),
    /// Nothing, though it should.
    Missing,
    /// Nothing, as the log's first writer does.
    Unneeded,
    /// Something that is no digest.
    Senseless,
}

impl Chain {
    /// A line of a run.
    pub(super) fn push(&mut self, place: Place, digest: Digest, prev: Option<String>, needs: bool) {
        let prev = match prev {
            Some(prev) => unhex(&prev).map_or(Prev::Senseless, Prev::Named),
            None if needs => Prev::Missing,
            None => Prev::Unneeded,
        };
        let before = self.last.replace(digest);
        let run_before = self.links.last().map(|link| link.digest);
        self.links.push(Link {
            place,
            digest,
            before,
            run_before,
            prev,
        });
    }

    /// A line of something else. The one behind it names it all the same.
    pub(super) const fn pass(&mut self, digest: Digest) {
        self.last = Some(digest);
    }

    pub(super) fn last(&self) -> Option<&Link> {
        self.links.last()
    }

    /// How many lines of runs follow the one with this digest; none if it is not there.
    pub(crate) fn after(&self, digest: &str) -> Option<u64> {
        let digest: Digest = unhex(digest)?;
        let after = self
            .links
            .iter()
            .rev()
            .position(|link| link.digest == digest);
        after.map(|lines| lines as u64)
    }

    /// The digest of the last line, in hexadecimal.
    pub(crate) fn end(&self) -> Option<String> {
        self.links.last().map(|link| hex(&link.digest))
    }

    pub(super) fn check(&self, dropped_runs: u64, findings: &mut Findings) {
        let mut places = None;
        for link in &self.links {
            let Some((kind, why)) = link.fault(dropped_runs, || {
                let places = places.get_or_insert_with(|| self.places());
                link.named().and_then(|prev| places.get(&prev).copied())
            }) else {
                continue;
            };
            findings.add(link.place, kind, why);
        }
    }

    fn places(&self) -> HashMap<Digest, Place> {
        self.links
            .iter()
            .map(|link| (link.digest, link.place))
            .collect()
    }
}

impl Link {
    const fn named(&self) -> Option<Digest> {
        match self.prev {
            Prev::Named(prev) => Some(prev),
            Prev::Missing | Prev::Unneeded | Prev::Senseless => None,
        }
    }

    fn fault(
        &self,
        dropped_runs: u64,
        elsewhere: impl FnOnce() -> Option<Place>,
    ) -> Option<(Kind, String)> {
        match (&self.prev, self.before) {
            (Prev::Named(prev), Some(before)) if *prev == before => None,
            (Prev::Named(prev), Some(_)) if Some(*prev) == self.run_before => None,
            (Prev::Unneeded, _) => None,
            (Prev::Missing, None) if dropped_runs == 0 => None,
            (Prev::Named(_), None) if dropped_runs > 0 => None,
            (Prev::Senseless, _) => Some((
                Kind::Chain,
                "its `prev` is no SHA-256 in hexadecimal".into(),
            )),
            (Prev::Missing, _) => Some((
                Kind::Chain,
                "it has no `prev`, and is not the first line that was written".into(),
            )),
            (Prev::Named(_), before) => Some(match (elsewhere(), before) {
                (Some(place), _) => (
                    Kind::Order,
                    format!("it was written behind {place}, and stands elsewhere"),
                ),
                (None, Some(_)) => (
                    Kind::Chain,
                    "it does not follow the line before it: that one was changed, or lines \
                     between them were removed"
                        .into(),
                ),
                (None, None) => (
                    Kind::Beginning,
                    "there were lines before it, and no rotation has dropped any".into(),
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(line: u64) -> Place {
        Place {
            generation: 0,
            line,
        }
    }

    fn faults(prevs: &[(Option<String>, bool)], dropped_runs: u64) -> Vec<(u64, Kind)> {
        let mut chain = Chain::default();
        for (line, (prev, needs)) in (1..).zip(prevs) {
            let digest = [u8::try_from(line).unwrap(); 32];
            chain.push(place(line), digest, prev.clone(), *needs);
        }
        let mut findings = Findings::default();
        chain.check(dropped_runs, &mut findings);
        let shown = findings.shown().iter();
        shown
            .map(|finding| (finding.place.line, finding.kind))
            .collect()
    }

    fn named(digit: u8) -> (Option<String>, bool) {
        (Some(hex(&[digit; 32])), true)
    }

    #[test]
    fn what_a_first_line_says_must_fit_what_was_dropped() {
        for (first, dropped, expected) in [
            (named(9), 0, Some(Kind::Beginning)),
            (named(9), 3, None),
            ((None, true), 0, None),
            ((None, true), 3, Some(Kind::Chain)),
            ((None, false), 3, None),
        ] {
            let found = faults(std::slice::from_ref(&first), dropped);
            assert_eq!(
                found,
                Vec::from_iter(expected.map(|kind| (1, kind))),
                "{first:?}"
            );
        }
    }

    #[test]
    fn a_line_without_a_digest_before_it_is_found_unless_it_is_the_first_writer_s() {
        let start = || (None, true);
        assert_eq!(faults(&[start(), (None, true)], 0), [(2, Kind::Chain)]);
        assert_eq!(faults(&[start(), (None, false), named(2)], 0), []);
        assert_eq!(
            faults(&[start(), (Some("zz".into()), true)], 0),
            [(2, Kind::Chain)]
        );
    }

    #[test]
    fn a_line_that_follows_another_is_told_from_one_that_follows_none() {
        let start = || (None, true);
        assert_eq!(
            faults(&[start(), named(1), named(1)], 0),
            [(3, Kind::Order)]
        );
        assert_eq!(
            faults(&[start(), named(1), named(7)], 0),
            [(3, Kind::Chain)]
        );
    }

    #[test]
    fn what_follows_a_digest_is_counted() {
        let mut chain = Chain::default();
        for line in 1..=4 {
            chain.push(place(u64::from(line)), [line; 32], None, false);
        }
        assert_eq!(chain.after(&hex(&[2; 32])), Some(2));
        assert_eq!(chain.after(&hex(&[4; 32])), Some(0));
        assert_eq!(chain.after(&hex(&[5; 32])), None);
        assert_eq!(chain.after("x"), None);
        assert_eq!(chain.end(), Some(hex(&[4; 32])));
    }
}
