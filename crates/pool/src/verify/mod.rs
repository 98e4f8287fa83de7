//! Verification: compares blocks with their checksums. [`scrub`] reads an open pool in use;
//! [`check`] reads everything on the devices of a closed pool.

pub mod check;
mod copies;
pub mod scrub;

use std::fmt;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use crate::compress::is_unit;
use crate::limits::BLOCK_BYTES;
use crate::ondisk::Block;
use crate::ondisk::checksum;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{MapPage, PagePlace};
use crate::ondisk::unit::UnitPlace;
use crate::storage::Storage;

/// One damage, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the device.
    pub device: String,
    /// Offset on the device, in bytes.
    pub device_offset_bytes: u64,
    /// Damaged structure.
    pub kind: DamageKind,
    /// Symptom of the damage.
    pub cause: &'static str,
}

/// Damaged structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// A copy of the superblock, which the next checkpoint rewrites.
    Superblock {
        /// Number of the copy.
        copy: usize,
    },
    /// Data of a volume or snapshot. Reads of it fail until it is written or discarded.
    Data {
        /// Name of the volume or snapshot.
        volume: String,
        /// Offset in the volume, in bytes.
        offset_bytes: u64,
        /// Length, in bytes.
        len_bytes: u64,
    },
    /// A map page; everything below it is lost.
    Map {
        /// Name of the volume or snapshot.
        volume: String,
        /// First byte that the page maps.
        offset_bytes: u64,
        /// Number of bytes that the page maps.
        len_bytes: u64,
    },
    /// Metadata of the pool: the usage table or the volume table.
    Metadata,
    /// A chunk of the log.
    Log,
    /// Header of a chunk with live blocks. The cleaner cannot clean its segment without it.
    Header,
    /// Two maps own a block, or a recorded count is wrong.
    Count,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { device, device_offset_bytes: at, kind, cause } = self;
        match kind {
            DamageKind::Superblock { copy } => write!(f, "copy {copy} of the superblock")?,
            DamageKind::Data { volume, offset_bytes, len_bytes } => {
                write!(f, "{len_bytes} B at {offset_bytes} of {volume}")?;
            }
            DamageKind::Map { volume, offset_bytes, len_bytes } => {
                write!(f, "map of {len_bytes} B at {offset_bytes} of {volume}")?;
            }
            DamageKind::Metadata => write!(f, "metadata of the pool")?,
            DamageKind::Log => write!(f, "log of the pool")?,
            DamageKind::Header => write!(f, "chunk header")?,
            DamageKind::Count => write!(f, "space accounting")?,
        }
        write!(f, ": {cause}, on {device} at {at}")
    }
}

/// Cause of damage: a failed read.
const UNREADABLE: &str = "it cannot be read";
const CHANGED: &str = "its content is not what was written";
const LOST: &str = "it was lost by damage that a checkpoint found earlier";

/// Reads a block, bypassing caches.
///
/// # Errors
/// The damage; other errors of the device.
async fn read_block(
    storage: &Storage,
    entry: MapEntry,
) -> Result<Result<Block, &'static str>, IoError> {
    match storage.read_entry_block(entry).await {
        Ok(block) if checksum(&block) == entry.checksum => Ok(Ok(block)),
        Ok(_) => Ok(Err(CHANGED)),
        Err(IoError::ReadFault) => Ok(Err(UNREADABLE)),
        Err(error) => Err(error),
    }
}

/// Reads the stored blocks of an entry past all caches, and verifies what they contain.
///
/// # Errors
/// The damage; other errors of the device.
async fn verify_stored(
    storage: &Storage,
    entry: MapEntry,
) -> Result<Result<(), &'static str>, IoError> {
    if !storage.layout.holds(&entry) {
        return Ok(Err("its compressed unit crosses a segment"));
    }
    let memory = buf::acquire_more(entry.stored_blocks() * BLOCK_BYTES).await;
    let stored = match storage.read_entry(entry, memory).await {
        Ok(stored) => stored,
        Err(IoError::ReadFault) => return Ok(Err(UNREADABLE)),
        Err(error) => return Err(error),
    };
    if !entry.matches(&stored) {
        return Ok(Err(CHANGED));
    }
    let whole = |unit: UnitPlace| is_unit(&stored, unit.blocks.into());
    Ok(match entry.unit().is_none_or(whole) {
        true => Ok(()),
        false => Err("it is no compressed unit, although its checksum is right"),
    })
}

/// Reads a map page past all caches.
async fn read_page(
    storage: &Storage,
    entry: MapEntry,
    place: PagePlace,
) -> Result<Result<MapPage, &'static str>, IoError> {
    let block = match read_block(storage, entry).await? {
        Ok(block) => block,
        Err(cause) => return Ok(Err(cause)),
    };
    let page = MapPage::decode(&block, place, storage.layout.blocks());
    Ok(page.map_err(|_| "it is no page of this place, although its checksum is right"))
}

/// Damage of a block of the pool.
fn damage(storage: &Storage, location: u64, kind: DamageKind, cause: &'static str) -> Damage {
    let place = storage.layout.place(location);
    let device = storage.devices[place.device].name.clone();
    Damage { device, device_offset_bytes: place.offset, kind, cause }
}

/// Converts blocks to bytes.
fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES as u64)
}
