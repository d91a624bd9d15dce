//! What building a policy and deciding cost, by the number of entries.
fn main() {}
