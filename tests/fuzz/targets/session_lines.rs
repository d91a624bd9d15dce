//! Lines of the session log.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| host_collector::view::fuzz::session_lines(bytes));
