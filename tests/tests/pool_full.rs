//! A pool that is too full to be opened, and the device that lets it open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use flagstone_pool::ondisk::chunk::ChunkHeader;
use flagstone_pool::ondisk::superblock::{Superblock, copy_offset};
use flagstone_tests::http::ask;
use flagstone_tests::pools::Bed;

const BLOCK: u64 = 4096;

/// Fills the log of a closed pool with empty chunks, one per segment, until one segment is left. It has
/// used one segment so far.
fn fill_log(device: &Path) {
    let file = File::options().read(true).write(true).open(device).unwrap();
    let mut block = [0; BLOCK as usize];
    file.read_exact_at(&mut block, copy_offset(0)).unwrap();
    let superblock = Superblock::decode(&block, 0).unwrap();
    let segment = u64::from(superblock.segment_blocks);
    let segments = superblock.devices[0].segments;
    let start = superblock.start;
    let used = (start.block / segment) as u32;
    let mut unused: Vec<u32> =
        (0..segments).filter(|other| ![used, start.following].contains(other)).collect();
    let last = unused.pop().unwrap();
    let mut chain = vec![start.following];
    chain.extend(unused);
    chain.push(last);
    let places =
        [start.block].into_iter().chain(chain.iter().map(|next| u64::from(*next) * segment));
    for ((place, following), sequence) in places.zip(&chain).zip(start.sequence..) {
        let header = ChunkHeader {
            log: superblock.log,
            sequence,
            durable: sequence,
            block: place,
            following: *following,
            records: Vec::new(),
            checksums: Vec::new(),
        };
        header.encode(&mut block);
        file.write_all_at(&block, (1 << 20) + place * BLOCK).unwrap();
    }
}

fn is_served(bed: &Bed) -> bool {
    ask(&bed.server.api(), "GET", "/v1/volumes/db").status == 200
}

fn full_pool() -> (Bed, std::path::PathBuf) {
    let (mut bed, device) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    assert!(bed.server.terminate().success());
    fill_log(&device);
    (bed, device)
}

#[test]
fn full_pool_opens_with_a_device_that_is_added() {
    let (mut bed, _) = full_pool();
    bed.server.restart();
    let pool = bed.pool();
    assert_eq!(pool["state"], "closed", "{pool:#}");
    assert!(pool["reason"].as_str().unwrap().contains("1 free segments"), "{pool:#}");
    assert_eq!(pool["next"], "run flagstone pool grow fast DEVICE", "{pool:#}");
    let small = bed.scratch.disk("small", 64 << 20);
    let refused = bed.refused(&format!("pool grow fast {}", small.display()));
    assert!(refused.contains("32 segments"), "{refused}");
    // Nothing of the refusal stays, also after a restart.
    assert!(bed.server.terminate().success());
    bed.server.restart();
    let more = bed.device("more");
    let grow = format!("pool grow fast {}", more.display());
    let shown = bed.run(&format!("{grow} --dry-run"));
    assert!(shown.contains("grows by"), "{shown}");
    assert_eq!(bed.pool()["state"], "closed");
    bed.run(&grow);
    for _ in 0..2 {
        let pool = bed.pool();
        assert_eq!(pool["state"], "open", "{pool:#}");
        assert_eq!(pool["devices"].as_array().unwrap().len(), 2, "{pool:#}");
        assert!(is_served(&bed));
        bed.run(&grow);
        assert!(bed.server.terminate().success());
        bed.server.restart();
    }
    bed.run("volume delete db --yes");
}

#[test]
fn full_pool_of_another_machine_is_imported_and_grown() {
    let (_elsewhere, device) = full_pool();
    let bed = Bed::start();
    let refused = bed.refused(&format!("pool import fast {}", device.display()));
    assert!(refused.contains("pool grow fast DEVICE"), "{refused}");
    bed.run(&format!("pool grow fast {}", bed.device("more").display()));
    assert!(is_served(&bed));
}
