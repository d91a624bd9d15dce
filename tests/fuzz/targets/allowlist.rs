//! An allowlist, and a destination to decide on.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| policy::fuzz::allowlist(bytes));
