//! Fuzz target `nvme_authentication`, implemented in [`flagstone_fuzz::nvme_authentication`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_authentication::run(data));
