//! Fuzz target `nbd_request`, implemented in [`flagstone_fuzz::nbd_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nbd_request::run(data));
