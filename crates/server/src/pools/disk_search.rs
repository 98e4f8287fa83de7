//! Disk search: finds devices of a pool among the disks of this machine.
//!
//! Names of disks change with a restart. A blank disk that got the name of the log device looks
//! like a local SSD that was erased, and opening the pool without the newest writes loses them for
//! good. A copy that got the name of its original looks like the pool.
//!
//! Invariant: a disk is read by one thread at a time. A disk that hangs keeps its thread; later
//! searches skip it. A search that skipped a disk, or failed to read one, does not conclude that
//! its object is nowhere.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_host::root::Root;
use flagstone_pool::ExaminedPool;
use flagstone_pool::id::PoolId;
use flagstone_pool::ondisk::superblock::{COPIES, LOG_INDEX, Superblock, copy_offset};
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::{spawn_blocking, time};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::same_disks::same_disks;

/// Kinds of devices that are not searched: their media may be absent, or a network away.
const UNSEARCHED: [&str; 6] = ["drbd", "fd", "nbd", "ram", "rbd", "sr"];

/// A copy in a file, which an operator looks at.
const LOOP: &str = "/dev/loop";

/// Longest search: a disk may hang.
const SEARCH_MAX: Duration = Duration::from_secs(10);

/// Longest search for copies, before each opening of a pool.
const COPY_SEARCH_MAX: Duration = Duration::from_secs(3);

/// The log device that a search is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    pub(super) id: PoolId,
    /// Newest update of the superblock of its pool.
    pub(super) update: u64,
}

/// A disk that is a copy of a device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskCopy {
    pub(super) path: String,
    /// Update of its superblock.
    pub(super) update: u64,
}

/// Disks that were not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Silent(pub(super) String);

/// Most disks that a message names.
const NAMED_MAX: usize = 4;

/// Disks that are being read, by path.
type Reading = Arc<Mutex<BTreeSet<String>>>;

/// Searches of the disks of this machine, one after the other.
pub(super) struct DiskSearch {
    root: Root,
    timeout: Duration,
    turn: Rc<Semaphore>,
    reading: Reading,
}

impl DiskSearch {
    pub(super) fn new(root: Root) -> DiskSearch {
        let (turn, reading) = (Semaphore::new(1), Reading::default());
        DiskSearch { root, timeout: SEARCH_MAX, turn, reading }
    }

    /// Path of the disk or partition that is this log device.
    ///
    /// # Errors
    /// Disks that were not read, if it is none of the others.
    pub(super) async fn find_log(&self, sought: Sought) -> Result<Option<String>, Silent> {
        let is_sought = move |superblock: &Superblock| {
            superblock.device == LOG_INDEX
                && superblock.device_id() == sought.id
                // A crash may leave it one update behind; an old copy is no way out.
                && superblock.update + 1 >= sought.update
        };
        let visit = move |path: &str, superblocks: &[Superblock]| {
            superblocks.iter().any(is_sought).then(|| path.to_owned())
        };
        self.search(self.timeout, BTreeSet::new(), visit).await
    }

    /// A disk other than `own` that is a device of this pool, too, and is not older.
    ///
    /// # Errors
    /// Disks that were not read, if none of the others is one.
    pub(super) async fn find_copy(
        &self,
        pool: ExaminedPool,
        own: &[String],
    ) -> Result<Option<DiskCopy>, Silent> {
        let (root, own) = (self.root.clone(), own.to_owned());
        let same = spawn_blocking("search", move || same_disks(&root, &own)).await;
        let visit = move |path: &str, superblocks: &[Superblock]| {
            let is_copy = |superblock: &&Superblock| {
                superblock.pool == pool.identity.id
                    && pool.devices.contains(&superblock.device_id())
            };
            let update = superblocks.iter().filter(is_copy).map(|own| own.update).max()?;
            let matters = update >= pool.identity.update && !path.starts_with(LOOP);
            matters.then(|| DiskCopy { path: path.to_owned(), update })
        };
        let timeout = self.timeout.min(COPY_SEARCH_MAX);
        self.search(timeout, same.unwrap_or_default(), visit).await
    }

    async fn search<T: Send + 'static>(
        &self,
        timeout: Duration,
        skipped: BTreeSet<String>,
        visit: impl Fn(&str, &[Superblock]) -> Option<T> + Send + 'static,
    ) -> Result<Option<T>, Silent> {
        let _turn = self.turn.acquire(1).await;
        let (root, reading) = (self.root.clone(), self.reading.clone());
        let search = spawn_blocking("search", move || scan(&root, &skipped, &reading, visit));
        match time::timeout(timeout, search).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(Silent(error.to_string())),
            Err(_) => Err(silent(&self.reading.lock().iter().map(no_answer).collect::<Vec<_>>())),
        }
    }
}

fn no_answer(path: &String) -> String {
    format!("{path}: no answer")
}

fn silent(disks: &[String]) -> Silent {
    let (named, others) = disks.split_at(disks.len().min(NAMED_MAX));
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    Silent(named.join(", ") + &others)
}

/// Visits disks until one is what the search is for.
fn scan<T>(
    root: &Root,
    skipped: &BTreeSet<String>,
    reading: &Reading,
    visit: impl Fn(&str, &[Superblock]) -> Option<T>,
) -> Result<Option<T>, Silent> {
    // Without sysfs there is nothing to search.
    let names = root.list("/sys/class/block").unwrap_or_default();
    let searched = |name: &&String| {
        !skipped.contains(*name) && !UNSEARCHED.iter().any(|kind| name.starts_with(kind))
    };
    let mut unread = Vec::new();
    for path in names.iter().filter(searched).map(|name| format!("/dev/{name}")) {
        if !reading.lock().insert(path.clone()) {
            unread.push(no_answer(&path));
            continue;
        }
        let (superblocks, failure) = superblocks(&root.locate(&path));
        reading.lock().remove(&path);
        if let Some(found) = visit(&path, &superblocks) {
            return Ok(Some(found));
        }
        unread.extend(failure.map(|error| format!("{path}: {error}")));
    }
    match unread.is_empty() {
        true => Ok(None),
        false => Err(silent(&unread)),
    }
}

/// Whole copies of the superblock of a disk, and the failure to read others.
fn superblocks(path: &Path) -> (Vec<Superblock>, Option<io::Error>) {
    let mut failure = None;
    let mut note =
        |error| failure = Some(error).filter(|error| !is_absent(error)).or(failure.take());
    let mut found = Vec::new();
    match File::options().read(true).open(path) {
        Err(error) => note(error),
        Ok(disk) => {
            for copy in 0..COPIES {
                let mut block = [0; 4096];
                match disk.read_exact_at(&mut block, copy_offset(copy)) {
                    Ok(()) => found.extend(Superblock::decode(&block, copy).ok()),
                    Err(error) => note(error),
                }
            }
        }
    }
    (found, failure)
}

/// Whether there is no disk for this service, no medium in it, or one too small for a superblock.
/// After other failures, a superblock may be there.
///
/// EPERM is the answer for a disk that the unit's `DeviceAllow` or a container excludes, such as
/// the system's: counted as unread, it would keep every pool closed whose log device is lost.
fn is_absent(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    error.kind() == io::ErrorKind::UnexpectedEof
        || matches!(
            code,
            Some(Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM | Errno::PERM)
        )
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
            // A card reader, or an extended partition.
            put("sdc", b"");
            put("nvme0n1", &vec![0; 1 << 20]);
            for name in ["nbd0", "drbd0", "rbd0p1"] {
                put(name, &of_log);
            }
            std::fs::write(root.locate("/sys/class/block/sdz"), "").unwrap();
            let search = DiskSearch::new(root.clone());
            assert_eq!(search.find_log(sought).await, Ok(None));
            // Reading a directory fails.
            let failing = root.locate("/dev/sdz");
            std::fs::create_dir(&failing).unwrap();
            let unread = search.find_log(sought).await.unwrap_err();
            assert!(unread.0.starts_with("/dev/sdz: Is a directory"), "{unread:?}");
            std::fs::remove_dir(&failing).unwrap();
            put("nvme1n1", &of_log);
            let found = search.find_log(sought).await;
            assert_eq!(found, Ok(Some("/dev/nvme1n1".to_owned())));
            let newer = Sought { update: update + 2, ..sought };
            assert_eq!(search.find_log(newer).await, Ok(None), "an old copy");
        })
        .unwrap();
    }

    #[test]
    fn disks_that_the_service_may_not_open_are_not_searched() {
        for (error, absent) in [(Errno::PERM, true), (Errno::ACCESS, false), (Errno::IO, false)] {
            assert_eq!(is_absent(&io::Error::from(error)), absent, "{error}");
        }
    }

    #[test]
    fn copies_of_a_pool_are_found_unless_older() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Root::new(scratch.path());
        for directory in ["sys/class/block", "dev"] {
            std::fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        let file = |name: &str| root.locate(&format!("/dev/{name}"));
        let put = |name: &str| {
            let holders = root.locate(&format!("/sys/class/block/{name}/holders"));
            std::fs::create_dir_all(holders).unwrap();
            let slaves = root.locate(&format!("/sys/class/block/{name}/slaves"));
            std::fs::create_dir_all(slaves).unwrap();
        };
        flagstone_runtime::block_on(async {
            let disk = named("disk");
            let content = async || {
                let read = disk.device.read(0, buf::alloc(1 << 20).await).await;
                read.unwrap().to_vec()
            };
            let examined = async || Pool::examine(std::slice::from_ref(&disk)).await.unwrap();
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(vec![disk.clone()], &options).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let old = (content().await, examined().await);
            let pool = Pool::open(vec![disk.clone()]).await.unwrap();
            pool.close().await.unwrap();
            let new = (content().await, examined().await);
            let own = file("sda");
            for name in ["sda", "sdb", "loop0"] {
                put(name);
                std::fs::write(file(name), &new.0).unwrap();
            }
            std::fs::write(file("sdb"), &old.0).unwrap();
            let search = DiskSearch::new(root.clone());
            let link = scratch.path().join("by-id");
            std::os::unix::fs::symlink(&own, &link).unwrap();
            let paths = [link.to_str().unwrap().to_owned()];
            let find = async |pool: &ExaminedPool| {
                let found = search.find_copy(pool.clone(), &paths).await.unwrap();
                found.map(|copy| copy.path)
            };
            assert_eq!(find(&new.1).await, None, "an older copy may stay");
            assert_eq!(find(&old.1).await, Some("/dev/sdb".to_owned()), "as old");
            std::fs::write(file("sdb"), &new.0).unwrap();
            assert_eq!(find(&old.1).await, Some("/dev/sdb".to_owned()), "newer");
            assert_eq!(find(&new.1).await, Some("/dev/sdb".to_owned()));
            // The same disk, below a multipath device or on another path.
            let wwid = |name: &str, text: &str| {
                let file = root.locate(&format!("/sys/class/block/{name}/wwid"));
                std::fs::write(file, text).unwrap();
            };
            wwid("sda", "naa.1\n");
            wwid("sdb", "naa.2\n");
            assert_eq!(find(&new.1).await, Some("/dev/sdb".to_owned()));
            wwid("sdb", "naa.1\n");
            assert_eq!(find(&new.1).await, None);
            wwid("sdb", "");
            let slave = root.locate("/sys/class/block/sda/slaves/sdb");
            std::fs::write(slave, "").unwrap();
            assert_eq!(find(&new.1).await, None);
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
            let timeout = Duration::from_millis(50);
            let search = DiskSearch { timeout, ..DiskSearch::new(root.clone()) };
            for _ in 0..5 {
                let refused = search.find_log(sought).await.unwrap_err();
                assert_eq!(refused, Silent("/dev/sda: no answer".to_owned()));
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
            assert_eq!(search.find_log(sought).await, Ok(None));
        })
        .unwrap();
    }
}
