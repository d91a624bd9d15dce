//! Keeps the resolver running, and the addresses of the list's names open. While it is not, what is
//! open ends by and by: nothing is let through that was not, and every refusal is counted.

use std::{io, net::IpAddr, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    addresses::Addresses,
    failure::Failure,
    firewall::Firewall,
    identity::Unprivileged,
    resolver::{FromResolver, Questions, Resolver},
    watch::backoff,
};

/// The resolver and what is needed to start it again.
pub(crate) struct Renewal {
    identity: Unprivileged,
    questions: Questions,
    addresses: Addresses,
    state: State,
    failures: u32,
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
                    Happening::Lost | Happening::RestartDue => return false,
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
        Ok(self.addresses.unresolved())
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
        match &mut self.state {
            State::Running(resolver) => match resolver.next().await {
                Ok(message) => Happening::Said(message),
                Err(_) => Happening::Lost,
            },
            State::Down(at) => {
                sleep_until(*at).await;
                Happening::RestartDue
            }
            State::Ended => std::future::pending().await,
        }
    }

    /// Takes note of what happened.
    pub(crate) fn handle(&mut self, happening: Happening, firewall: &mut Firewall) {
        match happening {
            Happening::Said(FromResolver::Resolved(resolved)) => {
                let now = std::time::Instant::now();
                let open = |opening, seconds| firewall.open_range(opening, seconds);
                let opened = self.addresses.open(&resolved, now, open);
                // What the kernel does not take is refused to the guest, and counted there.
                if opened.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
                    self.lose();
                }
            }
            Happening::Said(FromResolver::AllAsked) => self.failures = 0,
            Happening::Lost => self.lose(),
            Happening::RestartDue => match Resolver::start(&self.identity, &self.questions) {
                Ok(resolver) => self.state = State::Running(resolver),
                Err(_) => self.lose(),
            },
        }
    }

    /// Lets the resolver go, whose standard input ends with that.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// It is gone, or talks nonsense, which is as good.
    fn lose(&mut self) {
        self.state = State::Down(Instant::now() + backoff(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

const FIRST_ROUND: Duration = Duration::from_secs(3);
