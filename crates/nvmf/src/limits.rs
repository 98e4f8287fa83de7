//! What bounds this crate's memory, with the arithmetic.

/// Smallest receive buffer of a connection, in bytes: what an idle one holds.
pub(crate) const RX_MIN_BYTES: usize = 8 << 10;

/// Largest receive buffer of a connection, in bytes: 64 writes of 4 KiB a receive.
pub(crate) const RX_MAX_BYTES: usize = 256 << 10;

/// Payload bytes laid out ahead when a shape is expected: 64 × 4 KiB.
pub(crate) const RX_EXPECTED_BYTES: usize = 256 << 10;

/// Small receives in a row before the receive buffer is halved.
pub(crate) const RX_SHRINK_AFTER: u32 = 64;

/// Block that response headers are cut from, in bytes: 170 of 24 B.
pub(crate) const TX_HEADER_BLOCK_BYTES: usize = 4 << 10;
