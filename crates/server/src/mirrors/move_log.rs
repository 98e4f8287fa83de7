//! Moving the write-intent log of a mirrored volume: `flagstone mirror move-log`.
//!
//! The configuration file is the operator's and is not changed. A start with the old place is
//! refused with advice, and nothing is copied: the superblock says where the log is.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{ReopenableDevice, SharedDevice};
use flagstone_mirror::Mirror;
use flagstone_mirror::manage::replica::ReplicaError;
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, log_layout};
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_runtime::{spawn, time};

use super::create::{failed, refuse};
use super::open::{create_log_file, open_log_spec};
use super::overwrite_check::{data_under_log, would_overwrite};
use super::{CreateError, MirroredVolume};
use crate::limits::OPEN_TIMEOUT;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_units::exact_size;

/// The log's place on the data device, in messages and in the superblock.
const ON_DATA_DEVICE: &str = "the data device";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogMove {
    /// Where the log was.
    pub from: String,
    /// Where it is now.
    pub to: String,
    /// It was there before.
    pub already: bool,
    /// Change to make in the configuration file.
    pub configure: String,
}

fn place_name(spec: Option<&DeviceSpec>) -> String {
    spec.map_or_else(|| ON_DATA_DEVICE.to_owned(), DeviceSpec::to_string)
}

impl MirroredVolume {
    /// Moves the log to `to`, or onto the data device if it is `None`, while hosts are served.
    pub(crate) async fn move_log(
        self: &Rc<Self>,
        to: Option<DeviceSpec>,
        dry_run: bool,
    ) -> Result<LogMove, CreateError> {
        // Without `create_lock`: a new device that hangs must not delay the reopening of the
        // replica, which makes the move fail, or finds the log at the new place.
        let name = &self.name;
        let Some(mirror) = self.mirror().filter(|mirror| !mirror.is_closed()) else {
            return refuse(format!(
                "the replica of `{name}` is not open on this node: see `flagstone mirror status {name}`"
            ));
        };
        if self.growing.get() || self.growing_to.get().is_some() {
            return refuse(format!("`{name}` is growing: repeat the command after that"));
        }
        let from = self.log_spec();
        let moved = LogMove {
            from: place_name(from.as_ref()),
            to: place_name(to.as_ref()),
            already: from == to,
            configure: self.line_to_change(&place_name(to.as_ref())),
        };
        if moved.already {
            return Ok(moved);
        }
        if self.moving_log.get() || self.log_moves.borrow().are_running() {
            return refuse(format!("`{name}`: {}", ReplicaError::LogBusy));
        }
        if let Some(spec) = to.as_ref().filter(|spec| spec.is_in_memory()) {
            return refuse(format!("a log on {spec} would be lost with this process"));
        }
        self.moving_log.set(true);
        *self.log_moves.borrow_mut() = mirror.log_moves();
        let this = self.clone();
        // A separate task, because the move continues without its caller.
        let ended = spawn(async move {
            let ended = match &to {
                None => this.move_to(&mirror, None, None, dry_run).await,
                Some(spec) => this.move_to_device(&mirror, spec, dry_run).await,
            };
            this.moving_log.set(false);
            ended
        });
        ended.await.unwrap_or_else(|_| Err(failed("the server is stopping")))?;
        Ok(moved)
    }

    async fn move_to_device(
        &self,
        mirror: &Mirror,
        spec: &DeviceSpec,
        dry_run: bool,
    ) -> Result<(), CreateError> {
        let shape = mirror.replica_geometry();
        let missing = matches!(spec, DeviceSpec::Path(path) if !path.exists());
        if missing && dry_run {
            return Ok(());
        }
        let created = create_log_file(spec, &shape).map_err(failed)?;
        let moved = async {
            let device = open_log_spec(spec).await.map_err(failed)?;
            let log = ReopenableDevice::new(device);
            enlarge_file(spec, &log, &shape, dry_run)?;
            self.move_to(mirror, Some(spec), Some(log), dry_run).await
        };
        let moved = moved.await;
        if moved.is_err()
            && created
            && let DeviceSpec::Path(path) = spec
        {
            // Nothing else knows of it.
            let _ = std::fs::remove_file(path);
        }
        moved
    }

    async fn move_to(
        &self,
        mirror: &Mirror,
        spec: Option<&DeviceSpec>,
        log: Option<Arc<ReopenableDevice>>,
        dry_run: bool,
    ) -> Result<(), CreateError> {
        let device = log.clone().map(|log| -> SharedDevice { log });
        if let (Some(spec), Some(device)) = (spec, &device) {
            check_destination(spec, device).await?;
        }
        let moved = match dry_run {
            true => mirror.check_log_destination(device.as_ref()).await,
            false => mirror.move_log(device.clone(), &place_name(spec)).await,
        };
        if let Err(error) = moved {
            return refuse_move(&self.name, spec, device.as_ref(), error).await;
        }
        if !dry_run {
            tracing::info!(
                volume = self.name,
                to = place_name(spec),
                "the write-intent log was moved"
            );
            *self.log_spec.borrow_mut() = spec.cloned();
            *self.reopenable_log.borrow_mut() =
                log.as_ref().map(Arc::downgrade).unwrap_or_default();
            *self.log.borrow_mut() = device;
            if let Some(bytes) = self.log_room_bytes(&mirror.replica_geometry()) {
                mirror.set_log_room(bytes);
            }
        }
        Ok(())
    }

    /// The log's device, if it has one of its own.
    pub(crate) fn log_device_name(&self) -> Option<String> {
        Some(self.log_spec()?.to_string())
    }

    /// The change in the configuration file for a log at `place`.
    fn line_to_change(&self, place: &str) -> String {
        let name = &self.name;
        match place {
            ON_DATA_DEVICE => format!("remove `intent_log` from `mirror` of [volume.{name}]"),
            place => format!("set `intent_log = {place:?}` in `mirror` of [volume.{name}]"),
        }
    }

    /// True if opening would create an empty log although the log was moved to another place: the
    /// old file was deleted or truncated, or the old log was in memory. An existing device without
    /// any contents, or an empty file, is consent.
    pub(super) fn would_create_log_at_old_place(&self, superblock: &Superblock) -> bool {
        let place = &superblock.log_place;
        self.log_spec().is_some_and(|spec| {
            let needed = log_layout(&superblock.geometry).total_bytes;
            let remains = |path: &Path| match path.metadata() {
                Ok(file) => file.is_file() && (1..needed).contains(&file.len()),
                Err(_) => true,
            };
            let gone = matches!(&spec, DeviceSpec::Path(path) if remains(path));
            (gone || spec.is_in_memory()) && !place.is_empty() && spec.to_string() != *place
        })
    }

    /// Advice when the configuration names an old place of the log.
    pub(super) fn log_was_moved(&self, place: &str) -> String {
        let (name, configured) = (&self.name, place_name(self.log_spec().as_ref()));
        let change = self.line_to_change(place);
        format!(
            "the write-intent log of volume `{name}` was moved from {configured} to {place}, and the \
             configuration still names the old place: {change}. If the log there is lost, give \
             `intent_log` an empty device, or an empty file that exists: everything is then compared or \
             copied"
        )
    }
}

/// Refuses a device with data, by the survey of all commands that overwrite something.
async fn check_destination(spec: &DeviceSpec, device: &SharedDevice) -> Result<(), CreateError> {
    match time::timeout(OPEN_TIMEOUT, data_under_log(device)).await {
        Ok(Ok(None)) => Ok(()),
        Ok(Ok(Some(what))) => refuse(would_overwrite(spec, &what)),
        Ok(Err(error)) => Err(failed(format!("{spec} cannot be read: {error}"))),
        Err(_) => Err(failed(format!("{spec} does not answer"))),
    }
}

/// Enlarges a file that is too small for the log.
fn enlarge_file(
    spec: &DeviceSpec,
    log: &Arc<ReopenableDevice>,
    shape: &ReplicaGeometry,
    dry_run: bool,
) -> Result<(), CreateError> {
    use flagstone_blockdev::BlockDevice as _;
    let (has, needed) = (log.geometry().size_bytes, log_layout(shape).total_bytes);
    match spec {
        _ if has >= needed => Ok(()),
        // A file with other contents is not touched: the check of its contents follows.
        DeviceSpec::Path(path) if path.is_file() && has == 0 && !dry_run => {
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
            file.set_len(needed).map_err(failed)?;
            log.refresh();
            Ok(())
        }
        _ => refuse(format!(
            "{spec} has {}, and the write-intent log needs {}",
            exact_size(has),
            exact_size(needed)
        )),
    }
}

async fn refuse_move(
    name: &str,
    spec: Option<&DeviceSpec>,
    device: Option<&SharedDevice>,
    error: ReplicaError,
) -> Result<(), CreateError> {
    let place = place_name(spec);
    match (error, spec, device) {
        (ReplicaError::Io(error), ..) => Err(failed(format!(
            "the log of `{name}` was not moved to {place}, and stays where it was: {error}"
        ))),
        (ReplicaError::LogDeviceHangs, ..) => Err(failed(format!(
            "{error}: the log of `{name}` stays where it was, and {place} may be used again when its \
             writes have ended"
        ))),
        // It has been written to since the survey.
        (ReplicaError::LogDeviceInUse, Some(spec), Some(device)) => {
            check_destination(spec, device).await?;
            refuse(format!("the log of `{name}` cannot be moved to {place}: {error}"))
        }
        _ => refuse(format!("the log of `{name}` cannot be moved to {place}: {error}")),
    }
}
