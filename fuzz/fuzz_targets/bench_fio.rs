//! Fuzz target `bench_fio`, implemented in [`flagstone_fuzz::bench_fio`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::bench_fio::run(data));
