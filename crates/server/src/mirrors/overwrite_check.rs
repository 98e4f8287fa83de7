//! Overwrite check: refuses to create a replica or log over other data.

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_host::guard::contents;
use flagstone_mirror::intent_log::log_device::may_become_log;
use flagstone_mirror::limits::LOG_PROBE_BYTES;
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_runtime::{Buf, buf};

use super::create::{failed, refuse};
use super::{CreateError, MirroredVolume, connect_log};
use crate::limits::ZEROES_CHUNK_BYTES;
use flagstone_config::device_spec::DeviceSpec;

impl MirroredVolume {
    pub(super) async fn check_device_empty(&self) -> Result<(), CreateError> {
        let found = flagstone_stack::find_data(&self.leg).await.map_err(failed)?;
        let Some(what) = found.found() else { return Ok(()) };
        refuse(format!(
            "the device of volume `{}` is not empty, and would be overwritten: {what}; if it is not needed, \
             use --destroy-data",
            self.name
        ))
    }

    /// Refuses a device that does not read as zeroes up to `usable_bytes`. Reads all that is
    /// allocated.
    pub(super) async fn check_zeroes(&self, usable_bytes: u64) -> Result<(), CreateError> {
        match first_nonzero(&self.leg, usable_bytes).await.map_err(failed)? {
            None => Ok(()),
            Some(at) => refuse(format!(
                "the device of volume `{}` is not empty: byte {at} is not zero. Leave --empty out, and \
                 everything is copied; or zero the device on both nodes (blkdiscard --zeroout) if \
                 nothing on it is needed",
                self.name
            )),
        }
    }

    /// Refuses a log over other data: a mistyped path may name any disk. Creates no file.
    pub(super) async fn check_log(&self, shape: &ReplicaGeometry) -> Result<(), CreateError> {
        let Some(spec) = &self.log_spec() else { return Ok(()) };
        if matches!(spec, DeviceSpec::Path(path) if !path.exists()) {
            return Ok(());
        }
        // A remote device stays connected; a local one is closed, as its file may be removed.
        if spec.is_remote() && self.connected_log.borrow().is_none() {
            *self.connected_log.borrow_mut() = connect_log(&self.config).await.map_err(failed)?;
        }
        let reached = self.connected_log.borrow().clone();
        let log = match reached {
            Some(log) => Some(log),
            None => self.open_log(shape).await?,
        };
        let Some(log) = log else { return Ok(()) };
        let found = data_under_log(&log).await.map_err(failed)?;
        drop(log);
        let Some(what) = found else { return Ok(()) };
        refuse(format!(
            "{}, or give `intent_log` another device and start this server again",
            would_overwrite(spec, &what)
        ))
    }

    /// Advice about the log device of an existing replica that holds other data.
    pub(super) fn log_device_in_use(&self, what: &str) -> String {
        let (name, Some(spec)) = (&self.name, &self.log_spec()) else {
            return "the device of the write-intent log holds something else".to_owned();
        };
        let wipe = wipe_hint(spec);
        format!(
            "`intent_log` of volume `{name}` names {spec}, and what is there is no write-intent log: {what}. \
             What is taken is the log of this replica, or a zeroed device. If that is the wrong device, \
             correct the configuration; if what is there is not needed, {wipe}: a new log is created, and \
             everything compared or copied"
        )
    }
}

/// Data of the log device of an existing replica behind a first MiB of zeroes, where the replica
/// would create a log. It does not judge the rest of the device.
pub(super) async fn data_behind_zeroes(log: &SharedDevice) -> Result<Option<String>, IoError> {
    // The replica judges unreadable parts.
    let Ok((begin, _)) = beginning(log).await else { return Ok(None) };
    match begin.iter().all(|byte| *byte == 0) {
        true => data_under_log(log).await,
        false => Ok(None),
    }
}

/// Data that a log on this device would overwrite; `None` for an empty device, and for a device
/// that has a log. The log's own check reads the first MiB only, which is zero on many disks with
/// data.
pub(super) async fn data_under_log(device: &SharedDevice) -> Result<Option<String>, IoError> {
    let (begin, size_bytes) = beginning(device).await?;
    match begin.iter().any(|byte| *byte != 0) {
        true if may_become_log(&begin) => Ok(None),
        true => Ok(Some(contents(&begin, size_bytes).unwrap_or_default())),
        false => flagstone_stack::find_data(device).await.map(flagstone_stack::DataSearch::found),
    }
}

/// Advice about a device that is to receive a log and holds `what`.
pub(super) fn would_overwrite(spec: &DeviceSpec, what: &str) -> String {
    let wipe = wipe_hint(spec);
    format!(
        "the write-intent log on {spec} would overwrite what is there, which is no log: {what}; if it is \
         not needed, {wipe}"
    )
}

fn wipe_hint(spec: &DeviceSpec) -> &'static str {
    match spec {
        DeviceSpec::Path(path) if path.is_file() => "remove it",
        _ => "write zeroes over all of it (blkdiscard --zeroout)",
    }
}

/// The offset of the first byte below `end` that is not zero. Holes are not read.
async fn first_nonzero(device: &SharedDevice, end: u64) -> Result<Option<u64>, IoError> {
    let mut at = 0;
    while at < end {
        let extents = device.allocated(at, end - at).await?;
        let Some(extent) = extents.first().filter(|extent| extent.len > 0) else {
            return Err(IoError::OutOfRange);
        };
        let len = extent.len.min(end - at);
        if extent.is_hole {
            at += len;
            continue;
        }
        let part = len.min(ZEROES_CHUNK_BYTES);
        let found = device.read(at, buf::acquire_more(part as usize).await).await?;
        if let Some(byte) = position_of_nonzero(&found) {
            return Ok(Some(at + byte as u64));
        }
        at += part;
    }
    Ok(None)
}

fn position_of_nonzero(data: &[u8]) -> Option<usize> {
    let is_zero = |page: &[u8]| page.iter().fold(0, |all, byte| all | byte) == 0;
    let page = data.chunks(4096).position(|page| !is_zero(page))? * 4096;
    data[page..].iter().position(|byte| *byte != 0).map(|at| page + at)
}

/// The start of a device, and its size in bytes.
async fn beginning(device: &SharedDevice) -> Result<(Buf, u64), IoError> {
    let size_bytes = device.geometry().size_bytes;
    Ok((flagstone_stack::beginning(device, LOG_PROBE_BYTES).await?, size_bytes))
}
