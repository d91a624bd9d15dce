//! The host's side of sandboxed runs: launches them, collects their reports, keeps the session log.

pub mod channel;
pub mod environment;
pub mod run_dir;
pub mod run_id;
