//! Lets the other connections have their turn.
//!
//! The runtime counts calls, not bytes, and does not see a splice at all: a connection whose peers
//! are fast would keep the loop for as long as they keep up.

use tokio::task::yield_now;

/// What one direction has moved since the others had their turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    moved: usize,
}

impl Turn {
    /// Tells of `more` bytes that were moved, and lets the others go first if that makes a turn.
    pub(super) async fn spend(&mut self, more: usize) {
        self.moved = self.moved.saturating_add(more);
        if self.moved >= TURN {
            self.moved = 0;
            yield_now().await;
        }
    }
}

/// A few hundred microseconds of splicing.
const TURN: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    /// Whether others had a turn before `spent` bytes were told of.
    async fn yields(turn: &mut Turn, spent: usize) -> bool {
        tokio::select! {
            biased;
            () = turn.spend(spent) => false,
            () = ready(()) => true,
        }
    }

    #[tokio::test]
    async fn a_turn_is_over_after_so_many_bytes_however_they_came() {
        let mut turn = Turn::default();
        for _ in 0..3 {
            assert!(!yields(&mut turn, TURN - 1).await);
            assert!(yields(&mut turn, 1).await);
            assert!(yields(&mut turn, 5 * TURN).await);
        }
    }
}
