//! What is made of a launch: a run with its line, or no run at all.

use report::{EndReason, Printable};

use super::{driven::Driven, registration::Registration};
use crate::{
    channel::{Attendance, Refusal, Transport},
    engine::{ENTRYPOINT, EngineKind, State},
    session::{Launched, Network, Processes, Session, VERSION},
};

/// Why a guest was not started.
#[derive(Debug, thiserror::Error)]
pub enum NoRun {
    /// The image has nothing that would enforce the list.
    #[error(
        "image `{image}` has no {ENTRYPOINT}, which enforces the allowlist; \
         build it on the base image, or copy the programs into it (README.md says how)"
    )]
    NoEntrypoint {
        /// As it was named.
        image: Printable,
    },
    /// The engine could not start the container, and said why.
    #[error("{0} did not start the container: its reason is above")]
    NotStarted(EngineKind),
    /// The same, where it was to mount something of this host's.
    #[error(
        "{0} did not start the container: its reason is above; if it mounts nothing of this host's, \
         use --transport exec"
    )]
    NotMounted(EngineKind),
    /// The container was not the one that was launched, or does not fit.
    #[error("the container was turned away: {0}")]
    TurnedAway(String),
    /// The container's own reason, where nobody listened to it.
    #[error("{why}")]
    Refused {
        /// Its exit code.
        code: i32,
        /// The last thing it said.
        why: Printable,
    },
    /// The entrypoint ended early, and said nothing that would explain it.
    #[error(
        "the entrypoint of `{image}` ended with {code} before anything was enforced; the command was not started"
    )]
    Silent {
        /// As it was named.
        image: Printable,
        /// Its exit code.
        code: i32,
    },
}

impl NoRun {
    /// The code to exit with.
    #[must_use]
    pub const fn code(&self) -> i32 {
        match self {
            Self::Refused { code, .. } => *code,
            Self::NoEntrypoint { .. }
            | Self::NotStarted(_)
            | Self::NotMounted(_)
            | Self::TurnedAway(_)
            | Self::Silent { .. } => SET_UP,
        }
    }
}

/// Whether the guest was started. Under an allowlist that is what the container says, who says it
/// before it does it; where it need not report and did not, and without an allowlist, it is what
/// the engine says of the container, or the launcher of one that is gone.
pub(super) fn was_launched(driven: &Driven, report_is_required: bool) -> bool {
    match &driven.attendance {
        None => was_started(driven),
        Some(attendance) if attendance.reports.is_none() && !report_is_required => {
            was_started(driven)
        }
        Some(attendance) => attendance.was_launched(),
    }
}

fn was_started(driven: &Driven) -> bool {
    match (&driven.state, &driven.container, finish_code(driven)) {
        (Some(state), ..) => state.was_started(),
        (None, Some(_), Some(code)) => !(SET_UP..=NOT_FOUND).contains(&code),
        (None, ..) => false,
    }
}

/// The exit code of a launch that was none, or what to say about it where nobody else did.
pub(super) fn refusal(driven: &Driven, registration: &Registration) -> Result<i32, NoRun> {
    let code = driven.client_code.or_else(|| exit_code(driven));
    let code = code.unwrap_or(SET_UP);
    let Some(attendance) = &driven.attendance else {
        return Ok(code);
    };
    let image = || Printable::new(&registration.image);
    if !driven.state.as_ref().is_some_and(State::was_started) {
        return Err(match code {
            NOT_FOUND => NoRun::NoEntrypoint { image: image() },
            _ if mounts(registration) => NoRun::NotMounted(registration.engine),
            _ => NoRun::NotStarted(registration.engine),
        });
    }
    if let Some(refusal @ (Refusal::Policy { .. } | Refusal::Protocol(_))) =
        &attendance.refusals.last
    {
        return Err(NoRun::TurnedAway(refusal.to_string()));
    }
    // The entrypoint has said why in a line of its own, or a signal ended it.
    if matches!(code, CONFIG | SET_UP..) {
        return Ok(code);
    }
    Err(NoRun::Silent {
        image: image(),
        code,
    })
}

/// Whether the report channel was to be mounted into the container.
fn mounts(registration: &Registration) -> bool {
    let terms = registration.terms.as_ref();
    terms.is_some_and(|terms| terms.transport != Transport::Exec)
}

/// The exit code of a run: from whoever knows it best.
pub(crate) fn exit_code(driven: &Driven) -> Option<i32> {
    let of_engine = driven.state.as_ref().and_then(State::exit_code);
    let reported = driven.attendance.as_ref().and_then(exit);
    let reported = reported.and_then(reported_code);
    // A client that was killed, or whose engine is gone, says nothing of the guest.
    of_engine
        .or(reported)
        .or(driven.client_code)
        .or_else(|| finish_code(driven))
}

fn reported_code(exit: &report::Exit) -> Option<i32> {
    exit.code
        .or_else(|| Some(128_i32.saturating_add(exit.signal?)))
}

fn finish_code(driven: &Driven) -> Option<i32> {
    driven.finish.as_ref()?.exit_code
}

/// The line of a run that has ended.
pub(super) fn session(driven: &Driven, registration: &Registration) -> Session {
    let exit = driven.attendance.as_ref().and_then(exit);
    let code = exit_code(driven);
    let network_name = driven
        .state
        .as_ref()
        .and_then(State::network_name)
        .map(ToOwned::to_owned);
    let told = driven.finish.as_ref().and_then(|finish| finish.end_reason);
    let begun = unfinished(registration);
    Session {
        time: format!("{:.3}", driven.launched),
        ended: driven.ended.map(|ended| format!("{ended:.3}")),
        duration_ms: driven
            .duration
            .and_then(|duration| u64::try_from(duration.as_millis()).ok()),
        launch: Launched {
            network_name,
            ..begun.launch
        },
        finished: Some(true),
        exit_code: code,
        signal: exit.and_then(|exit| exit.signal),
        // Only the launcher knows of limits of its own.
        end_reason: told
            .or_else(|| exit.map(|exit| reported_end(driven, exit)))
            .or_else(|| observed_end(driven, code)),
        network: driven
            .attendance
            .as_ref()
            .map_or_else(Network::unwatched, Network::of),
        processes: exit.map(|exit| Processes {
            outlived_root: Some(exit.outlived_root),
            ..Processes::default()
        }),
        ..begun
    }
}

/// The line of a run whose end is not known.
pub(super) fn unfinished(registration: &Registration) -> Session {
    Session {
        v: Some(VERSION),
        time: format!("{:.3}", registration.time()),
        host: Some(registration.host.clone()),
        run_id: Some(registration.run_id.as_str().to_owned()),
        launch: registration.record.clone(),
        detached: registration.detached,
        ..Session::default()
    }
}

fn exit(attendance: &Attendance) -> Option<&report::Exit> {
    attendance.reports.as_ref()?.account.exit()
}

/// PID 1 saw how its guest ended. That it was the kernel, out of memory, that killed it, it sees only
/// where the container has its control group mounted.
fn reported_end(driven: &Driven, exit: &report::Exit) -> EndReason {
    let oom_killed = driven.state.as_ref().is_some_and(State::is_oom_killed);
    match (exit.end_reason, exit.signal) {
        (EndReason::Signaled, Some(SIGKILL)) if oom_killed => EndReason::Oom,
        (reason, _) => reason,
    }
}

/// What the engine alone can tell. Codes from 126 on may be a start that failed or a signal, and a
/// program's own all the same.
fn observed_end(driven: &Driven, code: Option<i32>) -> Option<EndReason> {
    if driven.state.as_ref().is_some_and(State::is_oom_killed) {
        return Some(EndReason::Oom);
    }
    if driven.attendance.is_some() {
        return None;
    }
    let exited = code
        .is_some_and(|code| code < CANNOT_START)
        .then_some(EndReason::Exited);
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

    use super::{
        super::{finish::Finish, registration::tests::registration},
        *,
    };
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
                transport: Transport::Socket,
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
        Driven {
            launched: Timestamp::UNIX_EPOCH,
            ended: Some(Timestamp::UNIX_EPOCH),
            duration: Some(Duration::from_millis(7)),
            client_code: Some(client_code),
            container: Some("abc".into()),
            state,
            attendance,
            was_stopped: false,
            finish: None,
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
            let said = refusal(&driven, &registration(true));
            match (said, explained) {
                (Ok(code), None) => assert_eq!(Some(code), driven.client_code),
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
                (said, _) => panic!("{said:?} for {driven:?}"),
            }
        }
    }

    #[test]
    fn the_other_transport_is_named_where_a_mount_may_be_the_reason() {
        let driven = driven(125, None, Some(attendance(None)));
        for (transport, named) in [
            (Transport::Auto, true),
            (Transport::Socket, true),
            (Transport::Exec, false),
        ] {
            let mut registration = registration(true);
            registration.terms.as_mut().unwrap().transport = transport;
            let said = refusal(&driven, &registration).unwrap_err().to_string();
            assert!(said.contains("its reason is above"), "{said}");
            assert_eq!(said.contains("--transport exec"), named, "{transport:?}");
        }
    }

    #[test]
    fn a_container_that_does_not_fit_is_the_reason() {
        let mut turned_away = attendance(None);
        turned_away.refusals = Refusals {
            count: 1,
            last: Some(Refusal::Protocol(7)),
            way_in: None,
        };
        let error = refusal(
            &driven(125, Some(state(true, 125, false)), Some(turned_away)),
            &registration(true),
        );
        assert!(error.unwrap_err().to_string().contains("protocol 7"));
    }

    #[test]
    fn how_it_ended_is_what_pid_1_saw_or_else_what_the_engine_can_tell() {
        let line = |client, state, attended| {
            let driven = driven(client, state, attended);
            let session = session(&driven, &registration(true));
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
        let session = session(&driven, &registration(true));
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
            session(&driven, &registration(true)).end_reason
        };
        assert_eq!(stopped(None), Some(EndReason::Stopped));
        let told = attendance(Some(vec![Body::Unknown, enforcing(), exited(None)]));
        assert_eq!(stopped(Some(told)), Some(EndReason::Exited));
    }

    #[test]
    fn the_code_is_that_of_whoever_knows_it_best() {
        let told = Finish {
            exit_code: Some(9),
            end_reason: None,
        };
        let reported = || Some(attendance(Some(vec![Body::Unknown, exited(Some(15))])));
        let of = |state, client_code, attendance, finish| {
            exit_code(&Driven {
                client_code,
                finish,
                ..driven(0, state, attendance)
            })
        };
        let ended = || Some(state(true, 3, false));
        assert_eq!(of(ended(), Some(4), reported(), Some(told)), Some(3));
        assert_eq!(of(None, Some(4), reported(), Some(told)), Some(143));
        assert_eq!(of(None, Some(4), None, Some(told)), Some(4));
        assert_eq!(of(None, Some(125), reported(), Some(told)), Some(143));
        assert_eq!(of(None, Some(125), None, None), Some(125));
        assert_eq!(of(None, None, reported(), Some(told)), Some(143));
        assert_eq!(of(None, None, None, Some(told)), Some(9));
        assert_eq!(of(None, None, None, None), None);
    }

    #[test]
    fn a_container_that_is_gone_has_run_if_its_launcher_says_how_it_ended() {
        for (code, launched) in [
            (Some(0), true),
            (Some(137), true),
            (Some(125), false),
            (Some(127), false),
            (None, false),
        ] {
            let finish = Some(Finish {
                exit_code: code,
                end_reason: None,
            });
            let driven = Driven {
                client_code: None,
                finish,
                ..driven(0, None, None)
            };
            assert_eq!(was_launched(&driven, true), launched, "{code:?}");
        }
    }

    #[test]
    fn only_the_launcher_knows_of_limits_of_its_own() {
        let mut driven = driven(
            137,
            Some(state(true, 137, false)),
            Some(attendance(Some(vec![
                Body::Unknown,
                enforcing(),
                exited(Some(9)),
            ]))),
        );
        driven.finish = Some(Finish {
            exit_code: None,
            end_reason: Some(EndReason::TimedOut),
        });
        let session = session(&driven, &registration(true));
        assert_eq!(
            (session.end_reason, session.signal),
            (Some(EndReason::TimedOut), Some(9))
        );
    }

    #[test]
    fn a_run_whose_end_is_not_known_has_no_code_and_is_not_finished() {
        let session = unfinished(&Registration {
            detached: true,
            ..registration(true)
        });
        assert_eq!(
            (session.finished, session.exit_code, session.detached),
            (None, None, true)
        );
        assert_eq!(session.time, "1970-01-01T00:00:01.000Z");
        assert_eq!(session.network, Network::default());
    }

    #[test]
    fn every_reason_is_one_line_that_names_the_image() {
        let image = Printable::new("img\nx");
        for error in [
            NoRun::NoEntrypoint {
                image: image.clone(),
            },
            NoRun::Silent { image, code: 3 },
        ] {
            let line = error.to_string();
            assert!(
                !line.contains('\n') && line.contains("img\\u{a}x"),
                "{line}"
            );
        }
    }
}
