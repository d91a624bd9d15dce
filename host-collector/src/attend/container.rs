//! Finds a run's container, and follows it to its end, through an engine that may be away for a
//! while.

use std::{fs, time::Duration};

use jiff::Timestamp;

use super::{
    finish::Finish,
    registration::Launcher,
    sight::{Lost, outlast},
    starter::{BETWEEN_LOOKS, Place, known},
};
use crate::{
    engine::{Container, State},
    run_dir::cidfile,
};

/// Where a container is.
#[derive(Debug)]
pub(super) enum Found<'a> {
    There(Container<'a>),
    /// It was there, and is not any more.
    Gone(Container<'a>),
    /// Nobody has started it, or the engine cannot be asked.
    NotYet,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The id that the engine wrote down.
    Id,
    /// The run's label as well.
    Label,
}

impl<'a> Found<'a> {
    /// Looks by the id that the engine wrote down, which costs nothing where there is none, or else
    /// by the run's label.
    pub(super) async fn look(place: Place<'a>, by: By) -> Self {
        let written = known(place.engine, place.run_dir);
        if written.is_none() && by == By::Id {
            return Self::NotYet;
        }
        if let Some(container) = &written
            && container.state().await.is_ok()
        {
            return Self::There(container.clone());
        }
        match place.engine.labelled(&place.registration.run_id).await {
            Ok(Some(id)) => {
                // So that the next collector knows that there was one.
                let _ = fs::write(cidfile(place.run_dir), &id);
                Self::There(place.engine.container(id))
            }
            Ok(None) => written.map_or(Self::NotYet, Self::Gone),
            Err(_) => Self::NotYet,
        }
    }
}

/// A container that was found.
#[derive(Debug)]
pub(super) struct Followed<'a> {
    place: Place<'a>,
    container: Container<'a>,
}

/// What was seen of a container's life.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// What the engine says of it at its end; nothing if it is gone.
    pub(super) state: Option<State>,
    /// What it said while it ran.
    pub(super) running: Option<State>,
    /// Whether the engine says that it is gone.
    pub(super) is_gone: bool,
    /// When it was seen to end by others than the engine, which still takes it for running or does
    /// not answer.
    pub(super) lost: Option<Lost>,
}

impl Life {
    /// Whether nothing is known of its end.
    pub(super) const fn goes_on(&self) -> bool {
        self.state.is_none() && !self.is_gone && self.lost.is_none()
    }
}

/// What is to be done about a container.
enum Next {
    /// It has ended, or will never run.
    Over(State),
    /// It is not there any more.
    Gone,
    /// The engine cannot be asked for so long that nobody waits any more.
    Unknown,
    /// It runs: wait for its end.
    Wait(State),
    /// It will run, or the engine cannot be asked: look again.
    Look,
}

impl<'a> Followed<'a> {
    /// Follows a container from here on.
    pub(super) const fn of(place: Place<'a>, container: Container<'a>) -> Self {
        Self { place, container }
    }

    /// The container.
    pub(super) fn container(&self) -> Container<'a> {
        self.container.clone()
    }

    /// Waits until it has ended; `started` is told when it runs, or has run.
    ///
    /// Cancelled, it has done nothing.
    pub(super) async fn ended(&self, started: &impl Fn()) -> Life {
        let (mut unanswered, mut waited, mut life) = (0, false, Life::default());
        loop {
            let state = self.container.state().await;
            if state.as_ref().is_ok_and(State::was_started) {
                started();
            }
            unanswered = if state.is_ok() { 0 } else { unanswered + 1 };
            let state = state.ok();
            if let Some(state) = state.as_ref().filter(|state| state.is_running()) {
                life.running = Some(state.clone());
            }
            match self.next(state, unanswered).await {
                Next::Over(state) => life.state = Some(state),
                Next::Gone => life.is_gone = true,
                Next::Unknown => {}
                Next::Wait(state) => {
                    life.lost = outlast(self.place.engine, &state).await;
                    if life.lost.is_none() {
                        // It returned early: the engine is started anew, or does not answer.
                        if waited {
                            tokio::time::sleep(BETWEEN_LOOKS).await;
                        }
                        waited = true;
                        drop(self.container.ended().await);
                        continue;
                    }
                }
                Next::Look => {
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                    continue;
                }
            }
            return life;
        }
    }

    async fn next(&self, state: Option<State>, unanswered: u32) -> Next {
        let Some(state) = state else {
            return match Found::look(self.place, By::Label).await {
                Found::Gone(_) => Next::Gone,
                Found::There(_) | Found::NotYet if unanswered >= UNANSWERED_AT_MOST => {
                    Next::Unknown
                }
                Found::There(_) | Found::NotYet => Next::Look,
            };
        };
        if state.is_running() {
            Next::Wait(state)
        } else if state.was_started() || self.is_given_up() {
            Next::Over(state)
        } else {
            Next::Look
        }
    }

    /// Whether a container that was made will not be started any more.
    fn is_given_up(&self) -> bool {
        let registration = self.place.registration;
        // Our own client has said all that it will when this is asked.
        let ours = registration.launcher == Launcher::Ours && !registration.detached;
        ours || Finish::read(self.place.run_dir).is_some()
            || registration.patience_left(Timestamp::now()) == Duration::ZERO
    }
}

/// Half a minute: longer than an engine takes to start anew.
const UNANSWERED_AT_MOST: u32 = 120;

#[cfg(test)]
mod tests {
    use std::{cell::Cell, path::Path};

    use super::*;
    use crate::{
        attend::registration::tests::registration,
        engine::{
            Engine,
            tests::{calls, docker},
        },
    };

    const RUNNING: &str = r#"{"state":{"Running":true,"StartedAt":"2026-11-29T16:44:43Z"}}"#;
    const ENDED: &str = r#"{"state":{"ExitCode":4,"StartedAt":"2026-11-29T16:44:43Z"}}"#;
    const MADE: &str = r#"{"state":{"StartedAt":"0001-01-01T00:00:00Z"}}"#;

    /// An engine with a container that is in this state until it is waited for or looked at again.
    async fn engine(dir: &Path, first: &str, then: &str) -> Engine {
        fs::write(dir.join("state"), first).unwrap();
        let script = format!(
            "cd '{dir}'; case $1 in container) cat state; {look} ;; wait) echo '{then}' >state ;; esac",
            dir = dir.display(),
            look = if first == RUNNING {
                ":".to_owned()
            } else {
                format!("echo '{then}' >state")
            },
        );
        docker(dir, &script).await
    }

    async fn end_of(dir: &Path, engine: &Engine, prepared: bool) -> (Option<State>, bool) {
        let mut registration = registration(false);
        registration.time_ms = Timestamp::now().as_millisecond();
        registration.launcher = if prepared {
            Launcher::Another
        } else {
            Launcher::Ours
        };
        let place = Place {
            engine,
            run_dir: dir,
            registration: &registration,
            presence: None,
            control: None,
        };
        let started = Cell::new(false);
        let followed = Followed::of(place, engine.container("abc".into()));
        let life = followed.ended(&|| started.set(true)).await;
        (life.state, started.get())
    }

    #[tokio::test]
    async fn a_container_that_runs_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), RUNNING, ENDED).await;
        let (state, started) = end_of(dir.path(), &engine, false).await;
        assert_eq!((state.unwrap().exit_code(), started), (Some(4), true));
        assert!(calls(dir.path()).contains("wait abc"));
    }

    #[tokio::test]
    async fn a_container_that_somebody_else_has_made_is_not_taken_for_one_that_ended() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), MADE, ENDED).await;
        let (state, started) = end_of(dir.path(), &engine, true).await;
        assert_eq!((state.unwrap().exit_code(), started), (Some(4), true));
    }

    #[tokio::test]
    async fn one_that_our_client_has_made_and_left_will_never_run() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), MADE, ENDED).await;
        let (state, started) = end_of(dir.path(), &engine, false).await;
        assert_eq!((state.unwrap().was_started(), started), (false, false));
    }

    #[tokio::test]
    async fn of_one_that_is_removed_at_its_end_it_is_known_that_it_ran() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(cidfile(dir.path()), "abc").unwrap();
        let script = format!(
            "cd '{}'; case $1 in container) [ ! -e gone ] && echo '{RUNNING}' ;; wait) touch gone ;; esac",
            dir.path().display()
        );
        let engine = docker(dir.path(), &script).await;
        let registration = registration(false);
        let place = Place {
            engine: &engine,
            run_dir: dir.path(),
            registration: &registration,
            presence: None,
            control: None,
        };
        let followed = Followed::of(place, engine.container("abc".into()));
        let life = followed.ended(&|| {}).await;
        assert!(life.state.is_none() && life.running.unwrap().is_running());
    }

    #[tokio::test]
    async fn a_container_that_was_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(cidfile(dir.path()), "abc").unwrap();
        let engine = docker(dir.path(), "[ $1 != container ]").await;
        let (state, started) = end_of(dir.path(), &engine, true).await;
        assert!(state.is_none() && !started);
    }

    #[tokio::test]
    async fn what_has_no_cidfile_is_found_by_its_label_and_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "[ $1 != ps ] || echo abc").await;
        let registration = registration(false);
        let place = Place {
            engine: &engine,
            run_dir: dir.path(),
            registration: &registration,
            presence: None,
            control: None,
        };
        let found = Found::look(place, By::Label).await;
        assert!(matches!(&found, Found::There(container) if container.id() == "abc"));
        let asked = format!("label=sandbox-egress.run={}", registration.run_id);
        assert!(calls(dir.path()).contains(&asked), "{}", calls(dir.path()));
        assert_eq!(fs::read_to_string(cidfile(dir.path())).unwrap(), "abc");
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_is_no_container_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(cidfile(dir.path()), "abc").unwrap();
        let engine = docker(dir.path(), "[ $1 = version ]").await;
        let registration = registration(false);
        let place = Place {
            engine: &engine,
            run_dir: dir.path(),
            registration: &registration,
            presence: None,
            control: None,
        };
        assert!(matches!(Found::look(place, By::Label).await, Found::NotYet));
    }
}
