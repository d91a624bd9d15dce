//! Asks whoever attends to a run for something.

use std::{io, path::Path};

use tokio::net::UnixStream;

use super::{
    control::{is_ours, socket},
    word::{Reply, Request, hear, say},
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody listens.
    #[error("nobody listens")]
    Nobody,
    /// Somebody else does.
    #[error("another user listens")]
    Foreign,
    /// The other end went away.
    #[error("the run ended before it answered")]
    Ended,
    /// The system refused.
    #[error(transparent)]
    Io(io::Error),
}

/// Asks once, and waits for the answer, which takes as long as the container takes, within bounds.
pub(crate) async fn ask(run_dir: &Path, request: &Request) -> Result<Reply, AskError> {
    let stream = match UnixStream::connect(socket(run_dir)).await {
        Err(error) if is_silence(&error) => return Err(AskError::Nobody),
        connected => connected.map_err(AskError::Io)?,
    };
    if !is_ours(&stream) {
        return Err(AskError::Foreign);
    }
    let said = say(&stream, request).await;
    match hear(&stream).await {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(AskError::Ended),
        Err(error) => {
            let lost = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            let is_lost = lost.contains(&error.kind());
            Err(match said {
                Err(error) if !is_lost => AskError::Io(error),
                Err(_) | Ok(()) if is_lost => AskError::Ended,
                Err(_) | Ok(()) => AskError::Io(error),
            })
        }
    }
}

/// There is no socket, or nobody behind it.
fn is_silence(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    const STOP: Request = Request::Stop { grace_ms: 1 };

    #[tokio::test]
    async fn where_nobody_listens_that_is_what_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let asked = ask(dir.path(), &STOP).await;
        assert!(matches!(asked, Err(AskError::Nobody)), "{asked:?}");
        drop(UnixListener::bind(socket(dir.path())).unwrap());
        let asked = ask(dir.path(), &STOP).await;
        assert!(matches!(asked, Err(AskError::Nobody)), "{asked:?}");
    }

    #[tokio::test]
    async fn a_run_that_ends_meanwhile_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(dir.path())).unwrap();
        let ending = async {
            let (stream, _) = listener.accept().await.unwrap();
            hear::<Request>(&stream).await.unwrap();
        };
        let (asked, ()) = tokio::join!(ask(dir.path(), &STOP), ending);
        assert!(matches!(asked, Err(AskError::Ended)), "{asked:?}");
    }

    #[tokio::test]
    async fn what_is_answered_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(dir.path())).unwrap();
        let answering = async {
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(hear(&stream).await.unwrap(), Some(STOP));
            say(&stream, &Reply::Stopping).await.unwrap();
        };
        let (asked, ()) = tokio::join!(ask(dir.path(), &STOP), answering);
        assert_eq!(asked.unwrap(), Reply::Stopping);
    }
}
