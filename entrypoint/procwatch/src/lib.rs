//! Observing a process tree through /proc and pidfds (proc(5), `pidfd_open(2)`).
//!
//! A pid is reused, so a process is known by its pid *and* its start time; and nothing here is ever
//! signalled by pid alone. And what of its own program a process keeps in memory.

mod handle;
mod program;
mod stat;
mod tree;

pub use handle::Handle;
pub use program::Program;
pub use stat::{Identity, Process, ProcessError, State};
pub use tree::{descendants, snapshot};
