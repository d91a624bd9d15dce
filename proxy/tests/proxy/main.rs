//! The proxy against clients, origins and a resolver of the tests' own, all on loopback.
//!
//! Most cases run it in this process, over the same link that PID 1 uses, because only there can it
//! be told of a resolver on a free port and of destinations that no nftables rewrote. `startup` runs
//! the program itself.

#[cfg(test)]
mod command;
#[cfg(test)]
mod connect;
#[cfg(test)]
mod dns;
#[cfg(test)]
mod exhaustion;
#[cfg(test)]
mod forwarding;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hellos;
#[cfg(test)]
mod http;
#[cfg(test)]
mod origin;
#[cfg(test)]
mod questions;
#[cfg(test)]
mod redirect;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod socks;
#[cfg(test)]
mod startup;
#[cfg(test)]
mod succession;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod window;
