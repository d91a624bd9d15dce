//! What a container tells its host about the network, and what may be concluded from it.
//!
//! The contract between PID 1 of a container and the collector on the host (`protocol: 1`), and
//! between the proxy and PID 1. It lives with the collector because the collector is the side that
//! must not be fooled: every type here can be read from bytes that an attacker chose.

mod clock;
mod counts;
mod frame;
mod ledger;
pub mod link;
mod message;
mod printable;

pub use clock::RunClock;
pub use counts::{Allowed, Denied, Target, Totals, Transport};
pub use frame::{FrameError, FrameReader, MAX_FRAME, encode};
pub use ledger::Ledger;
pub use message::{
    Body, Bye, EndReason, Enforcement, Enforcing, Exit, Gap, GapKind, Hello, HostMessage, Ipv6,
    Message, PROTOCOL, ProbeResult, Welcome,
};
pub use printable::Printable;
