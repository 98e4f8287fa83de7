//! Fuzz target `nvme_command`, implemented in [`flagstone_fuzz::nvme_command`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_command::run(data));
