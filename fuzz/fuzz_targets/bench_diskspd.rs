//! Fuzz target `bench_diskspd`, implemented in [`flagstone_fuzz::bench_diskspd`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::bench_diskspd::run(data));
