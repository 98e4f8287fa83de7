//! Fuzz target `nvme_pdu`, implemented in [`flagstone_fuzz::nvme_pdu`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flagstone_fuzz::nvme_pdu::run(data));
