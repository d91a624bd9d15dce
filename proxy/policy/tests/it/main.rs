//! The policy as its users see it: the shared vectors, and properties that hold for every list.

// The lints know test code by this attribute; without it the functions beside the tests are not.
#[cfg(test)]
mod properties;
#[cfg(test)]
mod vectors;
