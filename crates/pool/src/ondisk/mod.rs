//! On-disk format of pools, as pure functions of bytes. Byte maps: `docs/pool-format.md`.
//!
//! Guarantees: decoding an encoded structure returns it unchanged; torn, changed or foreign bytes
//! are refused with a reason and never cause a panic; every length and number is checked before
//! use, because the bytes are not trusted.

pub mod ancestry;
pub mod chunk;
mod copied_unit;
pub mod entry;
pub mod layout;
pub mod legs;
pub mod page;
pub mod superblock;
pub mod unit;
pub mod volume_table;

use crate::limits::BLOCK_BYTES;

/// Version of all structures of this format.
pub const VERSION: u16 = 2;

/// Version of the superblock once the pool has had an encrypted volume. Its other structures keep
/// [`VERSION`].
pub const ENCRYPTION_VERSION: u16 = 3;

/// Version of the superblock of a pool with redundancy.
pub const REDUNDANCY_VERSION: u16 = 4;

/// A block as it is on disk.
pub type Block = [u8; BLOCK_BYTES];

/// Offset of the checksum in a block that contains its own: the last four bytes, which cover all
/// bytes before them.
const CRC_AT: usize = BLOCK_BYTES - 4;

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Another format, or no data.
    #[error("there is no such structure")]
    Absent,
    /// Written by a later version.
    #[error(
        "it has format version {0}; this release supports versions up to \
         {REDUNDANCY_VERSION}"
    )]
    Version(u16),
    /// Torn or changed.
    #[error("its checksum is wrong: it is torn or damaged")]
    Checksum,
    /// Valid checksum, invalid content.
    #[error("its field `{0}` is invalid")]
    Field(&'static str),
    /// A structure of another place.
    #[error("it belongs elsewhere")]
    Foreign,
}

/// CRC32C of a block or structure.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Little-endian fields at fixed offsets of bytes long enough for them.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

/// Checks magic, then version: another version may store its checksum elsewhere.
fn begins<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<Fields<'a>, FormatError> {
    begins_with(bytes, magic, &[VERSION])
}

fn begins_with<'a>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    versions: &[u16],
) -> Result<Fields<'a>, FormatError> {
    if !bytes.starts_with(magic) || bytes.len() < 16 {
        return Err(FormatError::Absent);
    }
    let fields = Fields(bytes);
    match fields.u16(8) {
        version if versions.contains(&version) => Ok(fields),
        other => Err(FormatError::Version(other)),
    }
}

/// As [`begins`], and checks the checksum at the end of the block.
fn open<'a>(block: &'a Block, magic: &[u8; 8]) -> Result<Fields<'a>, FormatError> {
    open_versions(block, magic, &[VERSION])
}

/// As [`open`], for one of these versions.
fn open_versions<'a>(
    block: &'a Block,
    magic: &[u8; 8],
    versions: &[u16],
) -> Result<Fields<'a>, FormatError> {
    let fields = begins_with(block, magic, versions)?;
    if fields.u32(CRC_AT) != checksum(&block[..CRC_AT]) {
        return Err(FormatError::Checksum);
    }
    Ok(fields)
}

fn begin(bytes: &mut [u8], magic: &[u8; 8]) {
    put(bytes, 0, magic);
    put(bytes, 8, &VERSION.to_le_bytes());
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Writes the checksum at the end of a block.
pub fn seal(block: &mut Block) {
    let crc = checksum(&block[..CRC_AT]);
    put(block, CRC_AT, &crc.to_le_bytes());
}
