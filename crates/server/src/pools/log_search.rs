//! Log search: finds a pool's log device among the disks of this machine.
//!
//! Names of disks change with a restart. A blank disk that got the name of the log device looks like a
//! local SSD that was erased, and opening the pool without the newest writes loses them for good.
//!
//! Invariant: a disk is read by one thread at a time. A disk that hangs keeps its thread; later searches
//! skip it, and do not conclude that the log device is nowhere.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_host::root::Root;
use flagstone_pool::id::PoolId;
use flagstone_pool::ondisk::superblock::{COPIES, LOG_INDEX, Superblock, copy_offset};
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::{spawn_blocking, time};
use parking_lot::Mutex;

/// Kinds of devices that are not searched: their media may be absent, or a network away.
const UNSEARCHED: [&str; 4] = ["fd", "nbd", "ram", "sr"];

/// Longest search: a disk may hang.
const SEARCH_MAX: Duration = Duration::from_secs(10);

/// The log device that a search is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    pub(super) id: PoolId,
    /// Newest update of the superblock of its pool.
    pub(super) update: u64,
}

/// Disks that are being read, by path.
type Reading = Arc<Mutex<BTreeSet<String>>>;

/// Searches of the disks of this machine, one after the other.
pub(super) struct LogSearch {
    root: Root,
    patience: Duration,
    turn: Rc<Semaphore>,
    reading: Reading,
}

impl LogSearch {
    pub(super) fn new(root: Root) -> LogSearch {
        let (turn, reading) = (Semaphore::new(1), Reading::default());
        LogSearch { root, patience: SEARCH_MAX, turn, reading }
    }

    /// Path of the disk or partition that is this log device.
    ///
    /// # Errors
    /// Why the disks were not searched, or not all of them.
    pub(super) async fn find(&self, sought: Sought) -> Result<Option<String>, String> {
        let _turn = self.turn.acquire(1).await;
        let (root, reading) = (self.root.clone(), self.reading.clone());
        let search = spawn_blocking("search", move || find(&root, sought, &reading));
        match time::timeout(self.patience, search).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(silence(self.reading.lock().iter())),
        }
    }
}

fn silence<'a>(paths: impl Iterator<Item = &'a String>) -> String {
    let paths: Vec<&str> = paths.map(String::as_str).collect();
    format!(
        "its log device was not found, and may be {}, which does not answer",
        paths.join(" or ")
    )
}

fn find(root: &Root, sought: Sought, reading: &Reading) -> Result<Option<String>, String> {
    // Without sysfs there is nothing to search.
    let names = root.list("/sys/class/block").unwrap_or_default();
    let searched = |name: &String| !UNSEARCHED.iter().any(|kind| name.starts_with(kind));
    let mut silent = Vec::new();
    for path in names.iter().filter(|name| searched(name)).map(|name| format!("/dev/{name}")) {
        if !reading.lock().insert(path.clone()) {
            silent.push(path);
            continue;
        }
        let is_found = is_log_device(&root.locate(&path), sought);
        reading.lock().remove(&path);
        if is_found {
            return Ok(Some(path));
        }
    }
    match silent.is_empty() {
        true => Ok(None),
        false => Err(silence(silent.iter())),
    }
}

fn is_log_device(path: &Path, sought: Sought) -> bool {
    let Ok(disk) = File::options().read(true).open(path) else { return false };
    (0..COPIES).any(|copy| {
        let mut block = [0; 4096];
        let read = disk.read_exact_at(&mut block, copy_offset(copy));
        let decoded = read.ok().and_then(|()| Superblock::decode(&block, copy).ok());
        decoded.is_some_and(|superblock| {
            superblock.device == LOG_INDEX
                && superblock.device_id() == sought.id
                // A crash may leave it one update behind; an old copy is no way out.
                && superblock.update + 1 >= sought.update
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_blockdev::MemoryDevice;
    use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolError, VolumeOptions};
    use flagstone_runtime::buf;
    use std::sync::Arc;

    const SIZE: u64 = 64 << 20;

    fn named(name: &str) -> NamedDevice {
        let device = MemoryDevice::new(SIZE, 512).unwrap();
        NamedDevice { name: name.to_owned(), device: Arc::new(device) }
    }

    #[test]
    fn log_device_is_found_under_another_name() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Root::new(scratch.path());
        for directory in ["sys/class/block", "dev"] {
            std::fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        flagstone_runtime::block_on(async move {
            let (disk, log) = (named("disk"), named("log"));
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let made = Pool::create_with_log(vec![disk.clone()], Some(log.clone()), &options).await;
            // The creation of a volume is in the tail.
            let size = VolumeOptions { size_bytes: 1 << 20, ..VolumeOptions::default() };
            drop(made.unwrap().create_volume("db", &size).await.unwrap());
            let Err(PoolError::LogDeviceMissing { id, update, .. }) =
                Pool::open(vec![disk.clone()]).await
            else {
                panic!("the pool opens without its log device");
            };
            let sought = Sought { id, update };
            let put = |name: &str, content: &[u8]| {
                std::fs::write(root.locate(&format!("/sys/class/block/{name}")), "").unwrap();
                std::fs::write(root.locate(&format!("/dev/{name}")), content).unwrap();
            };
            let content = async |named: &NamedDevice| {
                named.device.read(0, buf::alloc(1 << 20).await).await.unwrap().to_vec()
            };
            let of_log = content(&log).await;
            put("sda", &content(&disk).await);
            put("sdb", b"short");
            put("nvme0n1", &vec![0; 1 << 20]);
            put("nbd0", &of_log);
            std::fs::write(root.locate("/sys/class/block/sdz"), "").unwrap();
            let search = LogSearch::new(root.clone());
            assert_eq!(search.find(sought).await, Ok(None));
            put("nvme1n1", &of_log);
            let found = search.find(sought).await;
            assert_eq!(found, Ok(Some("/dev/nvme1n1".to_owned())));
            let newer = Sought { update: update + 2, ..sought };
            assert_eq!(search.find(newer).await, Ok(None), "an old copy");
        })
        .unwrap();
    }

    #[test]
    fn hung_disk_keeps_one_thread_of_all_searches() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Root::new(scratch.path());
        for directory in ["sys/class/block", "dev"] {
            std::fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        let put = |name: &str| {
            std::fs::write(root.locate(&format!("/sys/class/block/{name}")), "").unwrap();
            root.locate(&format!("/dev/{name}"))
        };
        // A pipe without a writer hangs.
        let hung = put("sda");
        let made = std::process::Command::new("mkfifo").arg(&hung).status().unwrap();
        assert!(made.success());
        std::fs::write(put("sdb"), b"short").unwrap();
        flagstone_runtime::block_on(async {
            let sought = Sought { id: PoolId::random(), update: 1 };
            let patience = Duration::from_millis(50);
            let search = LogSearch { patience, ..LogSearch::new(root.clone()) };
            for _ in 0..5 {
                let refused = search.find(sought).await.unwrap_err();
                assert!(refused.contains("/dev/sda, which does not answer"), "{refused}");
            }
            assert_eq!(search.reading.lock().len(), 1);
            // Each thread has a reference.
            let threads = || Arc::strong_count(&search.reading) - 1;
            assert_eq!(threads(), 1);
            // It answers.
            drop(File::options().write(true).open(&hung).unwrap());
            while threads() > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            std::fs::remove_file(&hung).unwrap();
            assert_eq!(search.find(sought).await, Ok(None));
        })
        .unwrap();
    }
}
