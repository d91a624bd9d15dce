//! The allowlist: which destinations a sandboxed run may reach.
//!
//! One crate decides for the proxy, for the entrypoint's packet filter and for the host's commands,
//! so that what explains a refusal can never disagree with what enforced it. It is pure: values in,
//! values out; no sockets, no clock, no files, no environment.

mod decision;
mod digest;
mod error;
mod guard;
mod host;
mod name;
mod policy;
mod port;
mod reason;
mod stream;
mod warning;

pub use decision::{Decision, Denial, Permit};
pub use digest::Digest;
pub use error::{ErrorCode, PolicyError};
pub use guard::{AddressClass, guarded_ranges, is_guarded};
pub use host::{Destination, Host, HostError};
pub use name::{HostName, HostNameError};
pub use policy::{AddressRule, Policy};
pub use port::PortRange;
pub use reason::{DenyReason, UnknownReason};
pub use stream::{StreamKind, StreamKinds};
pub use warning::Warning;
