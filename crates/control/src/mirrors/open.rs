//! Opening what a mirror stands on: its replica, and the device of its write-intent log; and giving
//! it up again, so that another can open them.
//!
//! A log that is lost is answered by the replica, which takes all for different. One that cannot be
//! reached is not lost: nobody knows yet what it says, and the mirror waits for it, as its volume
//! does for a device that cannot be reached (`waiting`).

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice, Swap};
use flagstone_mirror::RoleError;
use flagstone_mirror::format::FormatError;
use flagstone_mirror::format::superblock::Superblock;
use flagstone_mirror::replica::{Replica, ReplicaError};
use flagstone_mirror::shape::{Shape, log_layout};

use super::Mirrored;
use crate::config;
use crate::device_spec::DeviceSpec;
use crate::remote::Failure;
use crate::stack::{OpenError, OpenOptions, layered, open_device};
use crate::units::format_size;

impl From<ReplicaError> for Failure {
    fn from(error: ReplicaError) -> Failure {
        let hint = match error {
            ReplicaError::Superblock(FormatError::Version(_)) => {
                ": it was made by a later version of Flagstone; start that one"
            }
            ReplicaError::Blocks(_) => ": give it a device with smaller blocks",
            ReplicaError::DataTooSmall | ReplicaError::LogTooSmall => ": make it larger",
            ReplicaError::OthersLog { .. } => {
                ": give each replica its own log; if the one there is not needed by any, delete its \
                 file, or overwrite the first MiB of its device with zeroes: all is compared or \
                 copied then"
            }
            _ => "",
        };
        let may_pass = matches!(&error, ReplicaError::Io(error) if passes(*error));
        Failure { problem: format!("{error}{hint}"), may_pass }
    }
}

impl From<RoleError> for Failure {
    fn from(error: RoleError) -> Failure {
        let may_pass = matches!(&error, RoleError::Io(error) if passes(*error));
        Failure { problem: error.to_string(), may_pass }
    }
}

/// True of what a device on another machine that is not reached fails with.
fn passes(error: flagstone_blockdev::IoError) -> bool {
    error == flagstone_blockdev::IoError::Unreachable
}

/// The device of a mirror's log, when that is on another machine.
pub(crate) fn remote_log(mirror: &config::Mirror) -> Option<&DeviceSpec> {
    mirror.bitmap.as_ref().filter(|spec| spec.is_remote())
}

/// Connects to it, before anything of the mirror is begun.
///
/// # Errors
/// As [`open_device`].
pub(crate) async fn reach_log(mirror: &config::Mirror) -> Result<Option<SharedDevice>, OpenError> {
    let Some(spec) = remote_log(mirror) else { return Ok(None) };
    let opened = open_device(spec, &OpenOptions::default()).await;
    let about = |error: OpenError| OpenError { device: log_on(spec), ..error };
    opened.map(Some).map_err(about)
}

pub(super) fn log_on(spec: &DeviceSpec) -> String {
    format!("the write-intent log on {spec}")
}

impl Mirrored {
    /// Opens the device of the log, if it is one of its own. A file that is not there is made, as
    /// large as a volume of this shape needs: a log that was lost is answered by the mirror.
    pub(super) async fn open_log(&self, shape: &Shape) -> Result<Option<SharedDevice>, Failure> {
        let Some(spec) = &self.config.bitmap else { return Ok(None) };
        let Some(device) = self.open_log_device(shape).await? else { return Ok(None) };
        let (has, needed) = (device.geometry().size_bytes, log_layout(shape).total_bytes);
        if has < needed {
            return Err(Failure::from(format!(
                "{} has {}: {} are needed, make it larger",
                log_on(spec),
                format_size(has),
                format_size(needed)
            )));
        }
        Ok(Some(device))
    }

    /// The same, whatever its size.
    async fn open_log_device(&self, shape: &Shape) -> Result<Option<SharedDevice>, Failure> {
        let Some(spec) = &self.config.bitmap else { return Ok(None) };
        let device = match self.open_log_again(spec) {
            Some(device) => device,
            None => self.open_log_anew(spec, shape).await?,
        };
        device.refresh();
        Ok(Some(device))
    }

    /// The log of the replica that is on the leg; what the operator has to do where it cannot be used.
    async fn open_own_log(
        &self,
        superblock: &Superblock,
    ) -> Result<Result<Option<SharedDevice>, String>, Failure> {
        // One that is too small on another machine is waited for.
        if remote_log(&self.config).is_some() {
            return Ok(Ok(self.open_log(&superblock.shape).await?));
        }
        if let Some(why) = self.renew_log_file(superblock)? {
            return Ok(Err(why));
        }
        let Some(device) = self.open_log_device(&superblock.shape).await? else {
            return Ok(Ok(None));
        };
        if let Some(why) = self.small_log_device(&device, superblock) {
            return Ok(Err(why));
        }
        Ok(Ok(Some(device)))
    }

    /// The device of a log here that the mirror before this one had: it cannot be opened twice, and
    /// memory that is let go is lost. What is on another machine is connected to anew.
    fn open_log_again(&self, spec: &DeviceSpec) -> Option<SharedDevice> {
        let held = self.log.borrow().clone();
        held.filter(|_| !spec.is_remote())
    }

    async fn open_log_anew(
        &self,
        spec: &DeviceSpec,
        shape: &Shape,
    ) -> Result<SharedDevice, Failure> {
        if let DeviceSpec::Path(path) = spec
            && !path.exists()
        {
            let create_bytes = Some(log_layout(shape).total_bytes);
            let options = FileOptions { create_bytes, ..FileOptions::default() };
            drop(FileDevice::open(path, &options).map_err(|error| error.to_string())?);
            tracing::info!("made {} for the write-intent log", path.display());
        }
        let reached = self.reached_log.take();
        let device = match reached {
            Some(device) => device,
            None => open_device(spec, &OpenOptions::default()).await.map_err(|error| Failure {
                problem: format!("{}: {}", log_on(spec), error.problem),
                may_pass: error.may_pass,
            })?,
        };
        let mut layers = self.config.bitmap_layers.iter().rev();
        let device = layers.try_fold(device, layered);
        let device = device.map_err(|error| format!("{spec}: {error}"))?;
        if spec.is_in_memory() {
            return Ok(device);
        }
        let swap = Swap::new(device);
        *self.log_swap.borrow_mut() = Arc::downgrade(&swap);
        Ok(swap)
    }

    /// The replica that is on the leg; `None` when there is none, or none that may be used.
    pub(super) async fn open(&self) -> Result<Option<Replica>, Failure> {
        let superblock = match self.look().await? {
            Ok(superblock) => superblock,
            Err(missing) => {
                self.without_log.set(false);
                *self.missing.borrow_mut() = missing.map(Rc::from);
                return Ok(None);
            }
        };
        let log = match self.open_own_log(&superblock).await? {
            Ok(log) => log,
            Err(why) => {
                self.without_log.set(true);
                *self.missing.borrow_mut() = Some(Rc::from(why));
                return Ok(None);
            }
        };
        let opened = Replica::open(self.leg.clone(), log.clone()).await;
        if let (Err(ReplicaError::NoPlaceForLog), Some(log)) = (&opened, &log) {
            self.without_log.set(true);
            let why = self.no_place_for_log(log).await;
            *self.missing.borrow_mut() = Some(Rc::from(why));
            return Ok(None);
        }
        let replica = opened?;
        *self.log.borrow_mut() = log;
        self.keep_name(&replica).await?;
        if let Some(lost) = replica.lost() {
            tracing::warn!(
                "the log of volume `{}` was lost ({lost}): all is to be compared",
                self.name
            );
        }
        Ok(Some(replica))
    }

    /// Ends all that was begun, as a crash would: another may open the replica when this returns.
    pub(crate) async fn give_up(&self) {
        self.watch.borrow_mut().take();
        self.give_mirror_up().await;
    }

    /// Ends the mirror, if there is one. Whoever tries to open the replica goes on.
    pub(super) async fn give_mirror_up(&self) {
        let Some(mirror) = self.mirror() else { return };
        let target = self.target.borrow().clone();
        if let Some(target) = target {
            // It is gone already where the mirror came to nothing before it was served.
            let _ = target.remove_subsystem(&self.replica_nqn);
        }
        mirror.give_up().await;
    }
}
