//! What making a replica would overwrite is looked at first.

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_mirror::format::is_log;
use flagstone_mirror::shape::Shape;
use flagstone_runtime::buf;

use super::make::failed;
use super::{CreateError, Mirrored, reach_log};
use crate::device_spec::DeviceSpec;

/// How much of a device is looked at for signs of data, at its beginning.
pub(super) const LOOK_BYTES: u64 = 1 << 20;

impl Mirrored {
    /// Refuses to make a target of a device that holds something.
    pub(super) async fn check_leg(&self) -> Result<(), CreateError> {
        let begin = beginning(&self.leg).await.map_err(failed)?;
        if is_zero(&begin) {
            return Ok(());
        }
        Err(CreateError::Refused(format!(
            "the device of volume `{}` is not empty, and all that is on it would be overwritten: look \
             what it is; if it is not needed, say so with --destroy-data",
            self.name
        )))
    }

    /// Refuses to make a log of a device that holds something else: a name that was mistyped may be
    /// that of any disk. A file that is not there yet is not made by this.
    pub(super) async fn check_log(&self, shape: &Shape) -> Result<(), CreateError> {
        let Some(spec) = &self.config.bitmap else { return Ok(()) };
        if matches!(spec, DeviceSpec::Path(path) if !path.exists()) {
            return Ok(());
        }
        // One on another machine stays connected to until it is used. One here is let go again: a
        // file may be removed before the replica is made.
        if spec.is_remote() && self.reached_log.borrow().is_none() {
            let reached = reach_log(&self.config).await.map_err(|error| failed(error.problem))?;
            *self.reached_log.borrow_mut() = reached;
        }
        let reached = self.reached_log.borrow().clone();
        let log = match reached {
            Some(log) => Some(log),
            None => self.open_log(shape).await.map_err(|failure| failed(failure.problem))?,
        };
        let Some(log) = log else { return Ok(()) };
        let begin = beginning(&log).await.map_err(failed)?;
        drop(log);
        if is_zero(&begin) || is_log(&begin) {
            return Ok(());
        }
        let wipe = match spec {
            DeviceSpec::Path(path) if path.is_file() => "remove it",
            _ => "write zeroes over its first MiB",
        };
        Err(CreateError::Refused(format!(
            "the write-intent log on {spec} would overwrite what is there, which is no log: look what \
             it is; if it is not needed, {wipe}, or give `bitmap` another device and start this server \
             again"
        )))
    }
}

async fn beginning(device: &SharedDevice) -> Result<Vec<u8>, IoError> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let len = geometry.size_bytes.min(LOOK_BYTES) / block * block;
    let memory = buf::acquire(len as usize).await.map_err(|_| IoError::NoMemory)?;
    Ok(device.read(0, memory).await?.to_vec())
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
