//! Fuzz target `mirror_replica`, implemented in [`flagstone_fuzz::mirror_replica`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::mirror_replica::run(data));
