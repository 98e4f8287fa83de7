//! Sizes and maxima of the protocols, with their arithmetic.
//!
//! These are fixed by a specification or by an encoding. Limits that the project chooses, such as
//! queue depths and transfer sizes, are in the limits of the target and of the host.

/// Submission queue entry (Base 4.1), bytes.
pub const SQE_BYTES: usize = 64;
/// Completion queue entry (Base 4.2), bytes.
pub const CQE_BYTES: usize = 16;
/// Data of one Identify, bytes (Base 5.1.13).
pub const IDENTIFY_BYTES: usize = 4096;
/// Namespace identifiers in one list: 4096 bytes of 4 each.
pub const NAMESPACE_LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;
/// Ranges in one Dataset Management: NR is 8 bits, 0's based.
pub const DSM_RANGES: usize = 256;
/// Data of Dataset Management at most: 256 ranges of 16 bytes.
pub const DSM_BYTES: usize = DSM_RANGES * 16;
/// Logical blocks in one I/O command: NLB is 16 bits, 0's based.
pub const IO_BLOCKS: u32 = 1 << 16;
/// Data of Connect, bytes (Base 6.3).
pub const CONNECT_DATA_BYTES: usize = 1024;
/// A field that holds an NVMe Qualified Name, its terminator included.
pub const NQN_FIELD_BYTES: usize = 256;
/// An NVMe Qualified Name without its terminator (Base 4.7).
pub const NQN_BYTES: usize = 223;
/// `nqn.` and `yyyy-mm.` and one byte more.
pub const NQN_MIN_BYTES: usize = 4 + 8 + 1;
/// Entries of an admin submission queue over fabrics, at least.
pub const FABRICS_ADMIN_QUEUE_MIN_ENTRIES: u16 = 32;
/// The largest namespace identifier that can be active: `FFFFFFFFh` is the broadcast, and
/// `FFFFFFFEh` starts no list.
pub const NAMESPACE_ID_MAX: u32 = 0xffff_fffd;
/// Means every namespace of the controller, where a command allows it (Base 3.2.1).
pub const NAMESPACE_ID_ALL: u32 = 0xffff_ffff;

/// NVMe/TCP common header, bytes.
pub const COMMON_HEADER_BYTES: usize = 8;
/// `ICReq` and `ICResp`, whole, bytes.
pub const INITIALIZE_BYTES: usize = 128;
/// Header of `CapsuleCmd`: common header and one submission queue entry.
pub const CAPSULE_CMD_BYTES: usize = COMMON_HEADER_BYTES + SQE_BYTES;
/// Header of `CapsuleResp`: common header and one completion queue entry.
pub const CAPSULE_RESP_BYTES: usize = COMMON_HEADER_BYTES + CQE_BYTES;
/// Headers of `H2CData`, `C2HData`, `R2T` and both `TermReq`.
pub const DATA_HEADER_BYTES: usize = 24;
/// A header or data digest, bytes.
pub const DIGEST_BYTES: usize = 4;
/// The offending header that a `TermReq` may carry, bytes.
pub const TERM_REQ_DATA_BYTES: usize = 128;
/// `TermReq`, whole, at most: 24 + 128 = 152.
pub const TERM_REQ_MAX_BYTES: usize = DATA_HEADER_BYTES + TERM_REQ_DATA_BYTES;
/// HPDA and CPDA at most: data aligned to (31 + 1) x 4 = 128 bytes.
pub const PDA_MAX: u8 = 31;
/// MAXH2CDATA at least, bytes; it is also a multiple of 4.
pub const MAXH2CDATA_MIN_BYTES: u32 = 4096;
/// In-capsule data that every controller takes with admin and fabrics commands, bytes
/// (NVMe/TCP 3.3).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// I/O command capsule sizes (IOCCSZ) are in units of 16 bytes.
pub const CAPSULE_UNIT_BYTES: u32 = 16;
/// The longest header that can arrive or be sent before its digest: `ICReq`.
pub const HEADER_MAX_BYTES: usize = INITIALIZE_BYTES;

/// Most bytes before the data of an encoded PDU: header, its digest, padding.
///
/// The padding ends at the first multiple of the alignment, of 4 to 128 bytes, that is not inside
/// header and digest. For 72 + 4 bytes and an alignment of 72 that is 144.
pub const ENCODED_HEADER_MAX_BYTES: usize = {
    let mut worst = INITIALIZE_BYTES;
    let mut pda = 0;
    while pda <= PDA_MAX as usize {
        let alignment = (pda + 1) * 4;
        let offset = (CAPSULE_CMD_BYTES + DIGEST_BYTES).next_multiple_of(alignment);
        if offset > worst {
            worst = offset;
        }
        pda += 1;
    }
    worst
};

// The data offset is one byte of the header, so every encoded offset must fit it.
const _: () = assert!(ENCODED_HEADER_MAX_BYTES == 144 && ENCODED_HEADER_MAX_BYTES <= 255);
