//! A pool that is too full to be opened, and the device that lets it open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use flagstone_pool::ondisk::chunk::ChunkHeader;
use flagstone_pool::ondisk::superblock::{COPIES, Superblock, TailVolumes, copy_offset};
use flagstone_tests::freezer::Freezer;
use flagstone_tests::http::ask;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;

const BLOCK: u64 = 4096;

/// Fills the log of a closed pool with empty chunks, one per segment, until one segment is left. It
/// has used one segment so far.
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

/// Takes the last chunk from a filled log, which frees its segment.
fn remove_last_chunk(device: &Path) {
    let file = File::options().read(true).write(true).open(device).unwrap();
    let mut block = [0; BLOCK as usize];
    file.read_exact_at(&mut block, copy_offset(0)).unwrap();
    let superblock = Superblock::decode(&block, 0).unwrap();
    let segment_bytes = u64::from(superblock.segment_blocks) * BLOCK;
    let starts = (0..superblock.devices[0].segments)
        .map(|segment| (1 << 20) + u64::from(segment) * segment_bytes);
    let mut has_chunk = |start: &u64| {
        file.read_exact_at(&mut block, *start).unwrap();
        block.iter().any(|byte| *byte != 0)
    };
    let last = starts.rev().find(&mut has_chunk).unwrap();
    file.write_all_at(&[0; BLOCK as usize], last).unwrap();
}

/// Lets the superblock of a closed pool say that its log device has changes of every volume.
fn add_tail(device: &Path) {
    let file = File::options().read(true).write(true).open(device).unwrap();
    for copy in 0..COPIES {
        let mut block = [0; BLOCK as usize];
        file.read_exact_at(&mut block, copy_offset(copy)).unwrap();
        let superblock = Superblock::decode(&block, copy).unwrap();
        let with_tail = Superblock { tail: TailVolumes::All, ..superblock };
        file.write_all_at(&with_tail.encode(copy), copy_offset(copy)).unwrap();
    }
}

/// A closed pool that is too full to be opened, with a log device.
fn full_pool_with_log() -> (Bed, PathBuf, PathBuf) {
    let bed = Bed::start();
    let log = bed.device("log");
    full_pool_on(bed, log)
}

fn full_pool_on(mut bed: Bed, log: PathBuf) -> (Bed, PathBuf, PathBuf) {
    let device = bed.device("disk");
    bed.run(&format!("pool create fast {} --log-device {}", device.display(), log.display()));
    bed.run("volume create db --pool fast --size 64MiB");
    let drained = || bed.pool()["log"]["tail_bytes"] == 0;
    until("the log device is written out", drained, || bed.pool().to_string());
    assert!(bed.server.terminate().success());
    fill_log(&device);
    (bed, device, log)
}

fn grow(bed: &Bed, new: &Path) {
    bed.run(&format!("pool grow fast {}", new.display()));
    let pool = bed.pool();
    assert_eq!(pool["state"], "open", "{pool:#}");
    assert_eq!(pool["devices"].as_array().unwrap().len(), 2, "{pool:#}");
}

fn is_served(bed: &Bed, name: &str) -> bool {
    ask(&bed.server.api(), "GET", &format!("/v1/volumes/{name}")).status == 200
}

fn full_pool() -> (Bed, PathBuf) {
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
        assert!(is_served(&bed, "db"));
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
    let recorded = std::fs::read_to_string(bed.scratch.join("state/pools.json")).unwrap();
    assert!(recorded.contains("last_seen"), "{recorded}");
    bed.run(&format!("pool grow fast {}", bed.device("more").display()));
    assert!(is_served(&bed, "db"));
}

#[test]
fn full_pool_with_a_blank_log_device_grows() {
    for has_tail in [false, true] {
        let (mut bed, device, log) = full_pool_with_log();
        if has_tail {
            add_tail(&device);
        }
        // Simulate a local SSD, which is empty after a stop of its machine.
        std::fs::remove_file(&log).unwrap();
        bed.device("log");
        bed.server.restart();
        let pool = bed.pool();
        assert_eq!(pool["next"], "run flagstone pool grow fast DEVICE", "{pool:#}");
        grow(&bed, &bed.device("more"));
        assert_eq!(is_served(&bed, "db"), !has_tail);
        assert_eq!(bed.pool()["unserved"].as_array().unwrap().len(), usize::from(has_tail));
        bed.run("volume delete db --pool fast --yes");
    }
}

/// A full pool whose log device is gone, after an order to give up the tail: refused for the space.
fn full_pool_without_its_tail() -> (Bed, PathBuf) {
    let (mut bed, device, log) = full_pool_with_log();
    add_tail(&device);
    std::fs::remove_file(&log).unwrap();
    bed.server.restart();
    let pool = bed.pool();
    assert!(pool["next"].as_str().unwrap().contains("give-up-tail"), "{pool:#}");
    let early = bed.refused(&format!("pool grow fast {}", bed.device("more").display()));
    assert!(early.contains("not open"), "{early}");
    let full = bed.refused("pool give-up-tail fast --yes");
    assert!(full.contains("pool grow fast DEVICE"), "{full}");
    let pool = bed.pool();
    assert_eq!(pool["next"], "run flagstone pool grow fast DEVICE", "{pool:#}");
    (bed, device)
}

#[test]
fn full_pool_grows_after_its_tail_was_given_up() {
    let (bed, _) = full_pool_without_its_tail();
    grow(&bed, &bed.scratch.join("more"));
    assert!(is_served(&bed, "db"));
}

/// A retry has the consent, too: without it, the pool would stay closed for its tail.
#[test]
fn retry_opens_full_pool_whose_tail_was_given_up() {
    let (bed, device) = full_pool_without_its_tail();
    remove_last_chunk(&device);
    until("it is retried", || bed.pool()["state"] == "open", || bed.pool().to_string());
    assert!(is_served(&bed, "db"));
}

#[test]
fn full_pool_with_a_hung_log_device_grows() {
    let bed = Bed::start();
    let made = Freezer::new("hung log of a full pool", &bed.scratch, 1 << 30);
    let Some((freezer, log)) = made else { return };
    let (mut bed, ..) = full_pool_on(bed, log);
    let freezer = freezer;
    freezer.freeze();
    bed.server.restart();
    let is_full = || bed.pool()["next"] == "run flagstone pool grow fast DEVICE";
    until("the pool is full", is_full, || bed.pool().to_string());
    let more = bed.device("more");
    let grown = bed.output(&format!("pool grow fast {}", more.display()));
    let printed = String::from_utf8_lossy(&grown.stderr);
    assert!(grown.status.success() || printed.contains("this continues"), "{printed}");
    until("the pool is open", || bed.pool()["state"] == "open", || bed.pool().to_string());
    assert_eq!(bed.pool()["devices"].as_array().unwrap().len(), 2);
    assert!(is_served(&bed, "db"));
    freezer.thaw();
}
