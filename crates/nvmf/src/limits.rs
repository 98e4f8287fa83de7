//! What bounds this crate's memory and patience, with the arithmetic.

use std::time::Duration;

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

/// Payloads from this size are received straight into a buffer of their own, in bytes.
pub(crate) const DIRECT_BYTES: usize = 16 << 10;

/// Verify reads in pieces of this size, in bytes.
pub(crate) const SCAN_BYTES: usize = 1 << 20;

/// Common header of a PDU, in bytes.
pub(crate) const COMMON_HEADER_BYTES: usize = flagstone_nvme::limits::COMMON_HEADER_BYTES;

/// The longest header that is ever sent, in bytes: a TermReq with the offending header.
pub(crate) const HEADER_BYTES_MAX: usize = flagstone_nvme::limits::TERM_REQ_MAX_BYTES;

/// CPDA: data in PDUs to us may start at any multiple of 4 bytes.
pub(crate) const CONTROLLER_DATA_ALIGNMENT: u8 = 0;

/// How long a connection may take to become a queue.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer that was sent a TermReq may take to close.
pub(crate) const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a connection's progress is looked at.
pub(crate) const WATCHDOG_PERIOD: Duration = Duration::from_secs(1);
