//! The host's side of sandboxed runs: launches them, collects their reports, keeps the session log.

pub mod allow;
pub mod attend;
pub mod channel;
pub mod cli;
pub mod engine;
pub mod environment;
pub mod explain;
mod list_file;
pub mod log;
pub mod manual;
pub mod presets;
pub mod run;
pub mod run_dir;
pub mod run_id;
pub mod session;
pub mod since;
pub mod suggest;
pub mod tools;
pub mod view;
