//! What came of a launch, before anything is made of it.

use std::time::Duration;

use jiff::Timestamp;
use report::PeerEnd;

use super::{container::Life, finish::Finish, registration::Registration};
use crate::{channel::Attendance, engine::State};

/// What came of a launch.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) launched: Timestamp,
    /// Unknown where nobody saw it and the engine does not say.
    pub(crate) ended: Option<Timestamp>,
    pub(crate) duration: Option<Duration>,
    /// How the engine's client ended, where this process started it: 125 to 127 where it could not
    /// start the container.
    pub(crate) client_code: Option<i32>,
    /// The container, if there was one.
    pub(crate) container: Option<String>,
    /// What the engine says of it.
    pub(crate) state: Option<State>,
    /// What came over the report channel, if there was one.
    pub(crate) attendance: Option<Attendance>,
    /// Whether a signal to this process was handed on.
    pub(crate) was_stopped: bool,
    /// What the launcher said, where that is another program.
    pub(crate) finish: Option<Finish>,
}

/// What was seen of a container.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// How the engine's client ended, where this process started it.
    pub(crate) client_code: Option<i32>,
    pub(crate) container: Option<String>,
    pub(crate) state: Option<State>,
    /// Whether the container is gone, as the engine says, or its first process.
    pub(crate) is_gone: bool,
    pub(crate) was_stopped: bool,
    /// When it was launched and ended, and how long that took, where this process saw it.
    pub(crate) seen: Option<(Timestamp, Timestamp, Duration)>,
}

impl Watched {
    /// With what was seen of the container's life. Where the engine has lost it, what it still takes
    /// for true is all that it says.
    pub(super) fn with(self, life: Life) -> Self {
        let is_gone = life.is_gone || life.lost.as_ref().is_some_and(|lost| lost.has_ended);
        Self {
            state: life
                .state
                .or_else(|| life.lost?.state)
                .or(life.running.filter(|_| !life.is_gone)),
            is_gone,
            ..self
        }
    }

    /// What the engine says of the container's end: no word of it is no end.
    pub(super) fn container_end(&self) -> PeerEnd {
        let has_ended = self.state.as_ref().is_some_and(|state| !state.is_running());
        if has_ended || self.is_gone {
            PeerEnd::Exited
        } else {
            PeerEnd::Alive
        }
    }

    /// With everything else that there is to know. Times come from the engine where nobody saw them.
    pub(super) fn driven(
        self,
        registration: &Registration,
        attendance: Option<Attendance>,
        finish: Option<Finish>,
    ) -> Driven {
        let (launched, ended, duration) = if let Some((launched, ended, duration)) = self.seen {
            (launched, Some(ended), Some(duration))
        } else {
            let state = self.state.as_ref();
            let launched = state.and_then(State::started_at);
            let ended = state.and_then(State::finished_at);
            let between = |(launched, ended): (Timestamp, Timestamp)| {
                Duration::try_from(ended.duration_since(launched)).ok()
            };
            // Both lines of a detached run say the same.
            let time = launched.filter(|_| !registration.detached);
            (
                time.unwrap_or_else(|| registration.time()),
                ended,
                launched.zip(ended).and_then(between),
            )
        };
        Driven {
            launched,
            ended,
            duration,
            client_code: self.client_code,
            container: self.container,
            state: self.state,
            attendance,
            was_stopped: self.was_stopped,
            finish,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::registration::tests::registration, *};

    fn state(json: &serde_json::Value) -> Option<State> {
        serde_json::from_value(serde_json::json!({ "state": json, "networks": null })).unwrap()
    }

    #[test]
    fn where_nobody_saw_the_end_the_engine_s_times_are_taken() {
        let watched = Watched {
            state: state(&serde_json::json!({
                "StartedAt": "2026-11-29T16:44:43.5Z", "FinishedAt": "2026-11-29T17:44:44+01:00",
            })),
            ..Watched::default()
        };
        let driven = watched.driven(&registration(false), None, None);
        assert_eq!(driven.launched.to_string(), "2026-11-29T16:44:43.5Z");
        assert_eq!(driven.duration, Some(Duration::from_millis(500)));
        assert_eq!(driven.ended.unwrap().to_string(), "2026-11-29T16:44:44Z");
    }

    #[test]
    fn of_a_container_that_is_gone_only_the_registration_is_known() {
        let driven = Watched::default().driven(&registration(false), None, None);
        assert_eq!(driven.launched, registration(false).time());
        assert_eq!((driven.ended, driven.duration), (None, None));
    }

    #[test]
    fn an_end_before_the_launch_has_no_duration() {
        let watched = Watched {
            state: state(&serde_json::json!({
                "StartedAt": "2026-11-29T16:44:43Z", "FinishedAt": "2026-11-29T16:44:42Z",
            })),
            ..Watched::default()
        };
        assert_eq!(
            watched.driven(&registration(false), None, None).duration,
            None
        );
    }

    #[test]
    fn only_what_the_engine_says_of_a_container_is_its_end() {
        let watched = |is_running: Option<bool>, is_gone| Watched {
            state: is_running
                .and_then(|is_running| state(&serde_json::json!({"Running": is_running}))),
            is_gone,
            ..Watched::default()
        };
        for (is_running, is_gone, end) in [
            (Some(false), false, PeerEnd::Exited),
            (None, true, PeerEnd::Exited),
            (Some(true), false, PeerEnd::Alive),
            (None, false, PeerEnd::Alive),
        ] {
            let found = watched(is_running, is_gone).container_end();
            assert_eq!(found, end, "{is_running:?} {is_gone}");
        }
    }
}
