//! Fuzz target `pool_stream`, implemented in [`flagstone_fuzz::pool_stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::pool_stream::run(data));
