//! What a run that is over leaves with its engine: nothing, or it is said what.

use report::Printable;

use crate::{
    engine::{Engine, EngineKind},
    run_id::RunId,
};

/// A container that its run has left behind, and that may go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "container {id} could not be removed: {why}; see whether it is there and remove it with \
     `{engine} rm --force {id}`"
)]
pub(crate) struct Remains {
    id: Printable,
    engine: EngineKind,
    why: String,
}

/// Removes the container of a run.
pub(super) async fn remove(engine: &Engine, run_id: &RunId, id: String) -> Option<Remains> {
    let refused = engine.container(id.clone()).remove().await.err()?;
    // Somebody else may have done it, which the engine says in words of its own.
    if matches!(engine.labelled(run_id).await, Ok(None)) {
        return None;
    }
    Some(Remains {
        id: Printable::new(&id),
        engine: engine.kind(),
        why: refused.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::docker;

    #[tokio::test]
    async fn a_container_is_left_behind_unless_it_is_removed_or_gone() {
        for (script, is_left) in [
            ("", false),
            ("[ $1 != rm ]", false),
            ("[ $1 != rm ] && { [ $1 != ps ] || echo abc; }", true),
            ("[ $1 = version ]", true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let engine = docker(dir.path(), script).await;
            let run_id = RunId::random().unwrap();
            let left = remove(&engine, &run_id, "abc".into()).await;
            assert_eq!(left.is_some(), is_left, "{script}: {left:?}");
        }
    }

    #[tokio::test]
    async fn what_is_left_behind_is_named_with_the_remedy_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let script = "[ $1 = version ] || { echo 'no\nanswer' >&2; exit 1; }";
        let engine = docker(dir.path(), script).await;
        let left = remove(&engine, &RunId::random().unwrap(), "a\nb".into()).await;
        let line = left.unwrap().to_string();
        assert!(
            !line.contains('\n') && line.contains("docker rm --force a\\u{a}b"),
            "{line}"
        );
    }
}
