//! Fuzz target `mirror_codec`, implemented in [`flagstone_fuzz::mirror_codec`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::mirror_codec::run(data));
