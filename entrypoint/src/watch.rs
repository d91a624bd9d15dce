//! Keeps the proxy running. While it is not, the rules stand and nothing leaves.

use std::{io, time::Duration};

use policy::HostName;
use report::link::{FromProxy, Open, Start, Succession};
use tokio::time::{Instant, sleep_until};

use crate::{
    account::Account,
    failure::Failure,
    firewall::{Firewall, Request},
    guest::Ended,
    identity::Unprivileged,
    listeners::Listeners,
    proxy::{self, Proxy, Starting},
};

/// The proxy and what is needed to start it again.
pub(crate) struct ProxyWatch {
    identity: Unprivileged,
    listeners: Listeners,
    start: Start,
    /// By which list the proxy decides, as it said last.
    decides_by: u64,
    state: State,
    /// Whether it was asked to end: no other takes its place.
    is_ending: bool,
    /// How the one that runs ended, where that was told before its socket was.
    ended: Option<Ended>,
    /// Since when one has run without an end.
    since: Instant,
    failures: u32,
}

enum State {
    Running(Proxy),
    /// Gone; it is started again at this time.
    Down(Instant),
    /// Another has yet to serve, by the list of this generation.
    Starting(Starting, u64),
    /// It has said all that it will.
    Drained,
}

/// What can happen to a proxy.
pub(crate) enum Happening {
    /// It said something.
    Said(FromProxy),
    /// It said its last word, as it was asked to.
    Drained,
    /// It is gone without having been asked to go.
    Lost(io::Error),
    /// It was down for long enough.
    RestartDue,
    /// Another serves, or does not.
    Started(Result<(), Failure>),
}

impl ProxyWatch {
    /// Watches a proxy that runs.
    pub(crate) fn new(
        identity: Unprivileged,
        listeners: Listeners,
        start: Start,
        proxy: Proxy,
    ) -> Self {
        Self {
            decides_by: start.generation,
            identity,
            listeners,
            start,
            state: State::Running(proxy),
            is_ending: false,
            ended: None,
            since: Instant::now(),
            failures: 0,
        }
    }

    /// The proxy's process, while there is one.
    pub(crate) const fn pid(&self) -> Option<i32> {
        match &self.state {
            State::Running(proxy) => Some(proxy.pid),
            State::Starting(starting, _) => Some(starting.pid()),
            State::Down(_) | State::Drained => None,
        }
    }

    /// What happens next to the proxy, if anything does.
    pub(crate) async fn next(&mut self) -> Happening {
        match &mut self.state {
            State::Running(proxy) => match proxy.next().await {
                Ok(FromProxy::Drained) => Happening::Drained,
                Ok(message) => Happening::Said(message),
                Err(error) => Happening::Lost(error),
            },
            State::Down(at) => {
                sleep_until(*at).await;
                Happening::RestartDue
            }
            State::Starting(starting, _) => Happening::Started(starting.served().await.map(drop)),
            State::Drained => std::future::pending().await,
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(
        &mut self,
        happening: Happening,
        account: &mut Account,
        firewall: &mut Firewall,
    ) {
        match happening {
            Happening::Said(FromProxy::Open(request)) => self.open(&request, firewall),
            Happening::Said(FromProxy::Policy {
                generation,
                refused,
            }) => self.answered(generation, refused.is_some()),
            Happening::Said(message) => account.hear(message),
            Happening::Drained => self.state = State::Drained,
            Happening::Lost(error) => self.lost(&error, account),
            Happening::RestartDue => self.restart(account),
            Happening::Started(started) => self.started(started, account),
        }
    }

    /// Lets the guest reach what a name resolved to, and says whether it can.
    fn open(&mut self, request: &Open, firewall: &mut Firewall) {
        let Open {
            id,
            generation,
            name,
            endpoints,
            seconds,
        } = request;
        // What a list allows that the rules do not follow any more stays closed.
        let is_due = *generation == self.start.generation && endpoints.len() <= Open::MAX_ENDPOINTS;
        let opened = is_due
            && HostName::parse(name).is_ok_and(|name| {
                let request = Request {
                    name: &name,
                    endpoints,
                    seconds: *seconds,
                };
                firewall.open(request).is_ok()
            });
        if let State::Running(proxy) = &mut self.state {
            // Without an answer the question fails, after a while.
            let _ = proxy.opened(*id, opened);
        }
    }

    /// Has the proxy decide by another list, which the rules follow already. One that is down starts
    /// with it.
    pub(crate) fn succeed(&mut self, next: Succession) {
        self.start = Start {
            generation: next.generation,
            allow: next.allow.clone(),
            policy_digest: next.policy_digest.clone(),
            ..self.start.clone()
        };
        if let State::Running(proxy) = &mut self.state
            && proxy.succeed(next).is_err()
        {
            self.kill();
        }
    }

    /// By which list the proxy decides.
    pub(crate) const fn decides_by(&self) -> u64 {
        self.decides_by
    }

    /// A proxy that cannot take a list that PID 1 could take is not the one that it was: it is
    /// started again, with the list.
    fn answered(&mut self, generation: u64, is_refused: bool) {
        let is_due = generation == self.start.generation;
        match &self.state {
            State::Running(_) if is_due && is_refused => self.kill(),
            State::Running(_) | State::Down(_) | State::Starting(..) | State::Drained => {
                if is_due && !is_refused {
                    self.decides_by = generation;
                }
            }
        }
    }

    /// Takes note of how a child of PID 1's ended.
    pub(crate) fn note_end(&mut self, pid: i32, ended: Ended) {
        if self.pid() == Some(pid) {
            self.ended = Some(ended);
        }
    }

    /// The proxy ended without being asked to, or makes no sense, and is ended.
    fn lost(&mut self, error: &io::Error, account: &mut Account) {
        let end = match (self.ended.take(), &self.state) {
            (None, State::Running(proxy)) => proxy.end(),
            (ended, _) => ended,
        };
        account.begin_outage(&describe(error, end));
        if self.is_ending {
            self.state = State::Drained;
            return;
        }
        self.failures = counted(self.failures, self.since.elapsed());
        self.schedule();
    }

    /// Starts another.
    fn restart(&mut self, account: &mut Account) {
        match Proxy::spawn(&self.identity, &self.listeners, &self.start) {
            Ok(starting) => {
                self.ended = None;
                self.state = State::Starting(starting, self.start.generation);
            }
            Err(failure) => self.put_off(&failure, account),
        }
    }

    /// The other serves: the outage is over. What has become the list meanwhile it is told now.
    fn started(&mut self, started: Result<(), Failure>, account: &mut Account) {
        if let Err(failure) = started {
            self.kill();
            return self.put_off(&failure, account);
        }
        let (starting, generation) = match std::mem::replace(&mut self.state, State::Drained) {
            State::Starting(starting, generation) => (starting, generation),
            other @ (State::Running(_) | State::Down(_) | State::Drained) => {
                return self.state = other;
            }
        };
        self.state = State::Running(starting.into_proxy());
        self.since = Instant::now();
        self.decides_by = generation;
        account.end_outage();
        if generation != self.start.generation {
            self.succeed(Succession {
                generation: self.start.generation,
                allow: self.start.allow.clone(),
                policy_digest: self.start.policy_digest.clone(),
            });
        }
    }

    fn put_off(&mut self, failure: &Failure, account: &mut Account) {
        account.begin_outage(&failure.one_line());
        self.schedule();
    }

    /// Asks the proxy to end; a proxy that is down has nothing left to say.
    pub(crate) fn drain(&mut self) {
        self.is_ending = true;
        match &mut self.state {
            // One that is not there to hear it is lost, and that is told next.
            State::Running(proxy) => drop(proxy.drain()),
            State::Starting(..) => {
                self.kill();
                self.state = State::Drained;
            }
            State::Down(_) | State::Drained => self.state = State::Drained,
        }
    }

    /// Ends a proxy that was asked to end and has not: what it has not told is lost.
    pub(crate) fn give_up(&mut self, account: &mut Account) {
        if let State::Running(_) = &self.state {
            self.kill();
            account.begin_outage("the proxy did not end in time");
        }
        self.state = State::Drained;
    }

    /// Ends the one that there is, unless it was waited for already: its id may be another's.
    fn kill(&self) {
        if let (Some(pid), None) = (self.pid(), self.ended) {
            proxy::kill(pid);
        }
    }

    /// Whether nothing more will come.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    fn schedule(&mut self) {
        self.state = State::Down(Instant::now() + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

/// Why there is no proxy. One that closes its socket is ending; one that says what cannot be
/// understood was ended for it.
fn describe(error: &io::Error, end: Option<Ended>) -> String {
    match end {
        Some(end) if error.kind() == io::ErrorKind::UnexpectedEof => format!("the proxy {end}"),
        Some(_) | None => format!("the proxy was ended: {error}"),
    }
}

/// Failures that still count against a proxy that has served for so long: one that ends once in an
/// hour can live, and its clients need not wait as if it could not.
const fn counted(failures: u32, served: Duration) -> u32 {
    if served.as_secs() < STEADY.as_secs() {
        failures
    } else {
        0
    }
}

const STEADY: Duration = Duration::from_secs(60);

/// Doubles from 50 ms up to 5 s: what cannot live must not keep the machine busy.
pub(crate) fn backoff(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    Duration::from_millis(50)
        .saturating_mul(factor)
        .min(Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use report::{RunClock, Seed, link::ToProxy};
    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;
    use crate::{accounts::User, outbox::Outbox};

    fn account() -> Account {
        Account::new(Outbox::new(RunClock::start(), Seed([0; 16])))
    }

    /// A watched proxy, and its end of the socket.
    fn watched() -> (ProxyWatch, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let user = User {
            uid: 990,
            gid: 990,
            groups: Vec::new(),
            home: None,
        };
        let start = Start {
            generation: 1,
            allow: Vec::new(),
            policy_digest: String::new(),
            guard: Vec::new(),
            clock_origin_ms: 0,
            seed: Seed([0; 16]),
            max_connections: 1,
            resolvers: Vec::new(),
            upstream_proxy: None,
        };
        let watch = ProxyWatch::new(
            Unprivileged::new(user).unwrap(),
            Listeners::on_any_port(),
            start,
            Proxy::over(ours),
        );
        (watch, theirs)
    }

    fn starting() -> (ProxyWatch, UnixStream) {
        let (mut watch, _) = watched();
        let (ours, theirs) = UnixStream::pair().unwrap();
        watch.state = State::Starting(Starting::over(ours), 1);
        (watch, theirs)
    }

    fn lose(watch: &mut ProxyWatch, account: &mut Account) {
        watch.note_end(0, Ended::Signaled(9));
        watch.lost(&io::ErrorKind::UnexpectedEof.into(), account);
    }

    #[tokio::test]
    async fn one_that_is_lost_while_it_ends_is_missed_and_not_replaced() {
        let ((mut watch, _theirs), mut account) = (watched(), account());
        watch.drain();
        assert!(!watch.is_drained());
        lose(&mut watch, &mut account);
        assert!(watch.is_drained());
        let gaps = account.gaps();
        assert_eq!((gaps.len(), gaps[0].to), (1, None));
        assert!(gaps[0].detail.as_str().contains("SIGKILL"), "{gaps:?}");
    }

    #[tokio::test]
    async fn one_that_does_not_end_in_time_is_missed_and_one_that_did_is_not() {
        let ((mut watch, _theirs), mut account) = (watched(), account());
        watch.drain();
        watch.give_up(&mut account);
        let gaps = account.gaps();
        assert!(gaps[0].detail.as_str().contains("in time"), "{gaps:?}");
        watch.give_up(&mut account);
        assert!(watch.is_drained() && account.gaps().is_empty());
    }

    #[tokio::test]
    async fn one_that_is_down_at_the_end_has_nothing_to_say() {
        let ((mut watch, _theirs), mut account) = (watched(), account());
        lose(&mut watch, &mut account);
        assert!(watch.pid().is_none() && !watch.is_drained());
        watch.drain();
        assert!(watch.is_drained());
        watch.give_up(&mut account);
        assert_eq!(account.gaps().len(), 1);
    }

    #[tokio::test]
    async fn one_that_is_being_started_at_the_end_is_not_waited_for() {
        let (mut watch, _theirs) = starting();
        assert!(watch.pid().is_some());
        watch.drain();
        assert!(watch.is_drained());
    }

    #[tokio::test]
    async fn another_is_told_of_the_list_that_came_while_it_was_being_started() {
        let ((mut watch, theirs), mut account) = (starting(), account());
        let next = Succession {
            generation: 2,
            allow: vec!["b.example".into()],
            policy_digest: "d".into(),
        };
        watch.succeed(next.clone());
        watch.started(Ok(()), &mut account);
        assert_eq!(watch.decides_by(), 1);
        theirs.set_nonblocking(true).unwrap();
        let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        let mut lines = BufReader::new(theirs).lines();
        // What has to be said goes while the proxy is listened to.
        let told = tokio::select! {
            _ = watch.next() => None,
            line = lines.next_line() => line.unwrap(),
        };
        let told: ToProxy = serde_json::from_str(&told.unwrap()).unwrap();
        assert_eq!(told, ToProxy::Policy(Box::new(next)));
        watch.answered(2, false);
        assert_eq!(watch.decides_by(), 2);
    }

    #[tokio::test]
    async fn an_outage_ends_with_one_that_serves_and_not_with_one_that_does_not() {
        for (started, ends) in [
            (Ok(()), vec![false, true]),
            (Err(Failure::setup("start", "late", "wait")), vec![false; 2]),
        ] {
            let ((mut watch, _theirs), mut account) = (starting(), account());
            account.begin_outage("gone");
            watch.started(started, &mut account);
            let gaps = account.gaps();
            let ended: Vec<_> = gaps.iter().map(|gap| gap.to.is_some()).collect();
            assert_eq!(ended, ends, "{gaps:?}");
        }
    }

    #[test]
    fn a_proxy_that_keeps_failing_is_left_alone_longer() {
        assert_eq!(backoff(0), Duration::from_millis(50));
        assert_eq!(backoff(1), Duration::from_millis(100));
        assert_eq!(backoff(40), Duration::from_secs(5));
    }

    #[test]
    fn a_proxy_that_is_gone_is_told_by_its_end_and_one_that_makes_no_sense_by_that() {
        let eof = io::ErrorKind::UnexpectedEof.into();
        let killed = Some(Ended::Signaled(9));
        assert_eq!(describe(&eof, killed), "the proxy was killed by SIGKILL");
        let rubbish = io::Error::other("expected value");
        assert_eq!(
            describe(&rubbish, killed),
            "the proxy was ended: expected value"
        );
    }

    #[test]
    fn the_pause_never_shrinks() {
        let pauses: Vec<_> = (0..100).map(backoff).collect();
        assert!(pauses.is_sorted());
    }

    #[test]
    fn a_proxy_that_served_well_is_not_waited_for_as_one_that_never_did() {
        for (served, left) in [(0, 7), (59, 7), (60, 0), (86_400, 0)] {
            assert_eq!(counted(7, Duration::from_secs(served)), left, "{served}");
        }
    }
}
