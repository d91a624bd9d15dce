//! Decides, by host name, every connection that leaves a sandbox.
//!
//! The proxy runs beside the guest, unprivileged, with what PID 1 handed it: an allowlist, listening
//! sockets, and one link. It opens no file. A connection goes, step by step, from what a client
//! asked for (`head`, `socks`, `authority`, `client_hello`) over what policy permits (`proxy`) and the
//! addresses that the guard let through (`resolve`, `dial`) to the bytes in between (`relay`,
//! `forward`); each step takes only what the one before it made. What happened is counted
//! (`account`) and told to PID 1 (`reporter`), which alone can tell the host.

mod accept;
mod account;
mod answer;
mod authority;
mod body;
mod client;
mod client_hello;
mod confine;
mod control;
mod dial;
mod dns;
mod exchange;
mod explicit;
mod extensions;
mod fan_out;
mod forward;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod head;
mod incoming;
mod interim;
mod negotiation;
mod openings;
mod outgoing;
pub mod parsing;
mod proxy;
mod recent;
mod redirect;
mod refusal;
mod relay;
mod reporter;
mod resolve;
mod route;
mod ruling;
mod server;
mod settings;
mod socks;
mod spoken;
mod startup;
mod trailers;
mod tunnel;
mod upload;
mod upstream;
mod window;

pub use confine::UnforeseenCalls;
pub use control::{Link, LinkError, Listener};
pub use reporter::ReportError;
pub use settings::{OriginalDestination, Settings, SettingsError};
pub use startup::{StartError, Startup, run};
pub use upstream::UpstreamError;
