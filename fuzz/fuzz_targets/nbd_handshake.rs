//! Fuzz target `nbd_handshake`, implemented in [`flagstone_fuzz::nbd_handshake`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nbd_handshake::run(data));
