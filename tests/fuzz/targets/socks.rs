//! What a SOCKS client says.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandbox_egress_proxy::fuzz::socks(bytes));
