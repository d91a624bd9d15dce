//! The head of a request, and whom it is for.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandbox_egress_proxy::fuzz::request_head(bytes));
