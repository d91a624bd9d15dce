//! Runs that have no line of their end yet: they are going on, or nobody was there to record it.

use std::path::Path;

use crate::{attend::unfinished, environment::Environment, log::Entry, session::Session};

/// Those that will end in the log in `dir`, each as the line of a launch that it would have, newest
/// first.
pub(super) fn going_on(environment: &Environment, dir: &Path) -> impl Iterator<Item = Entry> {
    let dir = std::path::absolute(dir).ok();
    unfinished(&environment.runtime_dir())
        .into_iter()
        .filter(move |run| run.is_started && run.audit_dir == dir)
        .filter_map(|run| {
            Some(Entry {
                line: serde_json::to_string(&run.session).ok()?,
                session: run.session,
            })
        })
}

/// Whether a line is that of a launch. The log's first writer had no word for it.
pub(super) const fn is_unfinished(session: &Session) -> bool {
    session.v.is_some() && session.finished.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_goes_on_there_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = dir.path().to_str().unwrap();
        let environment = Environment::of([("XDG_RUNTIME_DIR", runtime)]);
        assert_eq!(going_on(&environment, dir.path()).count(), 0);
    }

    #[test]
    fn only_a_line_of_ours_without_an_end_is_unfinished() {
        let of = |v, finished| {
            is_unfinished(&Session {
                v,
                finished,
                ..Session::default()
            })
        };
        assert!(of(Some(2), None));
        assert!(!of(Some(2), Some(true)) && !of(None, None));
    }
}
