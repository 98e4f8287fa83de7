//! Fuzz target `config`, implemented in [`flagstone_fuzz::config`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::config::run(data));
