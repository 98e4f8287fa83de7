//! Fuzz target `nbd_server`, implemented in [`flagstone_fuzz::nbd_server`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nbd_server::run(data));
