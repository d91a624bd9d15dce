//! Containers that their engine has lost sight of. Podman learns of an end from conmon and docker
//! from its daemon: where that was killed, an engine says for ever that the container runs, or
//! nothing. The end is seen all the same, by a handle on the container's first process.

use std::{
    fs,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use procwatch::{Process, State as ProcessState};
use rustix::process::Pid;
use tokio::time::{sleep, timeout};

use super::starter::{Place, known};
use crate::{
    channel::{Pidfd, Presence},
    engine::{Engine, State},
};

/// An end that an engine does not tell of.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    pub(super) at: (Timestamp, Instant),
    /// What the engine takes the container's state to be.
    pub(super) state: Option<State>,
    /// Whether its first process is known to be gone, whoever reported.
    pub(super) has_ended: bool,
}

impl Lost {
    /// An end that was seen just now.
    pub(super) fn now(state: Option<State>) -> Self {
        Self {
            at: (Timestamp::now(), Instant::now()),
            state,
            has_ended: false,
        }
    }
}

/// Waits for an end that is seen over the channel and that the engine will not tell of, although it
/// had the time. Never returns where the engine tells, or where nobody sees the process.
pub(super) async fn lost(place: Place<'_>) -> Lost {
    let Some(mut presence) = place.presence.cloned() else {
        return std::future::pending().await;
    };
    let gone = presence.wait_for(|presence| *presence == Presence::Gone);
    if gone.await.is_err() {
        return std::future::pending().await;
    }
    let seen = Lost::now(None);
    sleep(SOON).await;
    sleep(match look(place).await {
        View::Unwatched(_) => Duration::ZERO,
        View::Running(_) => LONGEST,
        View::Silent => AWAY,
        View::Over => return std::future::pending().await,
    })
    .await;
    match look(place).await {
        // Its client may have something to say to whoever is slow to read it.
        View::Over => std::future::pending().await,
        View::Running(state) => Lost {
            state: Some(state),
            ..seen
        },
        View::Unwatched(state) => Lost {
            has_ended: state.process().is_some_and(|first| !is_there(first)),
            state: Some(state),
            ..seen
        },
        View::Silent => seen,
    }
}

/// What an engine knows of a container whose first process has ended.
enum View {
    /// That it has ended.
    Over,
    /// It takes it for running, as it does for a moment after every end.
    Running(State),
    /// The same, and there is nobody left who would tell it.
    Unwatched(State),
    /// It does not answer.
    Silent,
}

async fn look(place: Place<'_>) -> View {
    let Some(container) = known(place.engine, place.run_dir) else {
        return View::Silent;
    };
    match timeout(ANSWER, container.state()).await {
        Ok(Ok(state)) if !state.is_running() => View::Over,
        Ok(Ok(state)) if is_unwatched(place.engine, &state).await => View::Unwatched(state),
        Ok(Ok(state)) => View::Running(state),
        Ok(Err(_)) | Err(_) => View::Silent,
    }
}

/// Whether nobody is left who would tell the engine that the container has ended.
async fn is_unwatched(engine: &Engine, state: &State) -> bool {
    let is_killed = state.monitor().is_some_and(|monitor| !is_there(monitor));
    is_killed && engine.is_of_this_machine().await
}

/// Waits in the engine's place for the end of a container that it does not watch any more. `None`
/// where it watches, or where its first process is not to be told from another.
pub(super) async fn outlast(engine: &Engine, state: &State) -> Option<Lost> {
    if !is_unwatched(engine, state).await {
        return None;
    }
    let number = state.process()?;
    if let Some(process) = Pid::from_raw(number).and_then(|process| Pidfd::open(process).ok())
        && is_there(number)
    {
        // The number may have passed to another process before the handle was taken.
        if !is_first_of_its_own(number) {
            return None;
        }
        process.ended().await;
    }
    Some(Lost {
        has_ended: true,
        ..Lost::now(Some(state.clone()))
    })
}

fn is_there(number: i32) -> bool {
    Process::observe(number).is_ok_and(|process| process.state == ProcessState::Alive)
}

/// Whether a process is number 1 of a namespace below ours, as a container's first one is.
fn is_first_of_its_own(number: i32) -> bool {
    fs::read_to_string(format!("/proc/{number}/status")).is_ok_and(|status| is_first(&status))
}

fn is_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut numbers = numbers.unwrap_or_default().split_whitespace();
    numbers.next().is_some() && numbers.next_back() == Some("1")
}

/// For an engine to hear of an end: it takes a tenth of that.
const SOON: Duration = Duration::from_secs(1);
/// For one that takes a container for running, and has a great deal to do.
const LONGEST: Duration = Duration::from_secs(30);
/// For one that does not answer to be started anew. Its word is worth little more: the code is in the
/// report.
const AWAY: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::watch;

    use super::*;
    use crate::{
        attend::registration::tests::registration, engine::tests::docker, run_dir::cidfile,
    };

    /// No process has this number.
    const NOBODY: i32 = i32::MAX;

    fn state(json: &serde_json::Value) -> State {
        serde_json::from_value(serde_json::json!({ "state": json })).unwrap()
    }

    fn running(monitor: i32, first: i32) -> serde_json::Value {
        serde_json::json!({
            "Running": true, "StartedAt": "2026-11-29T16:44:43Z",
            "ConmonPid": monitor, "Pid": first,
        })
    }

    /// An engine that says this of its container, and what else it is told.
    async fn engine(dir: &Path, state: &serde_json::Value, more: &str) -> Engine {
        fs::write(cidfile(dir), "abc").unwrap();
        let state = serde_json::json!({ "state": state });
        let script = format!("case $1 in container) echo '{state}' ;; {more} esac");
        docker(dir, &script).await
    }

    /// Whether an end that was seen is one that the engine does not tell of.
    async fn is_lost(dir: &Path, engine: &Engine, seen: Presence) -> bool {
        let registration = registration(true);
        let (tell, presence) = watch::channel(Presence::There);
        let place = Place {
            engine,
            run_dir: dir,
            registration: &registration,
            presence: Some(&presence),
            control: None,
        };
        tell.send_replace(seen);
        timeout(3 * SOON, lost(place)).await.is_ok()
    }

    const HERE: &str = "info) echo false ;;";

    #[tokio::test]
    async fn an_end_is_lost_on_an_engine_whose_monitor_was_killed_and_on_no_other() {
        let own = std::process::id().cast_signed();
        let ended = serde_json::json!({ "StartedAt": "2026-11-29T16:44:43Z" });
        for (state, more, seen, is) in [
            (running(NOBODY, NOBODY), HERE, Presence::Gone, true),
            (running(NOBODY, NOBODY), HERE, Presence::There, false),
            // It may be a number of another machine's.
            (running(NOBODY, NOBODY), "", Presence::Gone, false),
            (running(own, NOBODY), HERE, Presence::Gone, false),
            (ended, HERE, Presence::Gone, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let engine = engine(dir.path(), &state, more).await;
            assert_eq!(
                is_lost(dir.path(), &engine, seen).await,
                is,
                "{state} {more}"
            );
        }
    }

    #[tokio::test]
    async fn nothing_is_lost_where_nobody_sees_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), &running(NOBODY, NOBODY), HERE).await;
        assert!(!is_lost(dir.path(), &engine, Presence::Unseen).await);
    }

    #[tokio::test]
    async fn without_a_monitor_the_end_is_that_of_the_first_process() {
        let own = std::process::id().cast_signed();
        for (monitor, first, is_seen) in [
            (NOBODY, NOBODY, true),
            // That is no container's.
            (NOBODY, own, false),
            (own, NOBODY, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let state = running(monitor, first);
            let engine = engine(dir.path(), &state, HERE).await;
            let seen = outlast(&engine, &self::state(&state)).await;
            assert!(seen.as_ref().is_none_or(|seen| seen.has_ended));
            assert_eq!(seen.is_some(), is_seen, "{monitor} {first}");
        }
    }

    #[test]
    fn the_first_process_of_a_container_is_told_from_others() {
        for (numbers, is) in [
            ("4711\t1", true),
            ("4711\t8\t1", true),
            ("4711\t11", false),
            ("1", false),
            ("4711", false),
            ("", false),
        ] {
            let status = format!("Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t1\t1\n");
            assert_eq!(is_first(&status), is, "{numbers}");
        }
        assert!(!is_first("Name:\tx\n"));
    }
}
