//! See [`flagstone_fuzz::http_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::http_request::run(data));
