//! What a container tells its host about the network, and what may be concluded from it.
//!
//! The contract between PID 1 of a container and the collector on the host (`protocol: 1`), and
//! between the proxy and PID 1. It lives with the collector because the collector is the side that
//! must not be fooled: every type here can be read from bytes that an attacker chose.

mod account;
mod answers;
mod attach;
mod change;
mod clock;
mod counts;
mod distinct;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gaps;
mod heaviest;
mod ledger;
pub mod link;
mod message;
mod naming;
mod opening;
mod printable;
mod reason;
mod received;
mod sample;
mod seed;
mod sequence;
mod tally;
mod verdict;
mod weight;

pub use account::{Account, Closing, RefusedKey};
pub use answers::{Answer, Answers};
pub use attach::Attach;
pub use change::{FIRST_GENERATION, List, PolicyOrder, PolicyOutcome, PolicyReport};
pub use clock::RunClock;
pub use counts::{Allowed, Denied, Target, Totals, Transport};
pub use distinct::DistinctCount;
pub use frame::{FrameError, FrameReader, MAX_FRAME, encode};
pub use gaps::Gaps;
pub use ledger::Ledger;
pub use message::{
    Body, Bye, EndReason, Enforcement, Enforcing, Exit, Gap, GapKind, Hello, HostMessage, Ipv6,
    Message, PROTOCOL, ProbeResult, Welcome,
};
pub use naming::{NAMED, REST};
pub use opening::{Opening, Resume};
pub use printable::Printable;
pub use reason::Reason;
pub use received::{MAX_DEPTH, Received, Report};
pub use sample::{Picked, Sample, Told};
pub use seed::{Order, Placed, Seed, SeedError};
pub use sequence::Sequence;
pub use verdict::{ChannelState, Evidence, PeerEnd, Shortfall, Verdict, verdict};
pub use weight::{Refusals, Traffic, Weight};
