//! Fuzz target `http_request`, implemented in [`flagstone_fuzz::http_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::http_request::run(data));
