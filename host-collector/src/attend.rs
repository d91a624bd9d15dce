//! One run from its launch to its line in the log: the one way that all runs take, whoever starts
//! the container, and whichever process attends to it.

mod container;
mod driven;
mod finish;
mod lists;
mod open;
mod outcome;
mod process;
mod record;
mod recover;
mod registration;
mod remains;
mod sight;
mod signals;
mod starter;

pub use open::after_boot;
pub use outcome::NoRun;
pub use recover::{Unfinished, recover, unfinished};
pub use registration::{Launcher, Registration, RegistrationError};

pub(crate) use driven::Driven;
pub(crate) use finish::Finish;
pub(crate) use outcome::exit_code;
pub(crate) use process::{Attender, Word, detach};
pub(crate) use recover::{Held, hold};
pub(crate) use registration::engine_environment;
pub(crate) use remains::Remains;
pub(crate) use signals::{Signals, is_foreground};
pub(crate) use starter::Starter;

use report::{Body, PeerEnd};
use tokio::sync::{Notify, oneshot};

use crate::{
    channel::{Channel, ChannelError, Client},
    engine::Engine,
    log::LogError,
    run_dir::RunDir,
    session::Session,
    steer::Control,
};

/// A run that this process attends to.
#[derive(Debug)]
pub(crate) struct Attending<'a> {
    run_dir: &'a RunDir,
    registration: &'a Registration,
    engine: Engine,
    channel: Option<Channel>,
    control: Option<Control>,
}

/// What a run came to.
#[derive(Debug)]
pub(crate) enum Conclusion {
    /// It took place, and this is its line.
    Run(Box<Session>, Result<(), LogError>),
    /// The guest was never started: the code to exit with, or what to say.
    NoRun(Result<i32, NoRun>),
}

/// All that there is to say of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) driven: Driven,
    pub(crate) conclusion: Conclusion,
    /// The container, if it should be gone and is not.
    pub(crate) remains: Option<Remains>,
}

impl<'a> Attending<'a> {
    /// Takes a run up where it stands: at its beginning, or where another collector was killed.
    pub(crate) fn take_up(
        run_dir: &'a RunDir,
        registration: &'a Registration,
    ) -> Result<Self, ChannelError> {
        let terms = registration.terms.clone();
        let channel = terms.map(|terms| Channel::open(run_dir.path(), terms));
        let (channel, control) = match channel.transpose()? {
            Some(channel) => {
                let (channel, control) = lists::steered(channel, run_dir.path(), registration)?;
                (Some(channel), control)
            }
            None => (None, None),
        };
        Ok(Self {
            run_dir,
            registration,
            engine: Engine::of(registration.engine, registration.program.clone()),
            channel,
            control,
        })
    }

    /// Attends until the container has ended, and keeps the record. `launched` is awaited when the
    /// guest was started, unless that is not seen to happen.
    pub(crate) async fn see_through(
        mut self,
        starter: Starter<'_>,
        launched: impl Future<Output = ()>,
    ) -> Ended {
        let is_heard = matches!(starter, Starter::Client(..));
        let driven = Box::pin(self.drive(starter, launched)).await;
        let mut conclusion = self.conclude(&driven);
        if let Conclusion::NoRun(Ok(code)) = conclusion
            && !is_heard
        {
            conclusion = Conclusion::NoRun(self.last_words(&driven, code).await);
        }
        let is_ours = self.registration.launcher == Launcher::Ours;
        let remains = match driven.container.clone().filter(|_| is_ours) {
            Some(id) => remains::remove(&self.engine, &self.registration.run_id, id).await,
            None => None,
        };
        Ended {
            driven,
            conclusion,
            remains,
        }
    }

    async fn drive(&mut self, starter: Starter<'_>, launched: impl Future<Output = ()>) -> Driven {
        let (channel, control) = (self.channel.take(), self.control.take());
        let channel = channel.map(|channel| channel.with_client(self.client()));
        let presence = channel.as_ref().map(Channel::presence);
        let seen = Notify::new();
        if channel.as_ref().is_some_and(Channel::was_launched) {
            seen.notify_one();
        }
        // Where the container must report, its word is awaited.
        let runs = || {
            if self.registration.terms.is_none() || !self.registration.report_is_required {
                seen.notify_one();
            }
        };
        let (end, over) = oneshot::channel();
        let attended = async {
            let over = async { over.await.unwrap_or(PeerEnd::Alive) };
            let attended = channel?.attend_until(over, |message| {
                if let Some(control) = &control {
                    control.hear(message);
                }
                if matches!(message.body, Body::Enforcing(_)) {
                    seen.notify_one();
                }
            });
            Some(attended.await)
        };
        let watched = async {
            let place = starter::Place {
                engine: &self.engine,
                run_dir: self.run_dir.path(),
                registration: self.registration,
                presence: presence.as_ref(),
                control: control.as_ref(),
            };
            let watched = starter.watch(place, runs).await;
            // Nobody listens where there is no channel.
            let _ = end.send(watched.container_end());
            watched
        };
        let served = async {
            match &control {
                Some(control) => control.serve().await,
                None => std::future::pending().await,
            }
        };
        let both = async {
            tokio::select! {
                both = async { tokio::join!(attended, watched) } => both,
                never = served => match never {},
            }
        };
        let launched = async {
            record::note_launch(self.run_dir.path(), self.registration);
            launched.await;
        };
        let (attendance, watched) = with(both, &seen, launched).await;
        let finish = Finish::read(self.run_dir.path());
        watched.driven(self.registration, attendance, finish)
    }

    /// Brings the channel where the container cannot come to us.
    fn client(&self) -> Client {
        let (engine, run_dir) = (self.engine.clone(), self.run_dir.path().to_owned());
        Box::new(move || Some(starter::known(&engine, &run_dir)?.stream()))
    }

    /// Why a container ended that nobody listened to, as its entrypoint has said it.
    async fn last_words(&self, driven: &Driven, code: i32) -> Result<i32, NoRun> {
        let Some(id) = driven.container.clone() else {
            return Ok(code);
        };
        match self.engine.container(id).last_words().await {
            Ok(why) => Err(NoRun::Refused { code, why }),
            Err(_) => Ok(code),
        }
    }

    fn conclude(&self, driven: &Driven) -> Conclusion {
        // Another collector may have seen what is not to be seen any more.
        let was_seen = record::was_launched(self.run_dir.path());
        if !was_seen && !outcome::was_launched(driven, self.registration.report_is_required) {
            return Conclusion::NoRun(outcome::refusal(driven, self.registration));
        }
        let mut session = outcome::session(driven, self.registration);
        let lists = lists::at_end(self.run_dir.path(), self.registration, driven);
        if let Some(identity) = lists {
            session.launch.egress_policy = Some(identity);
        }
        let attendance = driven.attendance.as_ref();
        let journal = attendance.filter(|attendance| attendance.reports.is_some());
        let journal = journal.map(|attendance| attendance.journal.path().to_owned());
        let recorded = record::at_end(self.run_dir.path(), self.registration, &session, journal);
        Conclusion::Run(Box::new(session), recorded)
    }
}

/// Writes the line that a detached run has at its launch.
pub(crate) async fn record_launch(
    run_dir: &RunDir,
    registration: &Registration,
) -> Result<(), LogError> {
    if !registration.detached {
        return Ok(());
    }
    let (path, registration) = (run_dir.path().to_owned(), registration.clone());
    let work = move || record::at_launch(&path, &registration);
    // It has no reason to panic, and nothing cancels it.
    tokio::task::spawn_blocking(work).await.unwrap_or(Ok(()))
}

/// Does `work` to its end, and beside it, or else after it, what is due once something was `seen`.
async fn with<T>(work: impl Future<Output = T>, seen: &Notify, due: impl Future<Output = ()>) -> T {
    let mut work = std::pin::pin!(work);
    let done = tokio::select! {
        biased;
        () = seen.notified() => None,
        done = work.as_mut() => Some(done),
    };
    let Some(done) = done else {
        return tokio::join!(work, due).0;
    };
    tokio::select! {
        biased;
        () = seen.notified() => due.await,
        () = std::future::ready(()) => {}
    }
    done
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What was done, in order, when the sight came at one of these moments.
    async fn order(before: bool, within: bool) -> String {
        let (seen, done) = (Notify::new(), RefCell::new(String::new()));
        if before {
            seen.notify_one();
        }
        let work = async {
            tokio::task::yield_now().await;
            if within {
                seen.notify_one();
            }
            done.borrow_mut().push('w');
        };
        let due = async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            done.borrow_mut().push('d');
        };
        with(work, &seen, due).await;
        done.into_inner()
    }

    #[tokio::test]
    async fn what_is_due_is_done_once_and_whole_before_the_end_and_only_if_it_is_due() {
        assert_eq!(order(false, false).await, "w");
        for (before, within) in [(true, false), (false, true), (true, true)] {
            assert_eq!(order(before, within).await, "wd", "{before} {within}");
        }
    }
}
