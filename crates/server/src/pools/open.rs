//! Opening of one pool: its devices, and its log device, which may be late, elsewhere or hung.

use std::path::Path;

use flagstone_pool::{DeviceSet, LostTail, NamedDevice, OpenOptions, Pool, PoolError};
use flagstone_runtime::{buf, spawn, time};

use super::log_search::Sought;
use super::orders::check_device;
use super::{OpenPoolError, Pools, open_devices};
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

/// The pool, if it has this name.
async fn check_name(name: &str, paths: &[String], pool: Pool) -> Result<Pool, OpenPoolError> {
    let found = pool.status().name;
    if found == name {
        return Ok(pool);
    }
    let _ = pool.close().await;
    Err(format!("{} hold pool {found}, not {name}", paths.join(", ")).into())
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
        give_up_tail: bool,
    ) -> Result<Pool, OpenPoolError> {
        let devices = open_devices(paths).await?;
        // The pool decides what the absence of its log device means.
        let (mut log_device, mut why) = (None, None);
        if let Some(path) = log {
            match self.open_log(path).await {
                Ok(named) => log_device = Some(named),
                Err(error) => why = Some(error),
            }
        }
        let open =
            async |log, tail| Pool::open_with(devices.clone(), &OpenOptions { log, tail }).await;
        let tail = if give_up_tail { LostTail::GiveUp } else { LostTail::Keep };
        let opened = match open(log_device.clone(), tail).await {
            Err(PoolError::LogDeviceMissing { id, update, is_blank, .. }) => {
                let found = match self.search.find(Sought { id, update }).await {
                    Ok(found) => found,
                    Err(silence) => {
                        // With an empty tail, the pool needs no log device.
                        let opened = open(None, LostTail::Keep).await;
                        let pool = opened.map_err(|_| OpenPoolError::from(silence.clone()))?;
                        tracing::warn!("pool {name} opened without its log device: {silence}");
                        return check_name(name, paths, pool).await;
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
                            return Err(format!(
                                "its log device has another name now: flagstone pool import {name} \
                                 {devices} --log-device {found}"
                            )
                            .into());
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
            is_absent: matches!(error, PoolError::NotAPool { .. }),
            reason: match (&error, &why) {
                (PoolError::LogDeviceMissing { .. }, Some(why)) => format!("{error}; {why}"),
                _ => error.to_string(),
            },
        })?;
        if let Some(why) = why {
            tracing::warn!("pool {name} opened without its log device: {why}");
        }
        check_name(name, paths, pool).await
    }

    /// Opens the pool `name` on the devices that the state directory has, with or without devices that
    /// an order was adding or removing.
    pub(super) async fn open_recorded(
        &self,
        name: &str,
        set: &DeviceSet<String>,
        log: Option<&String>,
        give_up_tail: bool,
    ) -> Result<Pool, OpenPoolError> {
        let mut first = None;
        for paths in set.alternatives() {
            match self.open(name, &paths, log, give_up_tail).await {
                Ok(pool) => return Ok(pool),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or_else(|| "it has no devices".to_owned().into()))
    }
}
