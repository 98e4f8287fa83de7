//! Opening and closing of a replica and its write-intent log.
//!
//! After the loss of the log, the replica treats all blocks as out of sync. An unreachable log is
//! not lost: its contents are unknown, so the mirror waits for it like a pending volume for its
//! device.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{FileDevice, FileOptions, IoError, ReopenableDevice, SharedDevice};
use flagstone_mirror::RoleError;
use flagstone_mirror::manage::replica::{Replica, ReplicaError};
use flagstone_mirror::ondisk::FormatError;
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, log_layout};
use flagstone_mirror::ondisk::superblock::Superblock;

use super::MirroredVolume;
use super::overwrite_check::{data_behind_zeroes, data_under_log};
use flagstone_config as config;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_stack::{OpenError, OpenOptions, layered, open_device};

/// Failure of a mirrored volume to open or to take a role.
pub(super) struct MirrorFailure {
    /// The reason, with advice.
    pub(super) problem: String,
    /// The failure is transient: a retry may succeed.
    pub(super) may_pass: bool,
}

impl From<String> for MirrorFailure {
    fn from(problem: String) -> MirrorFailure {
        MirrorFailure { problem, may_pass: false }
    }
}

impl From<OpenError> for MirrorFailure {
    fn from(error: OpenError) -> MirrorFailure {
        MirrorFailure { problem: error.to_string(), may_pass: error.may_pass }
    }
}

impl From<ReplicaError> for MirrorFailure {
    fn from(error: ReplicaError) -> MirrorFailure {
        let hint = match error {
            ReplicaError::Superblock(FormatError::Version(_)) => {
                ": it was created by a later version of Flagstone; start that version"
            }
            ReplicaError::BlockSize(_) => ": give it a device with smaller blocks",
            ReplicaError::DataTooSmall | ReplicaError::LogTooSmall => ": make it larger",
            ReplicaError::ForeignLog { .. } => {
                ": give each replica its own log; if no replica needs the log there, delete its file, \
                 or overwrite all of its device with zeroes: everything is then compared or copied"
            }
            _ => "",
        };
        let may_pass = matches!(error, ReplicaError::Io(IoError::Unreachable));
        MirrorFailure { problem: format!("{error}{hint}"), may_pass }
    }
}

impl From<RoleError> for MirrorFailure {
    fn from(error: RoleError) -> MirrorFailure {
        let may_pass = matches!(error, RoleError::Io(IoError::Unreachable));
        MirrorFailure { problem: error.to_string(), may_pass }
    }
}

/// The device of a mirror's log, if it is remote.
pub(crate) fn remote_log(mirror: &config::MirrorConfig) -> Option<&DeviceSpec> {
    mirror.intent_log.as_ref().filter(|spec| spec.is_remote())
}

/// Connects to a remote log device in advance.
pub(crate) async fn connect_log(
    mirror: &config::MirrorConfig,
) -> Result<Option<SharedDevice>, OpenError> {
    let Some(spec) = remote_log(mirror) else { return Ok(None) };
    Ok(Some(open_log_spec(spec).await?))
}

pub(super) async fn open_log_spec(spec: &DeviceSpec) -> Result<SharedDevice, OpenError> {
    let opened = open_device(spec, &OpenOptions::default()).await;
    opened.map_err(|error| OpenError { device: log_on(spec), ..error })
}

pub(super) fn log_on(spec: &DeviceSpec) -> String {
    format!("the write-intent log on {spec}")
}

/// Creates a missing file for a log. Returns true if it was missing.
pub(super) fn create_log_file(spec: &DeviceSpec, shape: &ReplicaGeometry) -> Result<bool, String> {
    let DeviceSpec::Path(path) = spec else { return Ok(false) };
    if path.exists() {
        return Ok(false);
    }
    let create_bytes = Some(log_layout(shape).total_bytes);
    let options = FileOptions { create_bytes, ..FileOptions::default() };
    drop(FileDevice::open(path, &options).map_err(|error| error.to_string())?);
    tracing::info!("created {} for the write-intent log", path.display());
    Ok(true)
}

impl MirroredVolume {
    /// Opens the separate device of the log, if any, creating a missing file for this geometry.
    pub(super) async fn open_log(
        &self,
        shape: &ReplicaGeometry,
    ) -> Result<Option<SharedDevice>, MirrorFailure> {
        self.open_log_device(shape).await?.map_err(Into::into)
    }

    /// The same; the inner error is advice about a device that is too small.
    async fn open_log_device(
        &self,
        shape: &ReplicaGeometry,
    ) -> Result<Result<Option<SharedDevice>, String>, MirrorFailure> {
        let Some(spec) = &self.log_spec() else { return Ok(Ok(None)) };
        // A local log device cannot be opened twice, and one in memory would be lost.
        let held = self.log.borrow().clone().filter(|_| !spec.is_remote());
        let device = match held {
            Some(device) => device,
            None => self.open_log_anew(spec, shape).await?,
        };
        device.refresh();
        let undersized = self.undersized_log_device(&device, shape);
        Ok(undersized.map_or(Ok(Some(device)), Err))
    }

    /// Opens the log of the local replica; the inner error is advice about an unusable log.
    async fn open_own_log(
        &self,
        superblock: &Superblock,
    ) -> Result<Result<Option<SharedDevice>, String>, MirrorFailure> {
        // An undersized remote log is retried.
        if self.log_spec().is_some_and(|spec| spec.is_remote()) {
            return Ok(Ok(self.open_log(&superblock.geometry).await?));
        }
        if self.would_create_log_at_old_place(superblock) {
            return Ok(Err(self.log_was_moved(&superblock.log_place)));
        }
        if let Some(why) = self.recreate_log_file(superblock)? {
            return Ok(Err(why));
        }
        self.open_log_device(&superblock.geometry).await
    }

    pub(super) fn log_spec(&self) -> Option<DeviceSpec> {
        self.log_spec.borrow().clone()
    }

    async fn open_log_anew(
        &self,
        spec: &DeviceSpec,
        shape: &ReplicaGeometry,
    ) -> Result<SharedDevice, MirrorFailure> {
        create_log_file(spec, shape)?;
        let reached = self.connected_log.take();
        let device = match reached {
            Some(device) => device,
            None => open_log_spec(spec).await?,
        };
        let mut layers = self.config.intent_log_layers.iter().rev();
        let device = layers.try_fold(device, layered);
        let device = device.map_err(|error| format!("{spec}: {error}"))?;
        if spec.is_in_memory() {
            return Ok(device);
        }
        let log = ReopenableDevice::new(device);
        *self.reopenable_log.borrow_mut() = Arc::downgrade(&log);
        Ok(log)
    }

    /// Opens the local replica; `None` without a usable one.
    pub(super) async fn open(&self) -> Result<Option<Replica>, MirrorFailure> {
        let superblock = match self.look().await? {
            Ok(superblock) => superblock,
            Err(missing) => return Ok(self.not_opened(false, missing)),
        };
        let log = match self.open_own_log(&superblock).await? {
            Ok(log) => log,
            Err(why) => return Ok(self.not_opened(true, Some(why))),
        };
        if let Some(log) = &log {
            let found = data_behind_zeroes(log).await.map_err(ReplicaError::Io)?;
            if let Some(what) = found {
                return Ok(self.not_opened(true, Some(self.log_device_in_use(&what))));
            }
        }
        let opened = Replica::open(self.leg.clone(), log.clone()).await;
        if let Err(ReplicaError::LogMoved) = opened {
            let why = self.log_was_moved(&superblock.log_place);
            return Ok(self.not_opened(true, Some(why)));
        }
        if let (Err(ReplicaError::LogDeviceInUse), Some(log)) = (&opened, &log) {
            let what = match data_under_log(log).await {
                Ok(found) => found.unwrap_or_default(),
                Err(error) => format!("some of it cannot be read ({error})"),
            };
            return Ok(self.not_opened(true, Some(self.log_device_in_use(&what))));
        }
        let replica = opened?;
        *self.log.borrow_mut() = log;
        self.without_log.set(false);
        self.missing.borrow_mut().take();
        self.keep_name(&replica).await?;
        self.forget_settled_members(&replica).await?;
        if let Some(lost) = replica.log_lost() {
            tracing::warn!(
                "the log of volume `{}` was lost ({lost}): everything is compared",
                self.name
            );
        }
        Ok(Some(replica))
    }

    fn not_opened(&self, without_log: bool, why: Option<String>) -> Option<Replica> {
        self.without_log.set(without_log);
        *self.missing.borrow_mut() = why.map(Rc::from);
        None
    }

    /// Abandons the volume as a crash would: the replica may be opened again when this returns.
    pub(crate) async fn abandon(&self) {
        self.watch.borrow_mut().take();
        self.abandon_mirror().await;
    }

    /// Abandons the mirror, if any. Attempts to reopen the replica continue.
    pub(super) async fn abandon_mirror(&self) {
        let Some(mirror) = self.mirror() else { return };
        if let Ok(target) = self.target() {
            // The subsystem is missing if the mirror was never served.
            let _ = target.remove_subsystem(&self.replica_nqn);
        }
        mirror.abandon().await;
    }
}
