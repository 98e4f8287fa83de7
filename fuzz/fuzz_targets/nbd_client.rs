//! Fuzz target `nbd_client`, implemented in [`flagstone_fuzz::nbd_client`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nbd_client::run(data));
