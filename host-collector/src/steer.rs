//! Changes of a run that goes on: another allowlist, or its end.
//!
//! Whoever attends to the run has a socket in the run's private directory, of which the container
//! sees nothing. Verbs of this user ask over it; what is asked for is written down, then sent to the
//! container, and is in force when the container says so and not before.

mod amend;
mod ask;
mod control;
mod ending;
mod history;
mod word;

pub(crate) use amend::Direction;
pub(crate) use ask::{AskError, ask};
pub(crate) use control::Control;
pub(crate) use history::History;
pub(crate) use word::{Change, Reply, Request};
