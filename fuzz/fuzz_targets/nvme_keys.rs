//! Fuzz target `nvme_keys`, implemented in [`flagstone_fuzz::nvme_keys`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_keys::run(data));
