//! Orders on the log device of a pool: its state, its replacement, and giving up a lost tail.

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn;

use super::create::{CreateOptions, check_log_device, wipe, wipe_all};
use super::pool::Pool;
use super::shared::{Shared, State, Update, WriteOut};
use crate::error::{PoolError, VolumeError};
use crate::limits::BLOCK_BYTES;
use crate::log::append::chunk_memory;
use crate::log::device::{LogDevice, tail_limit};
use crate::ondisk::superblock::{LogStart, Superblock};
use crate::storage::{NamedDevice, read_block};

/// State of a log device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDeviceStatus {
    /// Name; `None` while the device is missing, and the log goes to the other devices.
    pub name: Option<String>,
    /// Space for the log, in bytes.
    pub size_bytes: u64,
    /// Size of the tail, which no other device has, in bytes.
    pub tail_bytes: u64,
    /// Limit of the tail, in bytes. Hosts are slowed down near it.
    pub limit_bytes: u64,
}

impl LogDeviceStatus {
    pub(crate) fn of(shared: &Shared, state: &State) -> Option<LogDeviceStatus> {
        let record = state.superblock.log_device?;
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let log = shared.storage.log.as_ref();
        let segment_blocks = shared.storage.layout.segment_blocks();
        Some(LogDeviceStatus {
            name: log.map(|log| log.named.name.clone()),
            size_bytes: bytes(u64::from(record.segments) * u64::from(segment_blocks)),
            tail_bytes: log.map_or(0, |log| bytes(log.head().tail.blocks())),
            limit_bytes: bytes(tail_limit(shared.sizes.tail, record.segments, segment_blocks)),
        })
    }
}

impl Shared {
    /// Waits until the task that writes out the log device has ended.
    pub(crate) async fn write_out_ended(&self) {
        let ended = || (self.state.lock().write_out == WriteOut::Ended).then_some(());
        self.progress.wait_for(ended).await;
    }

    /// True if the log device may have changes that the other devices lack. Also true after a
    /// failed update, because the marks on disk are then unknown.
    pub(crate) fn has_tail(&self) -> bool {
        let state = self.state.lock();
        let is_marked = !state.superblock.tail.is_empty() || state.update == Update::Over;
        is_marked || self.storage.log.as_ref().is_some_and(|log| log.head().tail.has_applied())
    }

    /// Waits until the maintenance task has stopped.
    pub(crate) async fn maintenance_ended(&self) {
        let ended = || (!self.state.lock().maintenance.runs()).then_some(());
        self.progress.wait_for(ended).await;
    }
}

impl Pool {
    /// Accepts that volumes lack changes that were lost with the log device, so that they can be
    /// opened. Returns their names.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn give_up_tail(&self) -> Result<Vec<String>, VolumeError> {
        let volumes = self.volumes().into_iter().filter(|volume| volume.incomplete);
        let names: Vec<String> = volumes.map(|volume| volume.name).collect();
        for name in &names {
            self.accept_incomplete(name).await?;
        }
        Ok(names)
    }

    /// Accepts that a volume lacks changes, so that it can be opened. It is no leg any more.
    /// Nothing happens if it lacks none, or was deleted.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn accept_incomplete(&self, name: &str) -> Result<(), VolumeError> {
        let accepted = self.change(name, |record| {
            if std::mem::take(&mut record.incomplete) {
                record.release_leg();
            }
            Ok(())
        });
        match accepted.await {
            Ok(()) | Err(VolumeError::Unknown { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads, writes and flushes the log device; returns at once without one. Never returns if the
    /// log device hangs, which would also block a close of the pool.
    ///
    /// # Errors
    /// Errors of the log device.
    pub async fn ask_log_device(&self) -> Result<(), IoError> {
        let shared = self.shared();
        let Some(log) = &shared.storage.log else { return Ok(()) };
        read_block(&log.named.device, 0).await?;
        let own = shared.clone();
        // A task of its own writes the chunk: the log could not continue after a dropped write.
        let written = spawn(async move {
            let memory = chunk_memory(0).await;
            own.append(Vec::new(), memory).await
        });
        written.await.unwrap_or(Err(IoError::Unreachable))?;
        log.flush().await
    }

    /// Closes the pool, and replaces its log device, or removes it (`None`). The former log device
    /// is then unused. Reopen the pool afterwards, also after an error.
    ///
    /// # Errors
    /// [`PoolError`] for a device that is too small, part of the pool, or contains data that may
    /// not be overwritten, and errors of devices. The pool then has the former log device or the
    /// new one, with an empty tail.
    pub async fn set_log_device(
        &self,
        log_device: Option<NamedDevice>,
        overwrite: bool,
    ) -> Result<(), PoolError> {
        let shared = self.shared();
        if shared.storage.pairs.is_some() {
            return Err(PoolError::Options(
                "a pool with redundancy has no log device, which would be a single copy of the \
                 newest changes",
            ));
        }
        let segment_blocks = shared.storage.layout.segment_blocks();
        let options =
            CreateOptions { segment_blocks, overwrite, ..CreateOptions::new(shared.name.clone()) };
        let record = match &log_device {
            Some(named) => Some(check_log_device(named, &options).await?),
            None => None,
        };
        let failure = |error: IoError| PoolError::Device { device: shared.name.clone(), error };
        self.close().await.map_err(failure)?;
        if let (Some(named), Some(record)) = (&log_device, &record) {
            wipe_all(std::slice::from_ref(named), std::slice::from_ref(record)).await?;
        }
        // An update that adds or removes a device may still be in progress.
        let _turn = shared.update_turn().await.map_err(failure)?;
        let current = {
            let mut state = shared.state.lock();
            state.update = Update::Over;
            state.superblock.clone()
        };
        if !current.tail.is_empty() {
            return Err(failure(IoError::WriteFault));
        }
        let superblock = Superblock {
            update: current.update + 1,
            start: LogStart { slot: 0, ..current.start },
            log_device: record,
            reached: 0,
            ..current
        };
        let log = log_device.zip(record).map(|(named, record)| {
            LogDevice::new(named, record.segments, segment_blocks, shared.sizes.tail).into()
        });
        let storage = shared
            .storage
            .with_log(&superblock, log)
            .map_err(|reason| PoolError::Superblock { device: shared.name.clone(), reason })?;
        storage.write_superblock(&superblock).await.map(drop).map_err(failure)?;
        // The change is durable: an opening ignores the former log device from now on.
        if let Some(former) = &shared.storage.log
            && let Err(error) = wipe(&former.named).await
        {
            let device = &former.named.name;
            tracing::warn!(pool = shared.name, device, %error, "former log device was not erased");
        }
        Ok(())
    }
}
