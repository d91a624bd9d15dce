//! The list that decides, which PID 1 may exchange for another while the proxy serves.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use ipnet::IpNet;
use policy::Policy;
use report::{
    Printable,
    link::{FromProxy, Succession},
};
use tokio::sync::{Mutex as Turn, mpsc};

use crate::settings::{SettingsError, policy_of};

/// A list, and what is asked of it often enough to be kept.
#[derive(Debug)]
pub(crate) struct Ruling {
    /// Which list it is: 1 at the launch.
    pub(crate) generation: u64,
    pub(crate) policy: Policy,
    /// The ports that nftables redirects: asked for once, since it takes a look at every entry.
    pub(crate) stream_ports: BTreeSet<u16>,
}

impl Ruling {
    pub(crate) fn new(generation: u64, policy: Policy) -> Self {
        Self {
            generation,
            stream_ports: policy.stream_ports(),
            policy,
        }
    }
}

/// The ruling of now, and how it becomes another.
///
/// Whoever decides takes the whole of it, so that no decision is made half by one list and half by
/// the other.
#[derive(Debug)]
pub(crate) struct Rulings {
    now: RwLock<Arc<Ruling>>,
    /// Guarded under every list: the container's own addresses and its gateways.
    guard: Vec<IpNet>,
    answer: mpsc::Sender<FromProxy>,
    answers: Turn<mpsc::Receiver<FromProxy>>,
}

impl Rulings {
    /// Begins with this one.
    pub(crate) fn new(first: Ruling, guard: Vec<IpNet>) -> Self {
        let (answer, answers) = mpsc::channel(UNANSWERED);
        Self {
            now: RwLock::new(Arc::new(first)),
            guard,
            answer,
            answers: Turn::new(answers),
        }
    }

    /// What decides now.
    pub(crate) fn now(&self) -> Arc<Ruling> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has another list decide from now on, and PID 1 told. One that cannot be read leaves
    /// everything as it is.
    pub(crate) fn succeed(&self, next: &Succession) {
        let refused = self.exchange(next).err();
        let answer = FromProxy::Policy {
            generation: next.generation,
            refused: refused.map(|error| Printable::new(&error.to_string())),
        };
        // PID 1 gives a list once the one before it was answered, so there is room.
        let _ = self.answer.try_send(answer);
    }

    fn exchange(&self, next: &Succession) -> Result<(), SettingsError> {
        let policy = policy_of(&next.allow, &next.policy_digest, &self.guard)?;
        let ruling = Arc::new(Ruling::new(next.generation, policy));
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = ruling;
        Ok(())
    }

    /// The next answer to PID 1. Safe to drop and to call again.
    pub(crate) async fn answer(&self) -> FromProxy {
        match self.answers.lock().await.recv().await {
            Some(answer) => answer,
            // The other end is ours as well.
            None => std::future::pending().await,
        }
    }
}

const UNANSWERED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn rulings(list: &str) -> Rulings {
        let guard = vec!["198.18.0.7/32".parse().unwrap()];
        Rulings::new(Ruling::new(1, Policy::parse(list).unwrap()), guard)
    }

    fn next(generation: u64, list: &str) -> Succession {
        let policy = Policy::parse(list).unwrap();
        Succession {
            generation,
            allow: policy.entries(),
            policy_digest: policy.digest().to_string(),
        }
    }

    #[tokio::test]
    async fn another_list_decides_whole_and_pid_1_is_told() {
        let rulings = rulings("a.example");
        let before = rulings.now();
        rulings.succeed(&next(2, "b.example:8443/tls"));
        let now = rulings.now();
        assert_eq!(now.generation, 2);
        assert_eq!(now.policy.entries(), ["b.example:8443/tls"]);
        assert!(now.stream_ports.contains(&8443));
        assert_eq!(before.policy.entries(), ["a.example"]);
        assert_eq!(
            rulings.answer().await,
            FromProxy::Policy {
                generation: 2,
                refused: None
            }
        );
    }

    #[tokio::test]
    async fn a_list_that_cannot_be_read_or_is_another_leaves_the_one_before_it() {
        let rulings = rulings("a.example");
        let misread = Succession {
            allow: vec!["c.example".into()],
            ..next(2, "b.example")
        };
        let malformed = Succession {
            allow: vec!["*".into()],
            ..next(2, "b.example")
        };
        for refused in [misread, malformed] {
            rulings.succeed(&refused);
            assert_eq!(rulings.now().generation, 1, "{refused:?}");
            let answer = rulings.answer().await;
            assert!(
                matches!(
                    answer,
                    FromProxy::Policy {
                        generation: 2,
                        refused: Some(_)
                    }
                ),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn what_is_guarded_in_this_container_stays_guarded_under_every_list() {
        let rulings = rulings("a.example");
        rulings.succeed(&next(2, "b.example"));
        let to = policy::Destination::parse("b.example", 443).unwrap();
        let ruling = rulings.now();
        let policy::Decision::Allow(permit) = ruling.policy.decide(&to) else {
            panic!("{to}")
        };
        let own = ["198.18.0.7".parse().unwrap()];
        assert!(ruling.policy.check_addresses(&permit, &own).is_err());
    }
}
