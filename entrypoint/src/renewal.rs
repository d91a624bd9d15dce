//! Keeps the resolver running, and the addresses of the list's names open. While it is not, what is
//! open ends by and by: nothing is let through that was not, and every refusal is counted.

use std::{io, net::IpAddr, time::Duration};

use report::{FIRST_GENERATION, Printable};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    addresses::Addresses,
    connections::established,
    failure::Failure,
    firewall::{Firewall, PROLONGED, SOON},
    identity::Unprivileged,
    limits,
    resolver::{FromResolver, Questions, Resolver},
    steering::Next,
    watch::backoff,
};

/// The resolver and what is needed to start it again.
pub(crate) struct Renewal {
    identity: Unprivileged,
    questions: Questions,
    addresses: Addresses,
    state: State,
    failures: u32,
    /// By which list it opens what names resolve to.
    decides_by: u64,
    /// A later one, whose names are being asked for.
    arriving: Option<Arriving>,
}

/// A list that the rules follow, on its way into force.
struct Arriving {
    generation: u64,
    /// When it is in force, whatever has not resolved by then.
    at: Instant,
}

enum State {
    Running(Resolver),
    /// Gone; it is started again at this time.
    Down(Instant),
    /// It is not needed any more.
    Ended,
}

/// What can happen to a resolver.
pub(crate) enum Happening {
    /// It said something.
    Said(FromResolver),
    /// It is gone.
    Lost,
    /// It was down for long enough.
    RestartDue,
    /// The names of another list were waited for long enough.
    ArrivalDue,
}

impl Renewal {
    /// Starts the resolver.
    pub(crate) fn start(
        identity: Unprivileged,
        resolvers: Vec<IpAddr>,
        addresses: Addresses,
    ) -> Result<Self, Failure> {
        let names = addresses.names();
        let questions = Questions { resolvers, names };
        let resolver = Resolver::start(&identity, &questions)?;
        Ok(Self {
            identity,
            questions,
            addresses,
            state: State::Running(resolver),
            failures: 0,
            decides_by: FIRST_GENERATION,
            arriving: None,
        })
    }

    /// Opens what names resolve to, until all were asked for once or so much time has passed: a name
    /// that nobody answers for must not keep the guest from starting. Returns how many names have
    /// not resolved.
    pub(crate) async fn first_round(&mut self, firewall: &mut Firewall) -> Result<usize, Failure> {
        let round = async {
            loop {
                match self.next().await {
                    Happening::Said(FromResolver::AllAsked) => return true,
                    Happening::Said(message) => self.handle(Happening::Said(message), firewall),
                    Happening::Lost | Happening::RestartDue | Happening::ArrivalDue => {
                        return false;
                    }
                }
            }
        };
        if timeout(FIRST_ROUND, round).await == Ok(false) {
            return Err(Failure::setup(
                "resolve the names of the list",
                "the resolver ended",
                "report this as a defect",
            ));
        }
        Ok(self.addresses.unresolved().count())
    }

    /// Has the rules follow another list, and asks for its names. What is known of them is open
    /// from the first moment; all the others are asked for once, or for as long as those of the
    /// first list were, before it is told that the list is in force.
    ///
    /// Another resolver asks: what one says of a number is said of the list that it was given.
    pub(crate) fn follow(&mut self, next: &Next, firewall: &mut Firewall) -> Result<(), Failure> {
        let (addresses, held) = self
            .addresses
            .following(&next.policy, std::time::Instant::now());
        firewall.follow_addresses(&next.policy, held)?;
        self.questions.names = addresses.names();
        self.addresses = addresses;
        self.arriving = Some(Arriving {
            generation: next.succession.generation,
            at: Instant::now() + FIRST_ROUND,
        });
        if let State::Running(resolver) = std::mem::replace(&mut self.state, State::Ended) {
            resolver.end();
        }
        self.restart();
        Ok(())
    }

    /// Has names keep the addresses that the guest is connected to: see [`Firewall::prolong`]. Of
    /// those that names still have, the time is not about to end, for they were asked for again.
    pub(crate) fn prolong(
        &mut self,
        now: std::time::Instant,
        firewall: &mut Firewall,
    ) -> io::Result<()> {
        let soon = now + SOON;
        let ending = self.addresses.ending(now, soon);
        if ending.is_empty() {
            return Ok(());
        }
        let live = established(None, |to| ending.contains(&to.ip()))?;
        let later = now + Duration::from_secs(PROLONGED.into());
        let open = |opening, until| firewall.open_range(opening, until);
        self.addresses.prolong(&live, (now, soon), later, open)
    }

    /// The generation of the list that it opens by.
    pub(crate) const fn decides_by(&self) -> u64 {
        self.decides_by
    }

    /// What of the list is not enforced, or leads nowhere yet.
    pub(crate) fn shortfall(&self) -> Option<Printable> {
        limits::of_another(self.addresses.policy(), self.addresses.unresolved())
    }

    /// Whether it can follow another list.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Takes note that a child of PID 1's has ended: its number is nobody's from now on.
    pub(crate) fn note_end(&mut self, pid: i32) {
        if self.pid() == Some(pid) {
            self.lose();
        }
    }

    /// The resolver's process, while there is one.
    pub(crate) const fn pid(&self) -> Option<i32> {
        match &self.state {
            State::Running(resolver) => Some(resolver.pid),
            State::Down(_) | State::Ended => None,
        }
    }

    /// What happens next to the resolver, if anything does.
    pub(crate) async fn next(&mut self) -> Happening {
        let due = self.arriving.as_ref().map(|arriving| arriving.at);
        tokio::select! {
            happening = self.state.next() => happening,
            () = until(due) => Happening::ArrivalDue,
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(&mut self, happening: Happening, firewall: &mut Firewall) {
        match happening {
            Happening::Said(FromResolver::Resolved(resolved)) => {
                let now = std::time::Instant::now();
                let open = |opening, until| firewall.open_range(opening, until);
                let opened = self.addresses.open(&resolved, now, open);
                // What the kernel does not take is refused to the guest, and counted there.
                if opened.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
                    self.lose();
                }
            }
            Happening::Said(FromResolver::AllAsked) => {
                self.failures = 0;
                self.arrive();
            }
            Happening::Lost => self.lose(),
            Happening::RestartDue => self.restart(),
            Happening::ArrivalDue => self.arrive(),
        }
    }

    /// Lets the resolver go, whose standard input ends with that.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    fn restart(&mut self) {
        match Resolver::start(&self.identity, &self.questions) {
            Ok(resolver) => self.state = State::Running(resolver),
            Err(_) => self.lose(),
        }
    }

    fn arrive(&mut self) {
        if let Some(arriving) = self.arriving.take() {
            self.decides_by = arriving.generation;
        }
    }

    /// It is gone, or talks nonsense, which is as good.
    fn lose(&mut self) {
        self.state = State::Down(Instant::now() + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

impl State {
    async fn next(&mut self) -> Happening {
        match self {
            Self::Running(resolver) => match resolver.next().await {
                Ok(message) => Happening::Said(message),
                Err(_) => Happening::Lost,
            },
            Self::Down(at) => {
                sleep_until(*at).await;
                Happening::RestartDue
            }
            Self::Ended => std::future::pending().await,
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

const FIRST_ROUND: Duration = Duration::from_secs(3);
