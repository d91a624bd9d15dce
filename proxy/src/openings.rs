//! Asks PID 1 to let the guest reach what it resolved, where no stream would show a name, and waits
//! until it has: an answer that the guest sees is one that it can use.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use policy::HostName;
use report::link::Open;
use tokio::{
    sync::{Mutex as Turn, mpsc, oneshot},
    time::timeout,
};

/// Requests to PID 1 that were not answered yet.
#[derive(Debug)]
pub(crate) struct Openings {
    queue: mpsc::Sender<Open>,
    queued: Turn<mpsc::Receiver<Open>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    next: AtomicU64,
}

/// PID 1 could not, or did not in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotOpened;

impl Default for Openings {
    fn default() -> Self {
        let (queue, queued) = mpsc::channel(QUEUED);
        Self {
            queue,
            queued: Turn::new(queued),
            waiting: Mutex::default(),
            next: AtomicU64::default(),
        }
    }
}

impl Openings {
    /// Has the guest's way to `endpoints` opened for this many seconds; nothing is open at once.
    ///
    /// Which list allows that is said with it: PID 1 opens nothing that another one has to allow.
    pub(crate) async fn open(
        &self,
        (name, generation): (&HostName, u64),
        endpoints: Vec<SocketAddr>,
        seconds: u32,
    ) -> Result<(), NotOpened> {
        if endpoints.is_empty() {
            return Ok(());
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting().insert(id, answer);
        let request = Open {
            id,
            generation,
            name: name.as_str().to_owned(),
            endpoints,
            seconds,
        };
        let opening = async {
            self.queue.send(request).await.ok()?;
            answered.await.ok()
        };
        let opened = timeout(PATIENCE, opening).await;
        self.waiting().remove(&id);
        match opened {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false) | None) | Err(_) => Err(NotOpened),
        }
    }

    /// The next request to send to PID 1. Safe to drop and to call again.
    pub(crate) async fn next(&self) -> Open {
        match self.queued.lock().await.recv().await {
            Some(request) => request,
            // The other end is ours as well.
            None => std::future::pending().await,
        }
    }

    /// Takes PID 1's answer to a request.
    pub(crate) fn answer(&self, id: u64, opened: bool) {
        if let Some(waiting) = self.waiting().remove(&id) {
            // Whoever asked may have given up.
            let _ = waiting.send(opened);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<bool>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clients ask again after 5 s; an answer later than that is for nobody.
const PATIENCE: Duration = Duration::from_secs(2);
const QUEUED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> HostName {
        HostName::parse("a.example").unwrap()
    }

    fn endpoints() -> Vec<SocketAddr> {
        vec!["203.0.113.7:22".parse().unwrap()]
    }

    #[tokio::test]
    async fn whoever_asks_waits_for_its_own_answer() {
        let (openings, name) = (Openings::default(), name());
        let pid1 = async {
            let first = openings.next().await;
            let second = openings.next().await;
            assert_eq!(first.endpoints, endpoints());
            assert_eq!((first.name.as_str(), first.generation), ("a.example", 1));
            openings.answer(second.id, false);
            openings.answer(first.id, true);
            openings.answer(99, true);
        };
        let (first, second, ()) = tokio::join!(
            openings.open((&name, 1), endpoints(), 60),
            openings.open((&name, 1), endpoints(), 60),
            pid1
        );
        assert_eq!((first, second), (Ok(()), Err(NotOpened)));
        assert!(openings.waiting().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_no_opening_and_is_not_waited_for_without_end() {
        let openings = Openings::default();
        assert_eq!(
            openings.open((&name(), 1), endpoints(), 60).await,
            Err(NotOpened)
        );
        assert!(openings.waiting().is_empty());
    }

    #[tokio::test]
    async fn nothing_to_open_asks_nobody() {
        assert_eq!(
            Openings::default().open((&name(), 1), Vec::new(), 60).await,
            Ok(())
        );
    }
}
