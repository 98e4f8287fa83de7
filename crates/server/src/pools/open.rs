//! Opening of one pool: its devices, and its log device, which may be late, elsewhere or hung.

use std::path::Path;

use flagstone_pool::{DeviceSet, Expected, LostTail, NamedDevice, OpenOptions, Pool, PoolError};
use flagstone_runtime::{buf, spawn, time};

use super::disk_search::{Silent, Sought};
use super::orders::check_device;
use super::{ClosedCause, OpenPoolError, Pools, open_devices};
use crate::connections::DRAIN_PERIOD;
use crate::limits::OPEN_PATIENCE;

/// Opens a log device and reads from it, so that one that hangs is found before a pool waits for it.
async fn ask(path: &str) -> Result<NamedDevice, String> {
    let mut opened = open_devices(&[path.to_owned()]).await?;
    let named = opened.pop().ok_or("it was not opened")?;
    let block = named.device.geometry().block_bytes as usize;
    let read = named.device.read(0, buf::alloc(block).await).await;
    read.map(|_| named).map_err(|error| format!("{path}: {error}"))
}

/// Whether two paths lead to the same file.
fn is_same(one: &str, other: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize().ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// What an operator agrees to at an opening.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Consent {
    /// Writes that only the log device had are given up.
    pub(super) lost_tail: bool,
    /// The devices may be a copy, older than the pool was, or another pool of its name.
    pub(super) devices: bool,
}

/// The order that opens what is there.
fn import_line(name: &str, paths: &[String], log: Option<&String>) -> String {
    let log = log.map_or(String::new(), |log| format!(" --log-device {log}"));
    format!("flagstone pool import {name} {}{log}", paths.join(" "))
}

impl Pools {
    /// Opens a log device, if it answers. One that does not is asked by one task, however often it is
    /// opened.
    async fn open_log(&self, path: &str) -> Result<NamedDevice, String> {
        let opened = async {
            while !self.asked.borrow_mut().insert(path.to_owned()) {
                time::sleep(DRAIN_PERIOD).await;
            }
            let (asked, path) = (self.asked.clone(), path.to_owned());
            let task = spawn(async move {
                let opened = ask(&path).await;
                asked.borrow_mut().remove(&path);
                opened
            });
            task.await.unwrap_or(Err("it was not opened".to_owned()))
        };
        let opened = time::timeout(OPEN_PATIENCE, opened).await;
        opened.unwrap_or_else(|_| Err(format!("{path} does not answer")))
    }

    /// Opens the pool `name`, whose devices these are.
    pub(super) async fn open(
        &self,
        name: &str,
        paths: &[String],
        log: Option<&String>,
        consent: Consent,
    ) -> Result<Pool, OpenPoolError> {
        let devices = open_devices(paths).await?;
        let identity = match consent.devices {
            true => None,
            false => self.registry.identity(name),
        };
        if !consent.devices {
            self.check_copies(name, &devices, paths).await?;
        }
        let was_open = self.registry.identity(name).is_some();
        let expected = Expected { name: Some(name.to_owned()), identity };
        // The pool decides what the absence of its log device means.
        let (mut log_device, mut why) = (None, None);
        if let Some(path) = log {
            match self.open_log(path).await {
                Ok(named) => log_device = Some(named),
                Err(error) => why = Some(error),
            }
        }
        let open = async |log, tail| {
            let options = OpenOptions { log, tail, expected: expected.clone() };
            Pool::open_with(devices.clone(), &options).await
        };
        let tail = if consent.lost_tail { LostTail::GiveUp } else { LostTail::Keep };
        let opened = match open(log_device.clone(), tail).await {
            Err(PoolError::LogDeviceMissing { id, update, is_blank, .. }) => {
                // With an empty tail, the pool needs no log device.
                let without = async |reason: String| {
                    let opened = open(None, LostTail::Keep).await;
                    let pool = opened.map_err(|_| OpenPoolError::from(reason.clone()))?;
                    tracing::warn!("pool {name} opened without its log device: {reason}");
                    Ok(pool)
                };
                let found = match self.search.find_log(Sought { id, update }).await {
                    Ok(found) => found,
                    Err(Silent(disks)) => {
                        return without(format!(
                            "its log device was not found, and may be a disk that was not read ({disks})"
                        ))
                        .await;
                    }
                };
                if let Some(found) = found {
                    // If it is the one that was named, the pool has judged it.
                    let is_named = log.is_some_and(|path| is_same(path, &found));
                    match (is_named, why.clone()) {
                        (true, None) => {}
                        (true, Some(why)) => return Err(why.into()),
                        (false, _) => {
                            let devices = paths.join(" ");
                            let reason = format!(
                                "its log device has another name now: flagstone pool import {name} \
                                 {devices} --log-device {found}"
                            );
                            return without(reason).await;
                        }
                    }
                }
                if is_blank && let Some(path) = log {
                    // Its beginning is blank, but it may be in use by something else. The guard needs it
                    // closed.
                    log_device = None;
                    match check_device(path, false).await {
                        Ok(()) => log_device = self.open_log(path).await.ok(),
                        Err(problem) => why = Some(problem.detail),
                    }
                }
                open(log_device, LostTail::Withhold).await
            }
            opened => opened,
        };
        let pool = opened.map_err(|error| OpenPoolError {
            cause: match &error {
                PoolError::NotAPool { .. } if !was_open => ClosedCause::Absent,
                PoolError::Full { .. } => ClosedCause::Full { devices: paths.to_vec() },
                _ => ClosedCause::Refused,
            },
            reason: match (&error, &why) {
                (PoolError::LogDeviceMissing { .. }, Some(why)) => format!("{error}; {why}"),
                (PoolError::NotAPool { .. }, _) if was_open => format!("{error}, but was one"),
                (PoolError::OldCopy { .. }, _) => format!(
                    "{error}, or continue without later writes: {}",
                    import_line(name, paths, log)
                ),
                (PoolError::Unexpected { .. }, _) if identity.is_some() => format!(
                    "{error}, which was open last: attach its devices, or take what is there: {}",
                    import_line(name, paths, log)
                ),
                (PoolError::Full { .. }, _) => {
                    format!("{error}; flagstone pool grow {name} DEVICE adds some")
                }
                _ => error.to_string(),
            },
        })?;
        if let Some(why) = why {
            tracing::warn!("pool {name} opened without its log device: {why}");
        }
        Ok(pool)
    }

    /// Adds a device to a pool that is too full to be opened.
    ///
    /// # Errors
    /// The pool has the device or not.
    pub(super) async fn grow_closed(
        &self,
        name: &str,
        paths: &[String],
        new: NamedDevice,
        overwrite: bool,
    ) -> Result<(), String> {
        let devices = open_devices(paths).await?;
        let log = match self.log_path(name) {
            Some(path) => self.open_log(&path).await.ok(),
            None => None,
        };
        let identity = self.registry.identity(name);
        let expected = Expected { name: Some(name.to_owned()), identity };
        let options = OpenOptions { log, tail: LostTail::Keep, expected };
        let grown = Pool::grow_closed(&devices, &options, new, overwrite).await;
        grown.map_err(|error| error.to_string())
    }

    /// Checks that no other disk is a device of the pool, too, unless it is an older copy.
    async fn check_copies(
        &self,
        name: &str,
        devices: &[NamedDevice],
        paths: &[String],
    ) -> Result<(), OpenPoolError> {
        // What is wrong with the devices is found when they are opened.
        let Ok(pool) = Pool::examine(devices).await else { return Ok(()) };
        let update = pool.identity.update;
        let found = self.search.find_copy(pool, paths).await;
        let unread = found.as_ref().err().map(|Silent(disks)| disks.as_str());
        let is_news = self.attempts.note(name, unread, time::now());
        match found {
            Ok(None) => Ok(()),
            Ok(Some(copy)) => Err(format!(
                "{} is a copy of a device of the pool, and not older than {} (update {}, and {update}): \
                 detach the older one, or name the current devices: flagstone pool import {name} DEVICE…",
                copy.path,
                paths.join(", "),
                copy.update
            )
            .into()),
            Err(Silent(disks)) => {
                if is_news {
                    tracing::warn!("disks that were not read may be copies of pool {name}: {disks}");
                }
                Ok(())
            }
        }
    }

    /// Opens the pool `name` on the devices that the state directory has, with or without devices that
    /// an order was adding or removing.
    pub(super) async fn open_recorded(
        &self,
        name: &str,
        set: &DeviceSet<String>,
        consent: Consent,
    ) -> Result<Pool, OpenPoolError> {
        let log = self.log_path(name);
        let mut first: Option<OpenPoolError> = None;
        for paths in set.alternatives() {
            match self.open(name, &paths, log.as_ref(), consent).await {
                Ok(pool) => return Ok(pool),
                Err(error) if matches!(error.cause, ClosedCause::Full { .. }) => {
                    first = Some(error)
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(|| "it has no devices".to_owned().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::disk_search::DiskSearch;
    use flagstone_host::root::Root;
    use flagstone_pool::{CreateOptions, VolumeOptions};

    #[test]
    fn drained_pool_opens_when_its_log_device_is_elsewhere() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        for directory in ["sys/class/block", "dev"] {
            std::fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        std::fs::write(file("sys/class/block/sdz"), "").unwrap();
        // Names were shuffled: `sdz` is the log device, and a disk that was never used has its path.
        let paths = ["disk", "dev/sdz", "blank"].map(file);
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
        }
        flagstone_runtime::block_on(async move {
            let [disk, log, blank] = paths;
            let mut pools = Pools::read(None, 1).await;
            pools.search = DiskSearch::new(Root::new(scratch.path()));
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let devices = open_devices(std::slice::from_ref(&disk)).await.unwrap();
            let log_device = open_devices(std::slice::from_ref(&log)).await.unwrap().pop();
            let pool = Pool::create_with_log(devices, log_device, &options).await.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let devices = [disk];
            let open = async |lost_tail| {
                let consent = Consent { lost_tail, ..Consent::default() };
                pools.open("fast", &devices, Some(&blank), consent).await
            };
            let pool = open(false).await.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, None, "the blank disk is not used");
            pool.close().await.unwrap();
            drop(pool);
            let pool = pools.open("fast", &devices, Some(&log), Consent::default()).await;
            let pool = pool.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, Some(log));
            // The creation of a volume is in the tail.
            let size = VolumeOptions { size_bytes: 1 << 20, ..VolumeOptions::default() };
            drop(pool.create_volume("db", &size).await.unwrap());
            drop(pool);
            let refused = open(false).await.map(drop).map_err(|error| error.reason);
            assert!(refused.unwrap_err().contains("another name now"));
            let pool = open(true).await.map_err(|error| error.reason).unwrap();
            assert_eq!(pool.status().log.unwrap().name, None, "the blank disk is not used");
        })
        .unwrap();
    }
}
