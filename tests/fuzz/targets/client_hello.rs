//! The first message of a TLS client.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandbox_egress_proxy::fuzz::client_hello(bytes));
