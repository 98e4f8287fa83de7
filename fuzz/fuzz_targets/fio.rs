//! Fuzz target `fio`, implemented in [`flagstone_fuzz::fio`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::fio::run(data));
