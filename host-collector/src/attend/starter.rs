//! Who starts the container, and how its life is followed from that.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::ExitStatus,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::process::Child;

use super::{
    container::{By, Followed, Found, Life},
    driven::Watched,
    finish::Finish,
    registration::{Launcher, Registration},
    signals::Signals,
};
use crate::{
    engine::{Container, Engine, State},
    run_dir::cidfile,
};

/// Who starts the container.
#[derive(Debug)]
pub(crate) enum Starter<'a> {
    /// A client of the engine's, which this process has started.
    Client(Child, &'a mut Signals),
    /// Somebody else, who may have done it already.
    Another,
}

/// Where a run takes place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) run_dir: &'a Path,
    pub(crate) registration: &'a Registration,
}

impl Starter<'_> {
    /// Follows the container to its end; `started` is told when it runs.
    pub(super) async fn watch(self, place: Place<'_>, started: impl Fn()) -> Watched {
        match self {
            Self::Client(client, signals) => wait_for_client(place, client, signals, started).await,
            Self::Another => match appear(place).await {
                Found::There(container) => {
                    let followed = Followed::of(place, container);
                    let life = followed.ended(&started).await;
                    last_word(place, followed.container(), life).await
                }
                Found::Gone(container) => {
                    let life = Life {
                        is_gone: true,
                        ..Life::default()
                    };
                    last_word(place, container, life).await
                }
                Found::NotYet => Watched::default(),
            },
        }
    }
}

/// Waits for the client, and then for the container, should that outlive it: a client can be killed,
/// or detach from its terminal.
async fn wait_for_client(
    place: Place<'_>,
    mut client: Child,
    signals: &mut Signals,
    started: impl Fn(),
) -> Watched {
    let (launched, clock) = (Timestamp::now(), Instant::now());
    let status = loop {
        let container = || known(place.engine, place.run_dir);
        tokio::select! {
            status = client.wait() => break status,
            signal = signals.next() => signal.send(container(), Some(&client)).await,
        }
    };
    let mut watched = Watched {
        client_code: Some(status.map_or(UNKNOWN, code)),
        ..Watched::default()
    };
    if let Some(container) = known(place.engine, place.run_dir) {
        let followed = Followed::of(place, container);
        let life = loop {
            tokio::select! {
                life = followed.ended(&started) => break life,
                signal = signals.next() => signal.send(Some(followed.container()), None).await,
            }
        };
        (watched.state, watched.is_gone) = (life.state, life.is_gone);
        watched.container = Some(followed.container().id().to_owned());
    }
    watched.was_stopped = signals.were_handed_on();
    // By the clock that does not step: the other may have been set meanwhile.
    let lasted = clock.elapsed();
    let ended = launched.saturating_add(lasted).unwrap_or(launched);
    watched.seen = Some((launched, ended, lasted));
    watched
}

/// Waits for somebody to start the container, but not for ever.
async fn appear(place: Place<'_>) -> Found<'_> {
    for look in 0_u32.. {
        let by = if look % LOOKS_BY_ID == 0 {
            By::Label
        } else {
            By::Id
        };
        let found = Found::look(place, by).await;
        let told = Finish::read(place.run_dir).is_some();
        let late = place.registration.patience_left(Timestamp::now()).is_zero();
        if !matches!(found, Found::NotYet) {
            return found;
        }
        if told || late {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Found::look(place, By::Label).await
}

/// Where the engine cannot tell how a container ended, its launcher may be about to.
async fn last_word(place: Place<'_>, container: Container<'_>, life: Life) -> Watched {
    let gone_at = Timestamp::now();
    let is_known = life.state.as_ref().and_then(State::exit_code).is_some();
    if place.registration.launcher != Launcher::Ours && !is_known {
        let told = async {
            while Finish::read(place.run_dir).is_none() {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORD, told).await;
    }
    Watched {
        container: Some(container.id().to_owned()),
        seen: seen(&life, gone_at),
        state: life.state,
        is_gone: life.is_gone,
        ..Watched::default()
    }
}

/// The times of a container that ran when it was looked at and was gone when its end was waited for.
fn seen(life: &Life, gone_at: Timestamp) -> Option<(Timestamp, Timestamp, Duration)> {
    let launched = life.running.as_ref()?.started_at()?;
    if life.state.is_some() {
        return None;
    }
    let duration = Duration::try_from(gone_at.duration_since(launched)).ok()?;
    Some((launched, gone_at, duration))
}

/// The container whose id the engine has written down.
pub(super) fn known<'a>(engine: &'a Engine, run_dir: &Path) -> Option<Container<'a>> {
    let id = fs::read_to_string(cidfile(run_dir)).ok()?;
    let id = id.trim();
    (!id.is_empty()).then(|| engine.container(id.to_owned()))
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| Some(128 + status.signal()?))
        .unwrap_or(UNKNOWN)
}

/// What the engines say when they could not start a container.
const UNKNOWN: i32 = 125;
/// Between two looks for a container that somebody else is to start.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// How many of them cost no question to the engine, but one.
const LOOKS_BY_ID: u32 = 8;
/// For a launcher that has removed its container, to say how that ended.
const LAST_WORD: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attend::registration::tests::registration,
        engine::tests::{calls, docker},
    };

    #[test]
    fn a_client_that_is_killed_has_the_code_that_shells_give_it() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }

    #[tokio::test]
    async fn a_container_is_known_by_what_the_engine_wrote_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "").await;
        assert!(known(&engine, dir.path()).is_none());
        for (content, is_known) in [("", false), ("\n", false), ("abc", true), ("abc\n", true)] {
            fs::write(cidfile(dir.path()), content).unwrap();
            assert_eq!(
                known(&engine, dir.path()).is_some(),
                is_known,
                "{content:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_nobody_starts_in_time_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "").await;
        let registration = registration(false);
        let place = Place {
            engine: &engine,
            run_dir: dir.path(),
            registration: &registration,
        };
        let watched = Starter::Another.watch(place, || panic!("it runs")).await;
        assert!(watched.container.is_none() && watched.seen.is_none());
        assert!(
            calls(dir.path()).starts_with("ps --all"),
            "{}",
            calls(dir.path())
        );
    }

    #[tokio::test]
    async fn what_its_launcher_has_given_up_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let engine = docker(dir.path(), "").await;
        let mut registration = registration(false);
        registration.time_ms = Timestamp::now().as_millisecond();
        Finish::default().store(dir.path()).unwrap();
        let place = Place {
            engine: &engine,
            run_dir: dir.path(),
            registration: &registration,
        };
        assert!(
            Starter::Another
                .watch(place, || {})
                .await
                .container
                .is_none()
        );
    }
}
