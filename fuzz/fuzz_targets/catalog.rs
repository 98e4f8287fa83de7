//! Fuzz target `catalog`, implemented in [`flagstone_fuzz::catalog`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::catalog::run(data));
