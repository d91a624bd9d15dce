//! What the collector says to a container, without ever waiting for it to listen.

use std::io;

use report::{HostMessage, MAX_FRAME, encode};
use tokio::net::UnixStream;

/// Words that wait to be written: at most a welcome and one acknowledgement, since a later
/// acknowledgement says all that an earlier one did.
#[derive(Debug, Default)]
pub(crate) struct Voice {
    waiting: Vec<u8>,
    acknowledge: Option<u64>,
    /// Nobody will hear another word: a socket that is broken is always ready to say so again.
    unheard: bool,
}

impl Voice {
    /// Says something in full, before anything said later.
    pub(crate) fn say(&mut self, message: &HostMessage) {
        // Ours are far below the bound, and made of strings and numbers only.
        self.waiting
            .extend(encode(message, MAX_FRAME).unwrap_or_default());
    }

    /// Owes an acknowledgement of everything up to `seq`.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        self.acknowledge = self.acknowledge.max(Some(seq));
    }

    /// Writes what the socket takes. That the other end is gone is for the reading side to handle.
    pub(crate) fn speak(&mut self, stream: &UnixStream) {
        loop {
            if self.waiting.is_empty() {
                let Some(seq) = self.acknowledge.take() else {
                    return;
                };
                self.say(&HostMessage::Ack { seq });
            }
            match stream.try_write(&self.waiting) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) => {
                    self.unheard = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    /// Whether something could not be written yet.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.waiting.is_empty() && !self.unheard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_that_does_not_listen_costs_no_memory() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut voice = Voice::default();
        for seq in 0..200_000 {
            voice.acknowledge(seq);
            voice.speak(&ours);
        }
        assert!(voice.is_held_up());
        assert!(voice.waiting.len() < 64, "{}", voice.waiting.len());
        assert_eq!(voice.acknowledge, Some(199_999));
    }

    #[tokio::test]
    async fn an_acknowledgement_never_goes_back() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut voice = Voice::default();
        voice.acknowledge(7);
        voice.acknowledge(5);
        voice.speak(&ours);
        let mut buffer = [0; 100];
        theirs.readable().await.unwrap();
        let count = theirs.try_read(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"{\"type\":\"ack\",\"seq\":7}\n");
    }

    #[tokio::test]
    async fn nobody_waits_to_be_heard_by_a_peer_that_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut voice = Voice::default();
        voice.acknowledge(1);
        voice.speak(&ours);
        assert!(!voice.is_held_up());
    }
}
