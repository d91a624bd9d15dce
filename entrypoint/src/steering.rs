//! What the host orders of a run that goes on: another allowlist, or its end.
//!
//! A list takes effect in two steps. First the rules follow it, in one transaction; then the proxy
//! decides by it, and says so. In between nothing is open that neither list allows: the guest itself
//! is held to the new one, and what the proxy still lets through by the old one has to pass rules that
//! follow the new. What the proxy asks to be opened by the old list is not, see [`crate::watch`].
//! Where addresses decide, the second step is that the names of the list have been asked for.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
};

use policy::{Digest, Policy, PolicyError};
use report::{List, PolicyOrder, PolicyOutcome, PolicyReport, Printable, link::Succession};

use crate::allow;

/// What is to become of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// Another list is to be in force.
    Policy(PolicyOrder),
    /// The guest is to end, by itself within so many milliseconds.
    Stop {
        /// How many.
        grace_ms: u64,
    },
}

/// Lists on their way into force, one after the other.
#[derive(Debug)]
pub(crate) struct Steering {
    /// Where lists are laid that no frame holds.
    directory: PathBuf,
    in_force: Identity,
    /// What of that one does not work as it says.
    shortfall: Option<Printable>,
    /// The one that the rules follow and the proxy has yet to take.
    under_way: Option<Identity>,
    waiting: VecDeque<PolicyOrder>,
}

/// Which list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    generation: u64,
    digest: Printable,
}

/// A list that may follow the one in force.
#[derive(Debug)]
pub(crate) struct Next {
    /// As it is decided by.
    pub(crate) policy: Policy,
    /// As the proxy is told.
    pub(crate) succession: Succession,
}

/// What is to be done about an order.
#[derive(Debug)]
pub(crate) enum Step {
    /// The rules and the proxy are to follow this list.
    Follow(Box<Next>),
    /// The host is to be told.
    Tell(PolicyReport),
}

/// Why a list is not followed.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("generation {generation} is not later than {in_force}, which is in force")]
    Stale { generation: u64, in_force: u64 },
    #[error("more than {MOST_WAITING} lists at once; wait for an answer")]
    Hasty,
    #[error("`{0}` is no name of a file beside the channel")]
    Name(Printable),
    #[error("{0}: {1}; look at the channel's directory on the host")]
    Unreadable(Printable, io::Error),
    #[error(transparent)]
    List(#[from] PolicyError),
    #[error(
        "the list has digest {ours} here and {theirs} on the host: the two are of different versions"
    )]
    Digest { ours: Digest, theirs: Printable },
}

impl Steering {
    /// Begins with the list of the launch.
    pub(crate) fn new(socket: &Path, generation: u64, digest: Digest) -> Self {
        Self {
            directory: socket.parent().unwrap_or(socket).to_owned(),
            in_force: Identity {
                generation,
                digest: Printable::new(&digest.to_string()),
            },
            shortfall: None,
            under_way: None,
            waiting: VecDeque::new(),
        }
    }

    /// Takes an order; one too many is refused at once.
    pub(crate) fn take(&mut self, order: PolicyOrder) -> Option<PolicyReport> {
        if self.waiting.len() >= MOST_WAITING {
            return Some(refused(&order, &Refused::Hasty));
        }
        self.waiting.push_back(order);
        None
    }

    /// What to do next; nothing while a list is under way, or where none waits.
    pub(crate) fn step(&mut self) -> Option<Step> {
        if self.under_way.is_some() {
            return None;
        }
        let order = self.waiting.pop_front()?;
        let asked = Identity::of(&order);
        // A host that was killed before it heard the answer asks again.
        if asked == self.in_force {
            let shortfall = self.shortfall.clone();
            return Some(Step::Tell(asked.report(PolicyOutcome::InForce, shortfall)));
        }
        match self.read(&order) {
            Ok(next) => {
                self.under_way = Some(asked);
                Some(Step::Follow(Box::new(next)))
            }
            Err(error) => Some(Step::Tell(refused(&order, &error))),
        }
    }

    /// The list that is under way came to nothing: the one before it stands.
    pub(crate) fn give_up(&mut self, why: &str) -> Option<PolicyReport> {
        let given_up = self.under_way.take()?;
        Some(given_up.report(PolicyOutcome::Refused, Some(Printable::new(why))))
    }

    /// Takes note that the proxy decides by this generation; what is in force by that is to be told,
    /// with what of it does not work as it says.
    pub(crate) fn arrived(
        &mut self,
        generation: u64,
        shortfall: impl FnOnce() -> Option<Printable>,
    ) -> Option<PolicyReport> {
        let arrived = self
            .under_way
            .take_if(|under_way| under_way.generation <= generation)?;
        self.in_force = arrived;
        self.shortfall = shortfall();
        let shortfall = self.shortfall.clone();
        Some(self.in_force.report(PolicyOutcome::InForce, shortfall))
    }

    fn read(&self, order: &PolicyOrder) -> Result<Next, Refused> {
        let in_force = self.in_force.generation;
        if order.generation <= in_force {
            let generation = order.generation;
            return Err(Refused::Stale {
                generation,
                in_force,
            });
        }
        let policy = match &order.list {
            List::Allow(entries) => Policy::from_entries(entries)?,
            List::File(name) => Policy::parse(&self.file(name)?)?,
        };
        let ours = policy.digest();
        if ours.to_string() != order.digest.as_str() {
            let theirs = order.digest.clone();
            return Err(Refused::Digest { ours, theirs });
        }
        let succession = Succession {
            generation: order.generation,
            allow: policy.entries(),
            policy_digest: ours.to_string(),
        };
        Ok(Next { policy, succession })
    }

    fn file(&self, name: &str) -> Result<String, Refused> {
        let shown = || Printable::new(name);
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(Refused::Name(shown()));
        }
        allow::read(&self.directory.join(name)).map_err(|error| Refused::Unreadable(shown(), error))
    }
}

impl Identity {
    fn of(order: &PolicyOrder) -> Self {
        Self {
            generation: order.generation,
            digest: order.digest.clone(),
        }
    }

    fn report(&self, outcome: PolicyOutcome, detail: Option<Printable>) -> PolicyReport {
        PolicyReport {
            generation: self.generation,
            digest: self.digest.clone(),
            outcome,
            detail,
        }
    }
}

fn refused(order: &PolicyOrder, why: &Refused) -> PolicyReport {
    let detail = Printable::new(&why.to_string());
    Identity::of(order).report(PolicyOutcome::Refused, Some(detail))
}

/// A host gives one, waits for the answer, and then gives another.
const MOST_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn digest(list: &str) -> Digest {
        Policy::parse(list).unwrap().digest()
    }

    fn order(generation: u64, list: &str) -> PolicyOrder {
        PolicyOrder {
            generation,
            digest: Printable::new(&digest(list).to_string()),
            list: List::Allow(vec![list.to_owned()]),
        }
    }

    fn steering() -> Steering {
        let dir = std::env::temp_dir().join(format!("steering-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Steering::new(&dir.join("report.sock"), 1, digest("a.example"))
    }

    fn told(step: Option<Step>) -> PolicyReport {
        match step {
            Some(Step::Tell(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_list_is_in_force_once_the_proxy_has_it_and_not_before() {
        let mut steering = steering();
        assert_eq!(steering.take(order(2, "b.example")), None);
        assert_eq!(steering.take(order(3, "c.example")), None);
        let Some(Step::Follow(next)) = steering.step() else {
            panic!("not followed")
        };
        assert_eq!(next.succession.allow, ["b.example"]);
        assert!(steering.step().is_none(), "one after the other");
        assert_eq!(steering.arrived(1, || None), None);
        let report = steering.arrived(2, || None).unwrap();
        assert_eq!(
            (report.generation, report.outcome),
            (2, PolicyOutcome::InForce)
        );
        assert!(matches!(steering.step(), Some(Step::Follow(_))));
        assert_eq!(steering.arrived(3, || None).unwrap().generation, 3);
        assert_eq!(steering.arrived(3, || None), None);
    }

    #[test]
    fn what_does_not_work_of_a_list_in_force_is_told_as_often_as_it_is_asked() {
        let mut steering = steering();
        assert_eq!(steering.take(order(2, "b.example")), None);
        assert!(matches!(steering.step(), Some(Step::Follow(_))));
        let not_so = || Some(Printable::new("not resolved yet: b.example"));
        let first = steering.arrived(2, not_so).unwrap();
        assert_eq!(
            (first.outcome, &first.detail),
            (PolicyOutcome::InForce, &not_so())
        );
        assert_eq!(steering.take(order(2, "b.example")), None);
        assert_eq!(told(steering.step()), first);
    }

    #[test]
    fn a_bad_list_is_refused_in_one_line_and_the_one_in_force_stays() {
        let mut steering = steering();
        let file = |name: &str| PolicyOrder {
            list: List::File(name.into()),
            ..order(2, "b.example")
        };
        let other = PolicyOrder {
            list: List::Allow(vec!["c.example".into()]),
            ..order(2, "b.example")
        };
        let malformed = PolicyOrder {
            list: List::Allow(vec!["*".into()]),
            ..order(2, "b.example")
        };
        for (order, why) in [
            (order(1, "b.example"), "not later than 1"),
            (order(0, "a.example"), "not later than 1"),
            (other, "has digest"),
            (malformed, "*"),
            (file("../run.json"), "no name of a file"),
            (file(".hidden"), "no name of a file"),
            (file(""), "no name of a file"),
            (file("a/b"), "no name of a file"),
            (file("nothing"), "nothing: "),
        ] {
            assert_eq!(steering.take(order), None);
            let report = told(steering.step());
            assert_eq!(report.outcome, PolicyOutcome::Refused, "{why}");
            let detail = report.detail.unwrap().to_string();
            assert!(detail.contains(why) && !detail.contains('\n'), "{detail}");
        }
        assert_eq!(steering.in_force.generation, 1);
        assert_eq!(steering.under_way, None);
    }

    #[test]
    fn a_list_that_no_frame_holds_is_read_from_its_file() {
        let mut steering = steering();
        fs::write(
            steering.directory.join("policy-2"),
            "b.example\nc.example\n",
        )
        .unwrap();
        let order = PolicyOrder {
            list: List::File("policy-2".into()),
            ..order(2, "b.example, c.example")
        };
        assert_eq!(steering.take(order), None);
        let Some(Step::Follow(next)) = steering.step() else {
            panic!("not followed")
        };
        assert_eq!(next.policy.entries(), ["b.example", "c.example"]);
    }

    #[test]
    fn a_host_that_asks_again_is_told_again() {
        let mut steering = steering();
        for _ in 0..2 {
            assert_eq!(steering.take(order(1, "a.example")), None);
            assert_eq!(told(steering.step()).outcome, PolicyOutcome::InForce);
        }
    }

    #[test]
    fn what_came_to_nothing_leaves_the_list_before_it() {
        let mut steering = steering();
        assert_eq!(steering.give_up("x"), None);
        assert_eq!(steering.take(order(2, "b.example")), None);
        assert!(matches!(steering.step(), Some(Step::Follow(_))));
        let report = steering.give_up("no nft").unwrap();
        assert_eq!(report.outcome, PolicyOutcome::Refused);
        assert_eq!(report.detail, Some(Printable::new("no nft")));
        assert_eq!(steering.in_force.generation, 1);
    }

    #[test]
    fn orders_without_end_are_refused() {
        let mut steering = steering();
        for generation in 0..16 {
            assert_eq!(steering.take(order(2 + generation, "b.example")), None);
        }
        let report = steering.take(order(99, "b.example")).unwrap();
        assert_eq!(report.outcome, PolicyOutcome::Refused);
    }

    #[test]
    fn a_list_that_is_asked_for_again_on_its_way_is_told_of_twice() {
        let mut steering = steering();
        for _ in 0..2 {
            assert_eq!(steering.take(order(2, "b.example")), None);
        }
        assert!(matches!(steering.step(), Some(Step::Follow(_))));
        assert!(steering.arrived(2, || None).is_some());
        let again = told(steering.step());
        assert_eq!(
            (again.generation, again.outcome),
            (2, PolicyOutcome::InForce)
        );
    }

    #[test]
    fn another_list_of_the_generation_in_force_is_refused() {
        let mut steering = steering();
        assert_eq!(steering.take(order(1, "b.example")), None);
        assert_eq!(told(steering.step()).outcome, PolicyOutcome::Refused);
    }

    #[test]
    fn a_proxy_that_started_with_a_later_list_has_the_one_under_way() {
        let mut steering = steering();
        assert_eq!(steering.take(order(5, "b.example")), None);
        assert!(matches!(steering.step(), Some(Step::Follow(_))));
        assert_eq!(steering.arrived(6, || None).unwrap().generation, 5);
    }
}
