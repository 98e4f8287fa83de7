//! State directory: `pools.json` with the devices of each pool, and the progress of scrubs.
//!
//! Invariants: a lock lets one server at a time use a directory; a file is replaced as a whole, and
//! is durable when a write returns; a file that cannot be read is never replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_config::names::check_volume_name;
use flagstone_pool::limits::{DEVICES_MAX, MAP_CACHE_BYTES, POOL_NAME_MAX};
use flagstone_pool::{DeviceSet, PoolId, PoolIdentity};
use flagstone_runtime::sync::Semaphore;
use flagstone_runtime::{spawn, spawn_blocking, time};
use serde::{Deserialize, Serialize};

use crate::limits::{OPEN_TIMEOUT, POOLS_MAX, STATE_FILE_BYTES};

const VERSION: u32 = 1;

/// Longest wait for the lock of a server that is stopping.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Last recorded identity of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastSeen {
    /// Its identifier, a UUID.
    id: String,
    /// Last update of its superblock.
    update: u64,
}

impl From<PoolIdentity> for LastSeen {
    fn from(identity: PoolIdentity) -> LastSeen {
        LastSeen { id: identity.id.to_string(), update: identity.update }
    }
}

impl LastSeen {
    /// `None` for an invalid identifier.
    pub(crate) fn identity(&self) -> Option<PoolIdentity> {
        Some(PoolIdentity { id: self.id.parse().ok()?, update: self.update })
    }
}

/// Recorded pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolEntry {
    pub(crate) name: String,
    pub(crate) devices: Vec<String>,
    /// Path of the log device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<String>,
    /// Size of the map cache, unless it is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) map_cache_bytes: Option<u64>,
    /// `None` before the first opening.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<LastSeen>,
    /// The pool is, or may become, an older copy, whose legs were not released yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_old_legs: bool,
    /// An order is removing the superblocks of the devices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) destroying: bool,
    /// Device that a running order adds. It is also in `devices`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) adding: Option<String>,
    /// Device that a running order removes. It is also in `devices`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removing: Option<String>,
    /// Identifiers of the devices of a pool with redundancy, by path: a missing device keeps its
    /// path. Empty for other pools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) device_ids: BTreeMap<String, String>,
}

impl PoolEntry {
    pub(crate) fn new(name: &str, set: &DeviceSet<String>, log: Option<String>) -> PoolEntry {
        let DeviceSet { devices, adding, removing } = set.clone();
        PoolEntry {
            name: name.to_owned(),
            devices,
            log,
            map_cache_bytes: None,
            last_seen: None,
            has_old_legs: false,
            destroying: false,
            adding,
            removing,
            device_ids: BTreeMap::new(),
        }
    }

    /// True if the pool may be an older copy than its mirrors used last.
    pub(crate) fn may_be_older(&self) -> bool {
        self.has_old_legs || self.last_seen.is_none()
    }

    /// Replaces the device set.
    pub(crate) fn set_devices(&mut self, set: &DeviceSet<String>) {
        let DeviceSet { devices, adding, removing } = set.clone();
        (self.devices, self.adding, self.removing) = (devices, adding, removing);
    }

    /// Device set of the pool.
    pub(crate) fn set(self) -> DeviceSet<String> {
        let PoolEntry { devices, adding, removing, .. } = self;
        DeviceSet { devices, adding, removing }
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    pools: Vec<PoolEntry>,
}

/// A locked directory.
#[derive(Clone)]
pub(crate) struct StateDirectory {
    path: PathBuf,
    _lock: Arc<File>,
    /// Held while a file other than the list of pools is written.
    turn: Rc<Semaphore>,
}

impl StateDirectory {
    /// Locks the directory, which is created if necessary, and reads the pools.
    ///
    /// # Errors
    /// The failure, and the way out.
    pub(crate) async fn open(path: &Path) -> Result<(StateDirectory, Vec<PoolEntry>), String> {
        let begun = time::now();
        loop {
            let owned = path.to_owned();
            let opened = spawn_blocking("state", move || open_now(owned)).await;
            match opened.map_err(|error| error.to_string())? {
                Ok((lock, pools)) => {
                    let (path, lock) = (path.to_owned(), Arc::new(lock));
                    let turn = Semaphore::new(1);
                    return Ok((StateDirectory { path, _lock: lock, turn }, pools));
                }
                Err((true, _)) if begun.elapsed() < LOCK_TIMEOUT => time::sleep(LOCK_PAUSE).await,
                Err((_, why)) => return Err(why),
            }
        }
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the pools, durably.
    ///
    /// # Errors
    /// The failure. The former file remains.
    pub(crate) async fn write(&self, pools: Vec<PoolEntry>) -> Result<(), String> {
        let path = self.path.clone();
        let written = spawn_blocking("state", move || write_now(&path, pools)).await;
        written.and_then(|written| written).map_err(|error| {
            format!("the state in {} cannot be written: {error}", self.path.display())
        })
    }
}

impl StateDirectory {
    /// Replaces another file, durably, or removes it.
    ///
    /// # Errors
    /// The failure. The former file remains, or is replaced when the directory answers again.
    /// Nothing is written while an earlier write has not ended, so the last write wins, and a hung
    /// directory blocks only one thread.
    pub(super) async fn write_file(&self, name: &str, text: Option<Vec<u8>>) -> Result<(), String> {
        let (path, file, turn) = (self.path.clone(), name.to_owned(), self.turn.clone());
        let written = async move {
            let turn = turn.acquire(1).await;
            // A task of its own, which holds the permit until the directory answers.
            let write = spawn(async move {
                let _turn = turn;
                spawn_blocking("state", move || match text {
                    Some(text) => replace(&path, &file, &text),
                    None => match fs::remove_file(path.join(file)) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                        removed => removed,
                    },
                })
                .await
            });
            write.await.unwrap_or(Err(io::ErrorKind::Interrupted.into()))
        };
        let written = time::timeout(OPEN_TIMEOUT, written).await;
        let written = written.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
        written.and_then(|written| written).map_err(|error| {
            format!("{name} in {} cannot be written: {error}", self.path.display())
        })
    }

    /// Content of another file, if it exists and is not too large.
    pub(super) async fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.path.join(name);
        let read = spawn_blocking("state", move || {
            let mut text = Vec::new();
            let file = File::options().read(true).open(path)?;
            file.take(STATE_FILE_BYTES).read_to_end(&mut text)?;
            Ok::<_, io::Error>(text)
        });
        time::timeout(OPEN_TIMEOUT, read).await.ok()?.ok()?.ok()
    }
}

fn open_now(path: PathBuf) -> Result<(File, Vec<PoolEntry>), (bool, String)> {
    let failed = |error: io::Error| {
        (false, format!("the state directory {} cannot be used: {error}", path.display()))
    };
    fs::create_dir_all(&path).map_err(failed)?;
    let lock = open_lock(&path.join("lock")).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let path = path.display();
            return Err((true, format!("another server uses the state directory {path}")));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let pools = read_now(&path.join("pools.json")).map_err(|why| (false, why))?;
    Ok((lock, pools))
}

/// Opens the lock file; creates it if the directory is writable.
fn open_lock(path: &Path) -> io::Result<File> {
    let made = File::options().create(true).append(true).open(path);
    made.or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            File::options().read(true).open(path).map_err(|_| error)
        }
        _ => Err(error),
    })
}

fn read_now(path: &Path) -> Result<Vec<PoolEntry>, String> {
    let refused = |why: &dyn std::fmt::Display| {
        format!(
            "{} cannot be used: {why}; restore it, or move it away and import the pools again with flagstone pool import",
            path.display()
        )
    };
    let mut text = Vec::new();
    match File::options().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refused(&error)),
        Ok(file) => file.take(STATE_FILE_BYTES + 1).read_to_end(&mut text),
    }
    .map_err(|error| refused(&error))?;
    parse(&text).map_err(|why| refused(&why))
}

fn parse(text: &[u8]) -> Result<Vec<PoolEntry>, String> {
    if text.len() as u64 > STATE_FILE_BYTES {
        return Err("it is too large".to_owned());
    }
    let version = serde_json::from_slice::<serde_json::Value>(text)
        .map_err(|error| error.to_string())?["version"]
        .as_u64();
    if version != Some(VERSION.into()) {
        return Err("it is of another version of Flagstone".to_owned());
    }
    let document: Document = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if document.pools.len() > POOLS_MAX {
        return Err(format!("it has more than {POOLS_MAX} pools"));
    }
    for (index, pool) in document.pools.iter().enumerate() {
        check_entry(pool)?;
        if document.pools[..index].iter().any(|other| other.name == pool.name) {
            return Err(format!("it has pool {} twice", pool.name));
        }
    }
    Ok(document.pools)
}

/// Checks the name and the paths of a pool.
///
/// # Errors
/// The mistake.
pub(crate) fn check_entry(pool: &PoolEntry) -> Result<(), String> {
    if check_volume_name(&pool.name).is_err() || pool.name.len() > POOL_NAME_MAX {
        return Err(format!(
            "a pool name has 1 to {POOL_NAME_MAX} letters, digits, `-`, `_` or `.`, the first a \
             letter or a digit"
        ));
    }
    // A device that replaces another comes in addition.
    let added = usize::from(pool.adding.is_some() && !pool.device_ids.is_empty());
    if !(1..=DEVICES_MAX + added).contains(&pool.devices.len()) {
        return Err(format!("a pool has 1 to {DEVICES_MAX} devices"));
    }
    if let Some(other) = [&pool.adding, &pool.removing]
        .into_iter()
        .flatten()
        .find(|other| !pool.devices.contains(other))
    {
        return Err(format!("{other} is not among the devices of the pool"));
    }
    let devices: Vec<&String> = pool.devices.iter().chain(&pool.log).collect();
    if pool.map_cache_bytes.is_some_and(|bytes| !MAP_CACHE_BYTES.contains(&bytes)) {
        return Err("a map cache has 1 MiB to 64 GiB".to_owned());
    }
    let are_uuids = pool.device_ids.values().all(|id| id.parse::<PoolId>().is_ok());
    if !are_uuids || pool.device_ids.len() > DEVICES_MAX {
        return Err(format!(
            "a pool has 1 to {DEVICES_MAX} identifiers of devices, which are UUIDs"
        ));
    }
    if pool.last_seen.as_ref().is_some_and(|seen| seen.identity().is_none()) {
        return Err("the identifier of a pool is a UUID".to_owned());
    }
    for (index, device) in devices.iter().enumerate() {
        if !Path::new(device).is_absolute() || device.contains('\0') {
            return Err(format!("`{device}` is not the absolute path of a disk or file"));
        }
        if devices[..index].contains(device) {
            return Err(format!("{device} is named twice"));
        }
    }
    Ok(())
}

fn write_now(path: &Path, pools: Vec<PoolEntry>) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(&Document { version: VERSION, pools })?;
    replace(path, "pools.json", &text)
}

fn replace(path: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let new = path.join(format!("{name}.new"));
    let mut file = File::options().create(true).write(true).truncate(true).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(new, path.join(name))?;
    File::options().read(true).open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, devices: &[&str]) -> PoolEntry {
        let devices: Vec<_> = devices.iter().map(|device| (*device).to_owned()).collect();
        PoolEntry::new(name, &devices.into(), None)
    }

    #[test]
    fn pools_survive_and_directory_is_locked() {
        flagstone_runtime::block_on(async {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("a/b");
            let (directory, pools) = StateDirectory::open(&path).await.unwrap();
            assert_eq!(pools, []);
            let mut pools = vec![entry("fast", &["/dev/x", "/dev/y"])];
            directory.write(pools.clone()).await.unwrap();
            pools[0].removing = Some("/dev/y".to_owned());
            pools[0].log = Some("/dev/z".to_owned());
            pools[0].map_cache_bytes = Some(1 << 20);
            let identity = PoolIdentity { id: PoolId::random(), update: 7 };
            pools[0].last_seen = Some(identity.into());
            assert_eq!(pools[0].last_seen.as_ref().unwrap().identity(), Some(identity));
            directory.write(pools.clone()).await.unwrap();
            assert!(matches!(open_now(path.clone()), Err((true, _))));
            drop(directory);
            assert_eq!(StateDirectory::open(&path).await.unwrap().1, pools);
        })
        .unwrap();
    }

    #[test]
    fn read_only_directory_is_read() {
        flagstone_runtime::block_on(async {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().to_owned();
            let pools = vec![entry("fast", &["/dev/x"])];
            write_now(&path, pools.clone()).unwrap();
            // A file that no user can open for writing.
            let read_only = "/sys/kernel/uevent_seqnum";
            assert!(File::options().append(true).open(read_only).is_err());
            std::os::unix::fs::symlink(read_only, path.join("lock")).unwrap();
            assert_eq!(StateDirectory::open(&path).await.unwrap().1, pools);
        })
        .unwrap();
    }

    #[test]
    fn unusable_files_are_refused() {
        for (text, part) in [
            ("", "EOF"),
            ("{\"version\":2,\"pools\":7}", "another version"),
            ("{\"version\":1,\"pools\":[{\"name\":\"a/b\",\"devices\":[\"/x\"]}]}", "pool name"),
            ("{\"version\":1,\"pools\":[{\"name\":\"a\",\"devices\":[\"x\"]}]}", "absolute"),
            ("{\"version\":1,\"pools\":[{\"name\":\"a\",\"devices\":[]}]}", "1 to 16"),
            (
                "{\"version\":1,\"pools\":[{\"name\":\"a\",\"devices\":[\"/x\",\"/x\"]}]}",
                "named twice",
            ),
            (
                "{\"version\":1,\"pools\":[{\"name\":\"a\",\"devices\":[\"/x\"],\"adding\":\"/y\"}]}",
                "not among",
            ),
            (
                "{\"version\":1,\"pools\":[{\"name\":\"a\",\"devices\":[\"/x\"],\
                 \"last_seen\":{\"id\":\"x\",\"update\":1}}]}",
                "UUID",
            ),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        assert!(parse(&vec![b' '; STATE_FILE_BYTES as usize + 1]).is_err());
    }
}
