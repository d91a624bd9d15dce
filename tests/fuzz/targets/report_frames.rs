//! What a container sends for reports.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| report::fuzz::report_frames(bytes));
