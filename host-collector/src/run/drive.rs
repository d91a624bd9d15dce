//! One launch, from the client's start to the container's removal.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::ExitStatus,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{process::Child, sync::oneshot};

use super::{error::SetUpError, prepare::Prepared, signals::Signals};
use crate::{
    channel::{Attendance, Channel},
    engine::{Container, Engine, State, plan},
};

/// What came of a launch.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) launched: Timestamp,
    pub(crate) ended: Timestamp,
    pub(crate) duration: Duration,
    /// How the engine's client ended: 125 to 127 where it could not start the container.
    pub(crate) client_code: i32,
    /// What the engine says of the container, if there was one.
    pub(crate) state: Option<State>,
    /// What came over the report channel, if there was one.
    pub(crate) attendance: Option<Attendance>,
    /// Whether a signal to this process was handed on.
    pub(crate) was_stopped: bool,
}

/// Launches, listens, hands on signals, and clears up.
pub(crate) async fn drive(prepared: &mut Prepared) -> Result<Driven, SetUpError> {
    let mut signals = Signals::watch()?;
    let (channel, cidfile) = (prepared.channel.take(), prepared.run_dir.cidfile());
    let (launched, clock) = (Timestamp::now(), Instant::now());
    let client = prepared.engine.launch(&plan(&prepared.launch))?;

    let (end, over) = oneshot::channel();
    let attended = attend(channel, over);
    let ended = async {
        let ended = wait(&prepared.engine, client, &cidfile, &mut signals).await;
        // Nobody listens where there is no channel.
        let _ = end.send(());
        ended
    };
    let (attendance, (client_code, state)) = tokio::join!(attended, ended);
    let driven = Driven {
        launched,
        ended: Timestamp::now(),
        duration: clock.elapsed(),
        client_code,
        state,
        attendance,
        was_stopped: signals.were_handed_on(),
    };
    if let Some(container) = container(&prepared.engine, &cidfile) {
        // It stays behind, named by its label. The run is over either way.
        let _ = container.remove().await;
    }
    Ok(driven)
}

async fn attend(channel: Option<Channel>, over: oneshot::Receiver<()>) -> Option<Attendance> {
    Some(channel?.attend(async { drop(over.await) }, |_| {}).await)
}

/// Waits for the client, and then for the container, should that outlive it: a client can be killed,
/// or detach from its terminal.
async fn wait(
    engine: &Engine,
    mut client: Child,
    cidfile: &Path,
    signals: &mut Signals,
) -> (i32, Option<State>) {
    let status = loop {
        tokio::select! {
            status = client.wait() => break status,
            signal = signals.next() => signal.send(container(engine, cidfile), Some(&client)).await,
        }
    };
    let code = status.map_or(UNKNOWN, code);
    let Some(container) = container(engine, cidfile) else {
        return (code, None);
    };
    let mut state = container.state().await;
    while state.as_ref().is_ok_and(State::is_running) {
        tokio::select! {
            ended = container.ended() => if ended.is_err() { break },
            signal = signals.next() => signal.send(Some(container.clone()), None).await,
        }
        state = container.state().await;
    }
    (code, state.ok())
}

fn container<'a>(engine: &'a Engine, cidfile: &Path) -> Option<Container<'a>> {
    let id = fs::read_to_string(cidfile).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Environment, tests::program};

    #[test]
    fn a_client_that_is_killed_has_the_code_that_shells_give_it() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }

    #[tokio::test]
    async fn a_container_is_known_by_what_the_engine_wrote_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        program(dir.path(), "docker", "");
        let path = Environment::of([("PATH", dir.path().to_str().unwrap())]);
        let engine = Engine::find(None, &path).await.unwrap();
        let cidfile = dir.path().join("cid");
        assert!(container(&engine, &cidfile).is_none());
        for (content, known) in [("", false), ("\n", false), ("abc", true), ("abc\n", true)] {
            fs::write(&cidfile, content).unwrap();
            assert_eq!(container(&engine, &cidfile).is_some(), known, "{content:?}");
        }
    }
}
