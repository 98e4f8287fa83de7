//! Seeds of pool input: one of each structure, sealed, and with its checksum wrong.

use std::io;

use flagstone_pool::PoolId;
use flagstone_pool::compress::compressed;
use flagstone_pool::limits::BLOCK_BYTES;
use flagstone_pool::ondisk::Block;
use flagstone_pool::ondisk::chunk::{ChunkHeader, ChunkRecord, SnapshotOrder};
use flagstone_pool::ondisk::entry::MapEntry;
use flagstone_pool::ondisk::page::{MapPage, PagePlace};
use flagstone_pool::ondisk::superblock::{
    DeviceRecord, LogStart, SUPERBLOCK_AREA_BYTES, Superblock, TailVolumes,
};
use flagstone_pool::ondisk::unit::{Codec, UnitPlace};
use flagstone_pool::ondisk::volume_table::{VolumeRecord, VolumeTable};

use super::Corpus;

/// `pool_format`.
pub(crate) fn structures(corpus: &Corpus) -> io::Result<()> {
    let mut volume = VolumeRecord::new(1, "db".to_owned(), 1 << 20);
    volume.properties.insert("limit".to_owned(), "iops=15000".to_owned());
    let root = MapEntry { location: 20, birth: 4, checksum: 6 };
    let device = DeviceRecord {
        id: PoolId([1; 16]),
        size_bytes: SUPERBLOCK_AREA_BYTES + 64 * 256 * BLOCK_BYTES as u64,
        segments: 64,
    };
    let superblock = Superblock {
        update: 3,
        pool: PoolId([9; 16]),
        name: "fast".to_owned(),
        device: 0,
        devices: vec![device],
        pairs: Vec::new(),
        segment_blocks: 256,
        log: 77,
        start: LogStart { sequence: 5, block: 17, following: 3, slot: 0 },
        root,
        log_device: Some(DeviceRecord { id: PoolId([8; 16]), ..device }),
        tail: TailVolumes::Listed([1, 3].into()),
        reached: 4,
        encryption: false,
        skipped: 0,
    };
    put(corpus, "superblock", 0, 0, &superblock.encode(0))?;
    let place = PagePlace { volume: 1, level: 2, index: 7 };
    let header = ChunkHeader {
        log: 77,
        sequence: 5,
        durable: 4,
        block: 17,
        following: 3,
        records: vec![
            ChunkRecord::Volume(Box::new(volume.clone())),
            ChunkRecord::Data { volume: 1, block: 9, count: 2 },
            ChunkRecord::Zero { volume: 1, block: 100, count: 1 << 20 },
            ChunkRecord::Moved { volume: 1, block: 8, old: 300, birth: 2 },
            ChunkRecord::Page { place, birth: 3 },
            ChunkRecord::Delete { volume: 1 },
            ChunkRecord::Rollback { volume: 1, snapshot: 2 },
            ChunkRecord::Promote { volume: 3 },
        ],
        checksums: vec![1, 2, 3, 4],
    };
    let mut block: Block = [0; BLOCK_BYTES];
    header.encode(&mut block);
    put(corpus, "chunk", 1, 17, &block)?;
    let copies = vec![
        ChunkRecord::Moved { volume: 1, block: 8, old: unit_location(), birth: 2 },
        ChunkRecord::Page { place: PagePlace { level: 0, ..place }, birth: 3 },
    ];
    // Blocks that followed each other have a short form.
    let run =
        (8..10).map(|block| ChunkRecord::Moved { volume: 1, block, old: 292 + block, birth: 2 });
    let records = vec![
        ChunkRecord::Unit { volume: 1, block: 16, count: 8, stored: 2 },
        ChunkRecord::MovedUnit { stored: 1, parts: copies },
        ChunkRecord::MovedUnit { stored: 1, parts: run.collect() },
    ];
    ChunkHeader { records, ..header.clone() }.encode(&mut block);
    put(corpus, "units", 1, 17, &block)?;
    let order = SnapshotOrder {
        name: "before".to_owned(),
        volumes: vec![1],
        uuid: PoolId([3; 16]),
        created_s: 1_790_000_000,
    };
    let alone = ChunkRecord::Snapshot(Box::new(order.clone()));
    ChunkHeader { records: vec![alone], checksums: vec![], ..header }.encode(&mut block);
    put(corpus, "snapshot", 1, 17, &block)?;
    let mut page = MapPage { volume: 1, ..MapPage::default() };
    page.entries[0] = root;
    page.encode(place.level, place.index, &mut block);
    put(corpus, "page", 2, 7, &block)?;
    page.entries[1] = MapEntry { location: unit_location(), ..root };
    page.encode(1, place.index, &mut block);
    put(corpus, "leaf", 2, 7, &block)?;
    units(corpus)?;
    let mut volume_table = VolumeTable::default();
    volume_table.upsert(&volume).map_err(io::Error::other)?;
    volume_table.snapshot(&order, 9).map_err(io::Error::other)?;
    let clone = VolumeRecord { id: 3, name: "test".to_owned(), parent: 2, ..volume };
    volume_table.upsert(&clone).map_err(io::Error::other)?;
    put(corpus, "volume table", 3, 0, &volume_table.encode())
}

fn unit_location() -> u64 {
    UnitPlace { index: 2, blocks: 8, stored: 3 }.location(300)
}

/// Stored blocks of compressed units.
fn units(corpus: &Corpus) -> io::Result<()> {
    for (name, codec) in [("lz4", Codec::Lz4), ("zstd", Codec::Zstd)] {
        for blocks in [2, 8_u8] {
            let data: Vec<u8> =
                (0..usize::from(blocks) * BLOCK_BYTES).map(|at| (at / 100) as u8).collect();
            let stored = compressed(codec, &data, <[u8]>::to_vec)
                .ok_or_else(|| io::Error::other("it does not shrink"))?;
            let input = [&[8, blocks], &stored[..]].concat();
            corpus.put("pool_format", &format!("unit-{name}-{blocks}"), &input)?;
        }
    }
    Ok(())
}

fn put(corpus: &Corpus, name: &str, kind: u8, place: u8, bytes: &[u8]) -> io::Result<()> {
    corpus.put("pool_format", name, &[&[kind | 4, place], bytes].concat())?;
    let cut = &bytes[..bytes.len() - 1];
    corpus.put("pool_format", &format!("{name}-cut"), &[&[kind, place], cut].concat())
}
