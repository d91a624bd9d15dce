//! The body of a request, in chunks or of a length.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandbox_egress_proxy::fuzz::request_body(bytes));
