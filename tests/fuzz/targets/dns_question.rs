//! A DNS message of the guest's.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandbox_egress_proxy::fuzz::question(bytes));
