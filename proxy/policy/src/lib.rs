//! The allowlist: which destinations a sandboxed run may reach.
//!
//! One crate decides for the proxy, for the entrypoint's packet filter and for the host's commands,
//! so that what explains a refusal can never disagree with what enforced it. It is pure: values in,
//! values out; no sockets, no clock, no files, no environment.

mod breadth;
mod builder;
mod decision;
mod depth;
mod digest;
mod entry;
mod error;
mod fault;
mod filter;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod grammar;
mod guard;
mod hint;
mod host;
mod list;
mod name;
mod naming;
mod net;
mod packet;
mod policy;
mod port;
mod presets;
mod reason;
mod rule;
mod rules;
mod similar;
mod special;
mod spelling;
mod stream;
mod target;
mod verdict;
mod warning;
mod window;

pub use decision::{Decision, Denial, Permit};
pub use digest::Digest;
pub use error::PolicyError;
pub use fault::ErrorCode;
pub use filter::NameRule;
pub use guard::{guarded_ranges, is_guarded};
pub use host::{Destination, Host, HostError};
pub use name::{HostName, HostNameError};
pub use naming::NamePermit;
pub use packet::AddressRule;
pub use policy::Policy;
pub use port::PortRange;
pub use presets::{PresetNameError, Presets};
pub use reason::{DenyReason, UnknownReason};
pub use special::AddressClass;
pub use stream::{StreamKind, StreamKinds};
pub use warning::{Futility, Warning};
pub use window::WINDOW;
