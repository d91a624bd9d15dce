//! The host's side of sandboxed runs: launches them, collects their reports, keeps the session log.
//!
//! The program `host-collector` is this library with a command line. A launcher written in Rust that
//! starts its containers itself uses the same parts, in the same order:
//!
//! ```no_run
//! use std::{path::Path, process::Stdio};
//!
//! use host_collector::{
//!     channel::{Channel, Terms},
//!     engine::{ENTRYPOINT, HOST_DIRECTORY},
//!     environment::Environment,
//!     log,
//!     run_dir::RunDir,
//!     run_id::RunId,
//!     session::{Launched, Network, Session, VERSION},
//! };
//! use policy::Policy;
//!
//! # async fn launch() -> Result<(), Box<dyn std::error::Error>> {
//! // What the container may reach, read by the code that will enforce it.
//! let policy = Policy::parse("github.com, *.example.com")?;
//! let environment = Environment::of_process();
//! let run_id = RunId::random()?;
//!
//! // A directory that nobody else on this host can enter, and the channel in it. The container is
//! // held to the digest of the list: one that reads it otherwise is turned away.
//! let run_dir = RunDir::create(&environment.runtime_dir(), &run_id)?;
//! let terms = Terms::random(Some(policy.digest().to_string()))?;
//! let channel = Channel::open(run_dir.path(), terms)?;
//!
//! let launched = jiff::Timestamp::now();
//! let mount = format!(
//!     "type=bind,src={},dst={HOST_DIRECTORY},readonly",
//!     channel.directory().display()
//! );
//! let mut client = tokio::process::Command::new("docker")
//!     .args(["run", "--rm", "--cap-drop", "ALL", "--entrypoint", ENTRYPOINT])
//!     .args(["NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL"].map(|cap| format!("--cap-add={cap}")))
//!     .args(["--mount", &mount])
//!     .args(["--env", "SANDBOX_EGRESS_ALLOW", "--env", "SANDBOX_REPORT", "--env", "SANDBOX_RUN_AS"])
//!     .args(["--env", "SANDBOX_REPORT_SOCKET", "--env", "SANDBOX_REPORT_NONCE"])
//!     // By name above, by value here: arguments can be read by every user of the host.
//!     .env("SANDBOX_EGRESS_ALLOW", policy.entries().join(","))
//!     .env("SANDBOX_REPORT", "required")
//!     .env("SANDBOX_REPORT_SOCKET", format!("{HOST_DIRECTORY}/report.sock"))
//!     .env("SANDBOX_REPORT_NONCE", channel.nonce().expose())
//!     .env("SANDBOX_RUN_AS", "sandbox")
//!     .args(["sandbox-egress/base", "python3", "build.py"])
//!     .stdin(Stdio::null())
//!     .spawn()?;
//!
//! // Listens until the container has ended. What it says is journalled before it is acknowledged.
//! let mut code = None;
//! let over = async { code = client.wait().await.ok().and_then(|status| status.code()) };
//! let attendance = channel.attend(over, |_message| ()).await;
//!
//! // A launch that was refused is no run, and leaves no line.
//! if attendance.was_launched() {
//!     let session = Session {
//!         v: Some(VERSION),
//!         time: format!("{launched:.3}"),
//!         run_id: Some(run_id.as_str().to_owned()),
//!         finished: Some(true),
//!         exit_code: code,
//!         launch: Launched {
//!             image: "sandbox-egress/base".into(),
//!             network: Some("allowlist".into()),
//!             egress_allow: Some(policy.entries()),
//!             ..Launched::default()
//!         },
//!         network: Network::of(&attendance),
//!         ..Session::default()
//!     };
//!     let journal = attendance.journal.path().to_owned();
//!     log::record(Path::new("/var/log/sandbox").into(), session, Some(journal))?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What is in the log is read back by [`log::Entries`], checked by [`log::verify()`], and turned
//! into advice by [`suggest::suggest`].

pub mod allow;
pub mod attend;
pub mod channel;
pub mod cli;
pub mod doctor;
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
mod steer;
pub mod suggest;
pub mod tools;
pub mod view;
