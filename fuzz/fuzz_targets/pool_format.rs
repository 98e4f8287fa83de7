//! Fuzz target `pool_format`, implemented in [`flagstone_fuzz::pool_format`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::pool_format::run(data));
