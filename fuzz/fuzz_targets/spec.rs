//! Fuzz target `spec`, implemented in [`flagstone_fuzz::spec`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::spec::run(data));
