//! Fuzz target `catalogue`, implemented in [`flagstone_fuzz::catalogue`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::catalogue::run(data));
