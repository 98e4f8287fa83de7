//! Disk search: finds devices of a pool among the disks of this machine.
//!
//! Names of disks change with a restart. A blank disk with the name of the log device looks like an
//! erased local SSD, and opening the pool without the tail loses the newest writes for good. A copy
//! with the name of its original looks like the pool.
//!
//! Invariant: only one thread reads a disk at a time. A hung disk keeps its thread; later searches
//! skip the disk. A search that skipped a disk, or failed to read one, does not conclude that the
//! sought device is absent.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
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

/// Kinds of devices that are not searched, because they may have no medium, or are remote.
const UNSEARCHED: [&str; 6] = ["drbd", "fd", "nbd", "ram", "rbd", "sr"];

/// Loop devices are no copies: an operator may attach a backup to look at it.
const LOOP: &str = "/dev/loop";

/// Longest search. A disk may hang.
const SEARCH_MAX: Duration = Duration::from_secs(10);

/// Longest search for copies before an opening of a pool.
const COPY_SEARCH_MAX: Duration = Duration::from_secs(3);

/// Log device to search for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    pub(super) id: PoolId,
    /// Newest superblock update of its pool.
    pub(super) update: u64,
}

/// Disk that is a copy of a device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskCopy {
    pub(super) path: String,
    /// Update of the copy's superblock.
    pub(super) update: u64,
    /// Another copy with the same update and other contents: both have been written to since one
    /// was copied, so neither is newer.
    pub(super) rival: Option<String>,
}

/// A copy, and what it says about the pool.
struct FoundCopy {
    path: String,
    /// Without the position of the device, in which copies of one pool differ.
    superblock: Superblock,
}

/// The newest of these copies.
fn newest(copies: &[FoundCopy]) -> Option<DiskCopy> {
    let update = copies.iter().map(|copy| copy.superblock.update).max()?;
    let mut newest = copies.iter().filter(|copy| copy.superblock.update == update);
    let first = newest.next()?;
    let rival = newest.find(|copy| copy.superblock != first.superblock);
    let rival = rival.map(|copy| copy.path.clone());
    Some(DiskCopy { path: first.path.clone(), update, rival })
}

/// Disks that were not read, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Silent(pub(super) String);

/// Most disks listed in a message.
const NAMED_MAX: usize = 4;

/// Paths of the disks that are being read.
type Reading = Arc<Mutex<BTreeSet<String>>>;

/// Searches of this machine's disks, one at a time.
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
    /// Disks that were not read, if no other disk is the log device.
    pub(super) async fn find_log(&self, sought: Sought) -> Result<Option<String>, Silent> {
        let is_sought = move |superblock: &Superblock| {
            superblock.device == LOG_INDEX
                && superblock.device_id() == sought.id
                // After a crash, the log device may be one update behind. An older copy cannot
                // replace it.
                && superblock.update + 1 >= sought.update
        };
        let log = Arc::<Mutex<Option<String>>>::default();
        let found = log.clone();
        let visit = move |path: &str, superblocks: &[Superblock]| {
            if !superblocks.iter().any(is_sought) {
                return ControlFlow::Continue(());
            }
            *found.lock() = Some(path.to_owned());
            ControlFlow::Break(())
        };
        let searched = self.search(self.timeout, BTreeSet::new(), visit).await;
        let found = log.lock().take();
        if found.is_some() { Ok(found) } else { searched.map(|()| None) }
    }

    /// The newest disk outside of `own` that is also a device of this pool, and not older.
    ///
    /// # Errors
    /// Disks that were not read, if no other disk is a copy.
    pub(super) async fn find_copy(
        &self,
        pool: ExaminedPool,
        own: &[String],
    ) -> Result<Option<DiskCopy>, Silent> {
        let (root, own) = (self.root.clone(), own.to_owned());
        let same = spawn_blocking("search", move || same_disks(&root, &own)).await;
        let copies = Arc::<Mutex<Vec<FoundCopy>>>::default();
        let found = copies.clone();
        let visit = move |path: &str, superblocks: &[Superblock]| {
            let is_copy = |superblock: &&Superblock| {
                superblock.pool == pool.identity.id
                    && pool
                        .devices
                        .iter()
                        .chain(&pool.missing)
                        .any(|id| *id == superblock.device_id())
            };
            let newest = superblocks.iter().filter(is_copy).max_by_key(|own| own.update);
            if let Some(own) = newest.filter(|own| own.update >= pool.identity.update)
                && !path.starts_with(LOOP)
            {
                let superblock = Superblock { device: 0, ..own.clone() };
                found.lock().push(FoundCopy { path: path.to_owned(), superblock });
            }
            ControlFlow::Continue(())
        };
        let timeout = self.timeout.min(COPY_SEARCH_MAX);
        let searched = self.search(timeout, same.unwrap_or_default(), visit).await;
        // Also of a search that a hung disk has cut off.
        let found = newest(&copies.lock());
        if found.is_some() { Ok(found) } else { searched.map(|()| None) }
    }

    async fn search(
        &self,
        timeout: Duration,
        skipped: BTreeSet<String>,
        visit: impl Fn(&str, &[Superblock]) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(), Silent> {
        let _turn = self.turn.acquire(1).await;
        let (root, reading) = (self.root.clone(), self.reading.clone());
        let search = spawn_blocking("search", move || scan(&root, &skipped, &reading, visit));
        match time::timeout(timeout, search).await {
            Ok(Ok(searched)) => searched,
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

/// Reads disks until `visit` has found what it seeks.
fn scan(
    root: &Root,
    skipped: &BTreeSet<String>,
    reading: &Reading,
    visit: impl Fn(&str, &[Superblock]) -> ControlFlow<()>,
) -> Result<(), Silent> {
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
        if visit(&path, &superblocks).is_break() {
            return Ok(());
        }
        unread.extend(failure.map(|error| format!("{path}: {error}")));
    }
    match unread.is_empty() {
        true => Ok(()),
        false => Err(silent(&unread)),
    }
}

/// Whole superblock copies of a disk, and the error of an unreadable one.
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

/// True if this service cannot have the disk, it has no medium, or it is too small for a
/// superblock. After other errors, the disk may still have a superblock.
///
/// EPERM is the error for a disk that `DeviceAllow` of the unit or a container excludes, such as
/// the system disk. Counted as unread, this disk would keep every pool closed whose log device is
/// lost.
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

    const SIZE: u64 = 64 << 20;

    fn named(name: &str) -> NamedDevice {
        let device = MemoryDevice::new(SIZE, 512).unwrap();
        NamedDevice { name: name.to_owned(), device: Arc::new(device) }
    }

    /// Update of a disk with this content.
    fn copy_update(content: &[u8]) -> u64 {
        let copies = (0..COPIES).filter_map(|copy| {
            let at = usize::try_from(copy_offset(copy)).ok()?;
            Superblock::decode(content.get(at..at + 4096)?.try_into().ok()?, copy).ok()
        });
        copies.map(|superblock| superblock.update).max().unwrap()
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
            // The volume exists only in the tail.
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
            // An empty card reader, or an extended partition.
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
            // The newest of several, and two that were opened independently.
            let opened_copy = async || {
                let own = named("disk");
                for at in (0..SIZE).step_by(1 << 20) {
                    let part = disk.device.read(at, buf::alloc(1 << 20).await).await.unwrap();
                    own.device.write(at, part.freeze(), false).await.unwrap();
                }
                let pool = Pool::open(vec![own.clone()]).await.unwrap();
                pool.close().await.unwrap();
                own.device.read(0, buf::alloc(1 << 20).await).await.unwrap().to_vec()
            };
            let (newer, other) = (opened_copy().await, opened_copy().await);
            put("sdc");
            std::fs::write(file("sdc"), &newer).unwrap();
            let copy = async || search.find_copy(old.1.clone(), &paths).await.unwrap().unwrap();
            let found = copy().await;
            assert_eq!((found.path.as_str(), found.rival), ("/dev/sdc", None));
            put("sdd");
            std::fs::write(file("sdd"), &newer).unwrap();
            assert_eq!(copy().await.rival, None, "it has the same contents");
            std::fs::write(file("sdd"), &other).unwrap();
            let found = copy().await;
            assert_eq!(found.update, copy_update(&other));
            assert_eq!(found.rival.as_deref(), Some("/dev/sdd"));
            for name in ["sdc", "sdd"] {
                std::fs::write(file(name), b"short").unwrap();
            }
            // The same disk, under a multipath device or on another path.
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
        // Opening a pipe without a writer hangs.
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
            // Each thread holds a reference.
            let threads = || Arc::strong_count(&search.reading) - 1;
            assert_eq!(threads(), 1);
            // The disk answers.
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
