//! What the collector makes of containers that behave and of containers that do not, over real
//! sockets and real files.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod channel;
mod container;
mod detached;
mod doctor;
mod engine;
mod explain;
mod faults;
mod log;
mod lost;
mod reading;
mod resume;
mod run;
mod schema;
mod steered;
mod view;
mod way;
