//! NBD wire format: constants, types and codecs, without I/O or policy.
//!
//! Section names refer to the protocol document (`doc/proto.md` of the NBD project). All integers
//! are big-endian.

pub mod errno;
pub mod expected;
pub mod link;
pub mod option;
pub mod reply;
pub mod request;

pub use errno::Errno;

/// `NBDMAGIC`, the first eight bytes of the greeting.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before each option and in the server's greeting.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before each structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// "Handshake flags" of the server and "Client flags" of the client: the same two bits.
pub mod handshake_flag {
    /// Fixed newstyle option replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zeroes after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// "Transmission flags": what an export can do.
pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The `N` bytes at `at`, or `None` when there are fewer.
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    take(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    take(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    take(bytes, at).map(u64::from_be_bytes)
}
