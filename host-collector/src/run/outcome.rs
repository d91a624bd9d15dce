//! What is made of a launch: a run with its line, or no run at all.

use report::{EndReason, Printable};

use super::{drive::Driven, error::SetUpError};
use crate::{
    channel::{Attendance, Refusal},
    engine::{EngineKind, State},
    run_id::RunId,
    session::{Launched, Network, Processes, Session, VERSION},
};

/// Whether the guest was started. Under an allowlist that is what the container says, who says it
/// before it does it; where it need not report and did not, and without an allowlist, it is what
/// the engine says of the container.
pub(crate) fn was_launched(driven: &Driven, report_is_required: bool) -> bool {
    let started = driven.state.as_ref().is_some_and(State::was_started);
    match &driven.attendance {
        None => started,
        Some(attendance) if attendance.reports.is_none() && !report_is_required => started,
        Some(attendance) => attendance.was_launched(),
    }
}

/// The exit code of a launch that was none, or what to say about it where nobody else did.
pub(crate) fn refusal(driven: &Driven, engine: EngineKind, image: &str) -> Result<i32, SetUpError> {
    let started = driven.state.as_ref().is_some_and(State::was_started);
    let code = driven.client_code;
    let Some(attendance) = &driven.attendance else {
        return Ok(code);
    };
    if !started {
        return Err(match code {
            NOT_FOUND => SetUpError::NoEntrypoint {
                image: Printable::new(image),
            },
            _ => SetUpError::NotStarted(engine),
        });
    }
    if let Some(refusal @ (Refusal::Policy { .. } | Refusal::Protocol(_))) =
        &attendance.refusals.last
    {
        return Err(SetUpError::TurnedAway(refusal.to_string()));
    }
    // The entrypoint has said why in a line of its own, or a signal ended it.
    if matches!(code, CONFIG | SET_UP..) {
        return Ok(code);
    }
    Err(SetUpError::Silent {
        image: Printable::new(image),
        code,
    })
}

/// The exit code of a run.
pub(crate) fn exit_code(driven: &Driven) -> i32 {
    driven
        .state
        .as_ref()
        .and_then(State::exit_code)
        .unwrap_or(driven.client_code)
}

/// The line of a run.
pub(crate) fn session(driven: &Driven, launch: Launched, run_id: &RunId, host: String) -> Session {
    let exit = driven.attendance.as_ref().and_then(exit);
    let code = exit_code(driven);
    let network_name = driven
        .state
        .as_ref()
        .and_then(State::network_name)
        .map(ToOwned::to_owned);
    Session {
        v: Some(VERSION),
        time: format!("{:.3}", driven.launched),
        ended: Some(format!("{:.3}", driven.ended)),
        duration_ms: u64::try_from(driven.duration.as_millis()).ok(),
        host: Some(host),
        run_id: Some(run_id.as_str().to_owned()),
        launch: Launched {
            network_name,
            ..launch
        },
        detached: false,
        finished: Some(true),
        exit_code: Some(code),
        signal: exit.and_then(|exit| exit.signal),
        end_reason: exit
            .map(|exit| reported_end(driven, exit))
            .or_else(|| observed_end(driven, code)),
        network: driven
            .attendance
            .as_ref()
            .map_or_else(Network::unwatched, Network::of),
        processes: exit.map(|exit| Processes {
            outlived_root: Some(exit.outlived_root),
            ..Processes::default()
        }),
        ..Session::default()
    }
}

fn exit(attendance: &Attendance) -> Option<&report::Exit> {
    attendance.reports.as_ref()?.account.exit()
}

/// PID 1 saw how its guest ended, but not that it was the kernel, out of memory, that killed it.
fn reported_end(driven: &Driven, exit: &report::Exit) -> EndReason {
    let oom_killed = driven.state.as_ref().is_some_and(State::is_oom_killed);
    match (exit.end_reason, exit.signal) {
        (EndReason::Signaled, Some(SIGKILL)) if oom_killed => EndReason::Oom,
        (reason, _) => reason,
    }
}

/// What the engine alone can tell. Codes from 126 on may be a start that failed or a signal, and a
/// program's own all the same.
fn observed_end(driven: &Driven, code: i32) -> Option<EndReason> {
    if driven.state.as_ref().is_some_and(State::is_oom_killed) {
        return Some(EndReason::Oom);
    }
    if driven.attendance.is_some() {
        return None;
    }
    let exited = (code < CANNOT_START).then_some(EndReason::Exited);
    if driven.was_stopped {
        Some(EndReason::Stopped)
    } else {
        exited
    }
}

/// `EX_CONFIG` of sysexits.h, as the entrypoint uses it.
const CONFIG: i32 = 78;
const SET_UP: i32 = 125;
const SIGKILL: i32 = 9;
const CANNOT_START: i32 = 126;
const NOT_FOUND: i32 = 127;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use report::{Account, Body, Enforcement, Enforcing, Exit, Ipv6, PeerEnd, Received, Seed};

    use super::*;
    use crate::channel::{Journal, Refusals, Reports};

    fn state(started: bool, code: i32, oom: bool) -> State {
        let at = if started {
            "2026-11-29T16:44:43Z"
        } else {
            "0001-01-01T00:00:00Z"
        };
        serde_json::from_value(serde_json::json!({
            "state": {"Running": false, "OOMKilled": oom, "ExitCode": code, "StartedAt": at},
            "networks": {"bridge": null},
        }))
        .unwrap()
    }

    fn attendance(bodies: Option<Vec<Body<report::Reason>>>) -> Attendance {
        let dir = tempfile::tempdir().unwrap();
        let reports = bodies.map(|bodies| {
            let mut account = Account::new(Seed([0; 16]));
            for (seq, body) in (1..).zip(bodies) {
                account.apply(&Received { body, seq, t: 0 });
            }
            Reports {
                account,
                peer: PeerEnd::Exited,
                fault: None,
                resumed: 0,
            }
        });
        let journal = Journal::open(&dir.path().join("j"), 0).unwrap().0;
        Attendance {
            reports,
            refusals: Refusals::default(),
            journal,
        }
    }

    fn driven(client_code: i32, state: Option<State>, attendance: Option<Attendance>) -> Driven {
        let (launched, ended) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        Driven {
            launched,
            ended,
            duration: Duration::from_millis(7),
            client_code,
            state,
            attendance,
            was_stopped: false,
        }
    }

    fn enforcing() -> Body<report::Reason> {
        let word = Printable::new("x");
        Body::Enforcing(Enforcing {
            enforcement: Enforcement::Name,
            backend: word.clone(),
            ruleset_digest: word,
            self_test: Vec::new(),
            ipv6: Ipv6::Absent,
            degradations: Vec::new(),
        })
    }

    fn exited(signal: Option<i32>) -> Body<report::Reason> {
        let end_reason = if signal.is_some() {
            EndReason::Signaled
        } else {
            EndReason::Exited
        };
        Body::Exit(Exit {
            code: None,
            signal,
            end_reason,
            cpu_ms: 0,
            peak_rss_kb: None,
            outlived_root: 2,
            detail: None,
        })
    }

    #[test]
    fn under_an_allowlist_only_the_container_s_word_makes_a_launch() {
        let running = || Some(state(true, 0, false));
        for (attended, required, launched) in [
            (Some(attendance(None)), true, false),
            (Some(attendance(Some(vec![Body::Unknown]))), true, false),
            (Some(attendance(Some(vec![Body::Unknown]))), false, false),
            (
                Some(attendance(Some(vec![Body::Unknown, enforcing()]))),
                true,
                true,
            ),
            (Some(attendance(None)), false, true),
            (None, true, true),
        ] {
            let driven = driven(0, running(), attended);
            assert_eq!(was_launched(&driven, required), launched, "{driven:?}");
        }
        assert!(!was_launched(
            &driven(127, Some(state(false, 127, false)), None),
            true
        ));
    }

    #[test]
    fn a_refused_launch_is_explained_once() {
        let never = || Some(state(false, 0, false));
        let ran = || Some(state(true, 0, false));
        let attended = || Some(attendance(None));
        for (driven, explained) in [
            (
                driven(127, never(), attended()),
                Some("has no /usr/local/bin/sandbox-entrypoint"),
            ),
            (
                driven(126, never(), attended()),
                Some("docker did not start the container"),
            ),
            (
                driven(125, None, attended()),
                Some("docker did not start the container"),
            ),
            (
                driven(0, ran(), attended()),
                Some("ended with 0 before anything was enforced"),
            ),
            (driven(78, ran(), attended()), None),
            (driven(125, ran(), attended()), None),
            (driven(143, ran(), attended()), None),
            (driven(125, None, None), None),
        ] {
            let said = refusal(&driven, EngineKind::Docker, "img");
            match (said, explained) {
                (Ok(code), None) => assert_eq!(code, driven.client_code),
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
                (said, _) => panic!("{said:?} for {driven:?}"),
            }
        }
    }

    #[test]
    fn a_container_that_does_not_fit_is_the_reason() {
        let mut turned_away = attendance(None);
        turned_away.refusals = Refusals {
            count: 1,
            last: Some(Refusal::Protocol(7)),
        };
        let error = refusal(
            &driven(125, Some(state(true, 125, false)), Some(turned_away)),
            EngineKind::Docker,
            "img",
        );
        assert!(error.unwrap_err().to_string().contains("protocol 7"));
    }

    #[test]
    fn how_it_ended_is_what_pid_1_saw_or_else_what_the_engine_can_tell() {
        let line = |client, state, attended| {
            let driven = driven(client, state, attended);
            let session = session(
                &driven,
                Launched::default(),
                &RunId::random().unwrap(),
                "h".into(),
            );
            (session.exit_code, session.signal, session.end_reason)
        };
        let reported = |signal| {
            Some(attendance(Some(vec![
                Body::Unknown,
                enforcing(),
                exited(signal),
            ])))
        };
        let broken = || Some(attendance(Some(vec![Body::Unknown, enforcing()])));
        for (found, expected) in [
            (
                line(143, Some(state(true, 143, false)), reported(Some(15))),
                (Some(143), Some(15), Some(EndReason::Signaled)),
            ),
            (
                line(0, Some(state(true, 0, false)), reported(None)),
                (Some(0), None, Some(EndReason::Exited)),
            ),
            (
                line(137, Some(state(true, 137, true)), reported(Some(9))),
                (Some(137), Some(9), Some(EndReason::Oom)),
            ),
            (
                line(0, Some(state(true, 0, true)), reported(None)),
                (Some(0), None, Some(EndReason::Exited)),
            ),
            (
                line(137, Some(state(true, 137, true)), broken()),
                (Some(137), None, Some(EndReason::Oom)),
            ),
            (
                line(137, Some(state(true, 137, false)), broken()),
                (Some(137), None, None),
            ),
            (
                line(137, Some(state(true, 137, false)), None),
                (Some(137), None, None),
            ),
            (
                line(127, Some(state(true, 127, false)), None),
                (Some(127), None, None),
            ),
            (
                line(3, Some(state(true, 3, false)), None),
                (Some(3), None, Some(EndReason::Exited)),
            ),
            (line(5, None, broken()), (Some(5), None, None)),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn times_are_rfc_3339_and_the_network_s_name_is_the_engine_s() {
        let driven = driven(0, Some(state(true, 0, false)), None);
        let session = session(
            &driven,
            Launched::default(),
            &RunId::random().unwrap(),
            "h".into(),
        );
        assert_eq!(session.time, "1970-01-01T00:00:00.000Z");
        assert_eq!(
            (session.duration_ms, session.launch.network_name.as_deref()),
            (Some(7), Some("bridge"))
        );
        assert_eq!(
            (session.v, session.finished, session.processes),
            (Some(2), Some(true), None)
        );
    }

    #[test]
    fn a_run_that_was_told_to_end_was_stopped_where_nobody_else_could_say_so() {
        let stopped = |attended| {
            let driven = driven(143, Some(state(true, 143, false)), attended);
            let driven = Driven {
                was_stopped: true,
                ..driven
            };
            session(
                &driven,
                Launched::default(),
                &RunId::random().unwrap(),
                "h".into(),
            )
            .end_reason
        };
        assert_eq!(stopped(None), Some(EndReason::Stopped));
        let told = attendance(Some(vec![Body::Unknown, enforcing(), exited(None)]));
        assert_eq!(stopped(Some(told)), Some(EndReason::Exited));
    }
}
