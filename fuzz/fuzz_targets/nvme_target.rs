//! Fuzz target `nvme_target`, implemented in [`flagstone_fuzz::nvme_target`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_target::run(data));
