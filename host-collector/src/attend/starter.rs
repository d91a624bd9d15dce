//! Who starts the container, and how its life is followed from that.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    pin::Pin,
    process::ExitStatus,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{process::Child, sync::watch};

use super::{
    container::{By, Followed, Found, Life},
    driven::Watched,
    finish::Finish,
    registration::{Launcher, Registration},
    sight::{Lost, lost},
    signals::{Forwarded, Signals},
};
use crate::{
    channel::Presence,
    engine::{Container, Engine, State},
    run_dir::cidfile,
    steer::Control,
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
    /// What the channel sees of the container's first process, where there is a channel.
    pub(crate) presence: Option<&'a watch::Receiver<Presence>>,
    /// Who speaks to the container over the channel.
    pub(crate) control: Option<&'a Control>,
}

impl Place<'_> {
    fn seen(&self) -> Presence {
        self.presence
            .map_or(Presence::Unseen, |presence| *presence.borrow())
    }

    /// Who can tell process 1 something, while that is there to hear it.
    fn listener(&self) -> Option<&Control> {
        self.control.filter(|_| self.seen() == Presence::There)
    }
}

impl Starter<'_> {
    /// Follows the container to its end, as the engine tells it or as it is seen without it; `started`
    /// is told when it runs.
    pub(super) async fn watch(self, place: Place<'_>, started: impl Fn()) -> Watched {
        let lost = std::pin::pin!(lost(place));
        match self {
            Self::Client(client, signals) => {
                wait_for_client(place, client, signals, started, lost).await
            }
            Self::Another => wait_for_another(place, started, lost).await,
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
    mut lost: Pin<&mut impl Future<Output = Lost>>,
) -> Watched {
    let begun = (Timestamp::now(), Instant::now());
    let container = || known(place.engine, place.run_dir);
    let status = loop {
        tokio::select! {
            status = client.wait() => break Ok(status),
            signal = signals.next() => signal.send(container(), Some(&client), place.listener()).await,
            lost = lost.as_mut() => break Err(lost),
        }
    };
    let mut watched = Watched::default();
    let life = match (status, container()) {
        (Ok(status), container) => {
            watched.client_code = Some(status.map_or(UNKNOWN, code));
            match container {
                Some(container) => {
                    let followed = Followed::of(place, container);
                    follow(place, &followed, &started, lost, Some(signals)).await
                }
                None => Life::default(),
            }
        }
        (Err(lost), _) => {
            // It waits for a word that will not come.
            let _ = client.kill().await;
            Life {
                lost: Some(lost),
                ..Life::default()
            }
        }
    };
    if life.lost.is_some() {
        // What a client says of a container that its engine has lost is about the engine.
        watched.client_code = None;
    }
    watched.was_stopped = signals.were_handed_on();
    watched.container = container().map(|container| container.id().to_owned());
    watched.seen = Some(lasted(begun, life.lost.as_ref()));
    watched.with(life)
}

/// Waits for the container that another has started, or is to start.
async fn wait_for_another(
    place: Place<'_>,
    started: impl Fn(),
    mut lost: Pin<&mut impl Future<Output = Lost>>,
) -> Watched {
    let found = tokio::select! {
        found = appear(place) => found,
        lost = lost.as_mut() => {
            let container = known(place.engine, place.run_dir);
            let container = container.map(|container| container.id().to_owned());
            let life = Life { lost: Some(lost), ..Life::default() };
            return Watched { container, ..Watched::default() }.with(life);
        }
    };
    match found {
        Found::There(container) => {
            let followed = Followed::of(place, container);
            let life = follow(place, &followed, &started, lost, None).await;
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
    }
}

/// Follows a container to its end. An engine that cannot be asked any more is no end of one whose
/// process is seen.
async fn follow(
    place: Place<'_>,
    followed: &Followed<'_>,
    started: &impl Fn(),
    mut lost: Pin<&mut impl Future<Output = Lost>>,
    mut signals: Option<&mut Signals>,
) -> Life {
    let (mut is_unanswered, mut running) = (false, None);
    loop {
        tokio::select! {
            life = followed.ended(started), if !is_unanswered => {
                if !life.goes_on() || place.seen() == Presence::Unseen {
                    return life;
                }
                (is_unanswered, running) = (true, life.running);
            }
            signal = next(&mut signals) => {
                signal.send(Some(followed.container()), None, place.listener()).await;
            }
            lost = lost.as_mut() => {
                return Life { running, lost: Some(lost), ..Life::default() };
            }
        }
    }
}

/// The next signal that is to be handed on; never where none are.
async fn next(signals: &mut Option<&mut Signals>) -> Forwarded {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// From when to when, and how long: by the clock that does not step, since the other may have been
/// set meanwhile.
fn lasted(
    (launched, clock): (Timestamp, Instant),
    lost: Option<&Lost>,
) -> (Timestamp, Timestamp, Duration) {
    let lasted = match lost {
        Some(lost) => lost.at.1.saturating_duration_since(clock),
        None => clock.elapsed(),
    };
    let ended = launched.saturating_add(lasted).unwrap_or(launched);
    (launched, ended, lasted)
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
    let gone_at = life
        .lost
        .as_ref()
        .map_or_else(Timestamp::now, |lost| lost.at.0);
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
        ..Watched::default()
    }
    .with(life)
}

/// The times of a container that ran when it was looked at and was gone when its end was waited for.
fn seen(life: &Life, gone_at: Timestamp) -> Option<(Timestamp, Timestamp, Duration)> {
    let of_lost = || life.lost.as_ref()?.state.as_ref();
    let launched = life.running.as_ref().or_else(of_lost)?.started_at()?;
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
            presence: None,
            control: None,
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
            presence: None,
            control: None,
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
