//! Fuzz target for the records of pools: superblock, chunk header, map page, volume table.
//!
//! Input: a byte that selects the structure and whether its checksum is made to match, a byte of
//! place, then the bytes of the structure, cut or filled to its length. Or the stored blocks of a
//! compressed unit.
//!
//! Whatever is accepted can be encoded again and decodes to the same value.

use flagstone_pool::PoolId;
use flagstone_pool::compress::{compressed, decompressed};
use flagstone_pool::limits::BLOCK_BYTES;
use flagstone_pool::ondisk::chunk::ChunkHeader;
use flagstone_pool::ondisk::layout::PoolLayout;
use flagstone_pool::ondisk::page::{MapPage, PagePlace};
use flagstone_pool::ondisk::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES, Superblock, choose};
use flagstone_pool::ondisk::unit::Codec;
use flagstone_pool::ondisk::volume_table::VolumeTable;
use flagstone_pool::ondisk::{Block, seal};

/// Decodes the bytes as one structure.
pub fn run(input: &[u8]) {
    let [parameters, place, bytes @ ..] = input else { return };
    let place = u64::from(*place);
    if parameters & 8 != 0 {
        return unit(bytes, place as usize % 10);
    }
    if parameters & 3 == 3 {
        return volume_table(bytes);
    }
    let mut block: Block = [0; BLOCK_BYTES];
    let len = bytes.len().min(BLOCK_BYTES);
    block[..len].copy_from_slice(&bytes[..len]);
    if parameters & 4 != 0 {
        seal(&mut block);
    }
    match parameters & 3 {
        0 => superblock(&block, place as usize % 4),
        1 => chunk(&block, place),
        _ => page(&block, place),
    }
}

fn layout() -> PoolLayout {
    let size_bytes = SUPERBLOCK_AREA_BYTES + 64 * 256 * BLOCK_BYTES as u64;
    let device = DeviceRecord { id: PoolId::default(), size_bytes, segments: 64 };
    PoolLayout::new(256, &[device]).expect("a possible layout")
}

fn superblock(block: &Block, copy: usize) {
    let Ok(found) = Superblock::decode(block, copy) else { return };
    let again = Superblock::decode(&found.encode(copy), copy);
    assert_eq!(again.as_ref(), Ok(&found));
    assert_eq!(choose(&[again.clone(), again]), Ok(found));
}

fn chunk(block: &Block, at: u64) {
    let layout = layout();
    let Ok(found) = ChunkHeader::decode(block, at, &layout) else { return };
    assert!(at % 256 + found.blocks() <= 256, "a chunk is within its segment");
    let mut again: Block = [0; BLOCK_BYTES];
    found.encode(&mut again);
    assert_eq!(ChunkHeader::decode(&again, at, &layout), Ok(found));
}

fn page(block: &Block, index: u64) {
    let place = PagePlace { volume: 1, level: 1 + (index % 3) as u8, index };
    let Ok(found) = MapPage::decode(block, place, layout().blocks()) else { return };
    let mut again: Block = [0; BLOCK_BYTES];
    found.encode(place.level, place.index, &mut again);
    assert_eq!(MapPage::decode(&again, place, layout().blocks()), Ok(found));
}

/// Stored blocks of a compressed unit, which decompress to exactly its size or not at all.
fn unit(bytes: &[u8], blocks: usize) {
    if let Some(data) = decompressed(bytes, blocks, <[u8]>::to_vec) {
        assert_eq!(data.len(), blocks * BLOCK_BYTES);
        for codec in [Codec::Lz4, Codec::Zstd] {
            if let Some(stored) = compressed(codec, &data, <[u8]>::to_vec) {
                assert!(decompressed(&stored, blocks, |again| again == data) == Some(true));
            }
        }
    }
}

fn volume_table(bytes: &[u8]) {
    let blocks = layout().blocks();
    let Ok(found) = VolumeTable::decode(bytes, blocks) else { return };
    assert_eq!(VolumeTable::decode(&found.encode(), blocks), Ok(found));
}
