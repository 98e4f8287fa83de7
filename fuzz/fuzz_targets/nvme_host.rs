//! Fuzz target `nvme_host`, implemented in [`flagstone_fuzz::nvme_host`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_host::run(data));
