//! Fuzz target `nvme_reply`, implemented in [`flagstone_fuzz::nvme_reply`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_reply::run(data));
