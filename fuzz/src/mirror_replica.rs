//! Fuzz target for a replica's disks with modified metadata, including its checksums.
//!
//! Input: a byte of parameters (1: separate log device; 2: the replica was in use when its node
//! died; 4: its device has grown since; 8: checksums are not corrected), then changes. A change is
//! a page (below 128: of the data device, counted from the end of the metadata; from 128: of the
//! log device, from its beginning), an offset in the page (2 bytes, little-endian), a length, and
//! the bytes.
//!
//! A replica that opens must be consistent and usable: it is used, closed, and found in the same
//! state. Host data is unchanged.

use flagstone_blockdev::{FileDevice, FileOptions, IoError, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::limits::{ACTIVE_REGIONS_MIN, PAGE_BYTES, PEERS_MAX};
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_nvme::digest::crc32c;
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};

const DATA: &str = "/dev/data";
const LOG: &str = "/dev/log";
const PAGE: u64 = PAGE_BYTES as u64;
/// Size of the data device: some pages of host data, and the metadata.
const DATA_BYTES: u64 = 51 * PAGE;
/// Size of the data device after growth.
const GROWN_BYTES: u64 = 80 * PAGE;
const LOG_BYTES: u64 = 16 * PAGE;
/// Metadata pages of each device that may be changed.
const PAGES: u64 = 7;
/// Fill byte of the host data.
const WRITTEN: u8 = 0x5A;

/// Opens the replica, and uses it.
pub fn run(input: &[u8]) {
    let Some((&parameters, changes)) = input.split_first() else { return };
    let is_set = |bit: u8| parameters & bit != 0;
    let separate = is_set(1);
    let sim = Simulation::new(0, SimConfig::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(DATA_BYTES));
    sim.add_disk(node, LOG, DiskConfig::block_device(LOG_BYTES));
    sim.poke(node, DATA, 0, &[WRITTEN; DATA_BYTES as usize]);
    let made = sim.spawn_on(node, make(separate, is_set(2)));
    let hosts_bytes = sim.block_on(made).expect("the task is not aborted");
    sim.crash(node);
    sim.restart(node);
    change(&sim, node, changes, !is_set(8));
    if is_set(4) {
        sim.grow_disk(node, DATA, GROWN_BYTES);
    }
    let used = sim.spawn_on(node, open(separate));
    let Some(served_bytes) = sim.block_on(used).expect("the task is not aborted") else { return };
    let theirs = sim.peek(node, DATA, 0, hosts_bytes.min(served_bytes) as usize);
    assert!(theirs.iter().all(|byte| *byte == WRITTEN), "host data was changed");
}

fn devices(separate: bool) -> (SharedDevice, Option<SharedDevice>) {
    let open = |path| -> SharedDevice {
        FileDevice::open(path, &FileOptions::default()).expect("the disk is free")
    };
    (open(DATA), separate.then(|| open(LOG)))
}

/// Creates a replica. Returns the size of its volume, in bytes.
async fn make(separate: bool, in_use: bool) -> u64 {
    let (data, log) = devices(separate);
    let geometry = ReplicaGeometry {
        usable_bytes: PAGE,
        bit_bytes: PAGE as u32,
        region_bytes: PAGE as u32,
        active_regions_max: ACTIVE_REGIONS_MIN,
    };
    let create =
        CreateReplica { volume: MirrorId([7; 16]), with_data: true, zeroes: false, geometry };
    Replica::create(data.clone(), log.clone(), create).await.expect("there is room");
    let replica = Replica::open(data, log).await.expect("it was just made");
    if in_use {
        replica.begin_use(|_| {}).await.expect("sound disks");
        drop(replica.reference(0, PAGE).await.expect("it is in use"));
    }
    replica.geometry().size_bytes
}

/// Applies the changes of an input, and corrects the checksums of the changed pages.
fn change(sim: &Simulation, node: NodeId, mut changes: &[u8], mend: bool) {
    while let Some((&[page, low, high, len], rest)) = changes.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        changes = rest;
        let number = u64::from(page & 127) % PAGES;
        let (path, at) = match page < 128 {
            true => (DATA, DATA_BYTES - (number + 1) * PAGE),
            false => (LOG, number * PAGE),
        };
        let mut whole = sim.peek(node, path, at, PAGE_BYTES);
        let from = usize::from(u16::from_le_bytes([low, high])) % PAGE_BYTES;
        let len = bytes.len().min(PAGE_BYTES - from);
        whole[from..from + len].copy_from_slice(&bytes[..len]);
        if mend {
            seal(&mut whole);
        }
        sim.poke(node, path, at, &whole);
    }
}

/// Writes the correct checksum for this kind of page: `docs/mirror-format.md`.
fn seal(page: &mut [u8]) {
    const HOT: &[u8] = b"FSMIRHT\n";
    const HOT_CRC_AT: usize = 60;
    if !page.starts_with(HOT) {
        let at = PAGE_BYTES - 4;
        let crc = crc32c(&page[..at]);
        return page[at..].copy_from_slice(&crc.to_le_bytes());
    }
    let count = u32::from_le_bytes([page[12], page[13], page[14], page[15]]) as usize;
    let end = count.saturating_mul(4).saturating_add(HOT_CRC_AT + 4).min(PAGE_BYTES);
    let covered = [&page[..HOT_CRC_AT], &page[HOT_CRC_AT + 4..end]].concat();
    page[HOT_CRC_AT..HOT_CRC_AT + 4].copy_from_slice(&crc32c(&covered).to_le_bytes());
}

/// Opens the replica, uses it, and opens it again. Returns the size of its volume in bytes, if it
/// opened.
async fn open(separate: bool) -> Option<u64> {
    let (data, log) = devices(separate);
    let replica = match Replica::open(data.clone(), log.clone()).await {
        Ok(replica) => replica,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let size_bytes = check(&replica, data.geometry().size_bytes);
    let superblock = replica.superblock();
    let used = use_it(&replica, size_bytes).await;
    replica.retire().await;
    if let Err(error) = used {
        assert_eq!(error, IoError::Unsupported, "the disks are sound: a counter has ended");
        return Some(size_bytes);
    }
    let again = Replica::open(data.clone(), log).await.expect("it was closed cleanly");
    assert_eq!(again.log_lost(), None, "its log is the closed one");
    assert_eq!(check(&again, data.geometry().size_bytes), size_bytes);
    let left = again.superblock();
    assert!(!left.flags.in_use && again.word(0) & 1 == 1);
    assert_eq!((left.replica, left.current), (superblock.replica, superblock.current));
    Some(size_bytes)
}

/// Uses the replica as a source does, and marks its first part.
async fn use_it(replica: &Replica, size_bytes: u64) -> Result<(), IoError> {
    replica.begin_use(|_| {}).await?;
    drop(replica.reference(0, replica.longest_piece().min(size_bytes)).await?);
    replica.mark(0..1);
    replica.persist_marks().await?;
    replica.end_use(|_| {}).await
}

/// Checks the invariants of every replica. Returns the size of its volume, in bytes.
fn check(replica: &Replica, device_bytes: u64) -> u64 {
    let (superblock, size_bytes) = (replica.superblock(), replica.geometry().size_bytes);
    assert!(size_bytes > 0 && size_bytes < device_bytes && size_bytes.is_multiple_of(PAGE));
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock.clone()));
    let bits = size_bytes.div_ceil(superblock.geometry.bit_bytes.into());
    assert!(replica.bits().count() <= bits, "bits beyond the end");
    assert!(replica.room_bytes() >= size_bytes);
    for place in 0..PEERS_MAX {
        let view = replica.view(place);
        assert_eq!((view.usable_bytes, view.generations.current), (size_bytes, superblock.current));
    }
    let _ = (superblock.ancestors(), replica.statistics());
    if let Some(lost) = replica.log_lost() {
        assert!(!lost.to_string().is_empty());
        assert_eq!(replica.bits().count(), bits, "a lost log has no records");
    }
    size_bytes
}
