//! Containers whose kernel is gVisor's, by Debian's `runsc`.

/// What a docker of the tests' own knows it by.
pub(super) const NAME: &str = "gvisor";

/// The program, for an engine that takes a path.
pub(super) const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gvisor/runsc");

/// What the collector must be told for a run there: that kernel has no nftables, and what its
/// iptables takes no run has by default.
pub(super) fn options(runtime: &str) -> [&str; 3] {
    ["--runtime", runtime, "--engine-arg=--cap-add=NET_RAW"]
}
