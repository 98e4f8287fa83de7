//! What making a replica, or its log anew, would overwrite is looked at first.

use std::io::Cursor;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_host::inspect::signatures;
use flagstone_mirror::limits::LOG_LOOK_BYTES;
use flagstone_mirror::shape::Shape;
use flagstone_mirror::vacant::may_become_log;
use flagstone_runtime::buf;

use super::make::failed;
use super::{CreateError, Mirrored, reach_log};
use crate::device_spec::DeviceSpec;

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
        let size_bytes = log.geometry().size_bytes;
        drop(log);
        if may_become_log(&begin) {
            return Ok(());
        }
        let (what, wipe) = (what_is_there(&begin, size_bytes), how_to_wipe(spec));
        Err(CreateError::Refused(format!(
            "the write-intent log on {spec} would overwrite what is there, which is no log: {what}; if it \
             is not needed, {wipe}, or give `bitmap` another device and start this server again"
        )))
    }

    /// What the operator has to do where the device of the log of a replica that was made before holds
    /// something else.
    pub(super) async fn no_place_for_log(&self, log: &SharedDevice) -> String {
        let (name, Some(spec)) = (&self.name, &self.config.bitmap) else {
            return "the device of the write-intent log holds something else".to_owned();
        };
        let size_bytes = log.geometry().size_bytes;
        let what = match beginning(log).await {
            Ok(begin) => what_is_there(&begin, size_bytes),
            Err(error) => format!("some of it cannot be read ({error})"),
        };
        let wipe = how_to_wipe(spec);
        format!(
            "`bitmap` of volume `{name}` names {spec}, and what is there is no write-intent log: {what}. \
             What is taken is the log of this replica, or a device whose first MiB is zero. If that is the \
             wrong device, mend the configuration; if what is there is not needed, {wipe}: the log is made \
             anew then, and everything compared or copied"
        )
    }
}

/// How a log's device is made one that a log may be made on.
fn how_to_wipe(spec: &DeviceSpec) -> &'static str {
    match spec {
        DeviceSpec::Path(path) if path.is_file() => "remove it",
        _ => "write zeroes over its first MiB",
    }
}

/// What a device of so many bytes that begins like this holds, as far as it can be told.
fn what_is_there(beginning: &[u8], size_bytes: u64) -> String {
    // Memory is read, and no more of it than there is.
    let found = signatures(&mut Cursor::new(beginning), size_bytes).unwrap_or_default();
    let found: Vec<_> =
        found.iter().map(|one| format!("{} at byte {}", one.kind, one.offset_bytes)).collect();
    if !found.is_empty() {
        return format!("it has the signature of {}", found.join(", and of "));
    }
    let first = beginning.iter().position(|byte| *byte != 0).unwrap_or_default();
    format!("look what it is; it is not zero from byte {first} on")
}

async fn beginning(device: &SharedDevice) -> Result<Vec<u8>, IoError> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let len = geometry.size_bytes.min(LOG_LOOK_BYTES) / block * block;
    let memory = buf::acquire(len as usize).await.map_err(|_| IoError::NoMemory)?;
    Ok(device.read(0, memory).await?.to_vec())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
