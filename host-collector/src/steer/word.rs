//! What a verb asks of whoever attends to a run, and what it is answered: a line of JSON each.

use std::io;

use report::{FrameReader, encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use super::amend::Direction;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Request {
    /// To allow or to deny these entries.
    Change {
        /// Which of the two.
        direction: Direction,
        /// Presets and tools written out.
        entries: Vec<String>,
    },
    /// To end the guest.
    Stop {
        /// How long it may take to end by itself, in milliseconds.
        grace_ms: u64,
    },
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The container says that the list is in force.
    InForce(Change),
    /// The list in force says all that already.
    Unchanged(Change),
    /// The container has not said so in time. It may yet.
    Unconfirmed {
        /// Which list.
        generation: u64,
    },
    /// Nothing was changed.
    Refused {
        /// Why, in a line.
        reason: String,
    },
    /// The container was told to end its guest.
    Stopping,
}

/// A list in force, and what is new about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) generation: u64,
    pub(crate) digest: String,
    /// How many entries it has.
    pub(crate) entries: usize,
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Writes one word.
pub(super) async fn say<T: Serialize>(stream: &UnixStream, word: &T) -> io::Result<()> {
    let line = encode(word, MOST).map_err(io::Error::other)?;
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads one word; `None` if the other end is gone without one.
pub(super) async fn hear<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<T>> {
    let mut reader = FrameReader::new(MOST);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if let Some(line) = reader.next_line().map_err(io::Error::other)? {
            return Ok(Some(serde_json::from_slice(line)?));
        }
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(count) => reader.push(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// A hundred thousand entries.
const MOST: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_spelled_as_they_always_were() {
        let request = Request::Change {
            direction: Direction::Deny,
            entries: vec!["a.example".into()],
        };
        for (wire, word) in [
            (
                r#"{"ask":"change","direction":"deny","entries":["a.example"]}"#,
                request,
            ),
            (
                r#"{"ask":"stop","grace_ms":5}"#,
                Request::Stop { grace_ms: 5 },
            ),
        ] {
            assert_eq!(serde_json::to_string(&word).unwrap(), wire);
            assert_eq!(serde_json::from_str::<Request>(wire).unwrap(), word);
        }
        assert_eq!(
            serde_json::to_string(&Reply::Stopping).unwrap(),
            r#"{"answer":"stopping"}"#
        );
    }

    #[tokio::test]
    async fn a_long_word_is_said_and_heard_whole() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let request = Request::Change {
            direction: Direction::Allow,
            entries: vec!["x".repeat(250); 20_000],
        };
        let (said, heard) = tokio::join!(say(&ours, &request), hear(&theirs));
        said.unwrap();
        assert_eq!(heard.unwrap(), Some(request));
    }

    #[tokio::test]
    async fn silence_is_no_word_and_rubbish_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert_eq!(hear::<Request>(&theirs).await.unwrap(), None);
        let (ours, theirs) = UnixStream::pair().unwrap();
        say(&ours, &"rubbish").await.unwrap();
        assert!(hear::<Request>(&theirs).await.is_err());
    }
}
