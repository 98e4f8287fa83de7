//! Log search: finds a pool's log device among the disks of this machine.
//!
//! Names of disks change with a restart. A blank disk that got the name of the log device looks like a
//! local SSD that was erased, and opening the pool without the newest writes loses them for good.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use flagstone_host::root::Root;
use flagstone_pool::id::PoolId;
use flagstone_pool::ondisk::superblock::{COPIES, LOG_INDEX, Superblock, copy_offset};
use flagstone_runtime::{spawn_blocking, time};

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

/// Path of the disk or partition that is this log device.
///
/// # Errors
/// Why the disks were not searched.
pub(super) async fn find_log_device(root: Root, sought: Sought) -> Result<Option<String>, String> {
    let search = spawn_blocking("search", move || find(&root, sought));
    match time::timeout(SEARCH_MAX, search).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("a disk of this machine does not answer".to_owned()),
    }
}

fn find(root: &Root, sought: Sought) -> Option<String> {
    // Without sysfs there is nothing to search.
    let names = root.list("/sys/class/block").unwrap_or_default();
    let searched = |name: &String| !UNSEARCHED.iter().any(|kind| name.starts_with(kind));
    let paths = names.iter().filter(|name| searched(name)).map(|name| format!("/dev/{name}"));
    let mut paths = paths.filter(|path| is_log_device(&root.locate(path), sought));
    paths.next()
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
            assert_eq!(find_log_device(root.clone(), sought).await, Ok(None));
            put("nvme1n1", &of_log);
            let found = find_log_device(root.clone(), sought).await;
            assert_eq!(found, Ok(Some("/dev/nvme1n1".to_owned())));
            let newer = Sought { update: update + 2, ..sought };
            assert_eq!(find_log_device(root, newer).await, Ok(None), "an old copy");
        })
        .unwrap();
    }
}
