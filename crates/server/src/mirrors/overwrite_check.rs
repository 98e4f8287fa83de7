//! Overwrite check: refuses to create a replica or log over other data.

use std::io::Cursor;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_host::inspect::signatures;
use flagstone_mirror::intent_log::log_device::may_become_log;
use flagstone_mirror::limits::LOG_PROBE_BYTES;
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_runtime::buf;

use super::create::{failed, refuse};
use super::{CreateError, MirroredVolume, connect_log};
use flagstone_config::device_spec::DeviceSpec;

impl MirroredVolume {
    pub(super) async fn check_device_empty(&self) -> Result<(), CreateError> {
        let begin = beginning(&self.leg).await.map_err(failed)?;
        if is_zero(&begin) {
            return Ok(());
        }
        refuse(format!(
            "the device of volume `{}` is not empty, and would be overwritten: check its contents; if they \
             are not needed, use --destroy-data",
            self.name
        ))
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
        let begin = beginning(&log).await.map_err(failed)?;
        let size_bytes = log.geometry().size_bytes;
        drop(log);
        match may_become_log(&begin) {
            true => Ok(()),
            false => refuse(format!(
                "{}, or give `intent_log` another device and start this server again",
                would_overwrite(spec, &begin, size_bytes)
            )),
        }
    }

    /// Advice about the log device of an existing replica that holds other data.
    pub(super) async fn log_device_in_use(&self, log: &SharedDevice) -> String {
        let (name, Some(spec)) = (&self.name, &self.log_spec()) else {
            return "the device of the write-intent log holds something else".to_owned();
        };
        let size_bytes = log.geometry().size_bytes;
        let what = match beginning(log).await {
            Ok(begin) => describe_contents(&begin, size_bytes),
            Err(error) => format!("some of it cannot be read ({error})"),
        };
        let wipe = wipe_hint(spec);
        format!(
            "`intent_log` of volume `{name}` names {spec}, and what is there is no write-intent log: {what}. \
             What is taken is the log of this replica, or a device whose first MiB is zero. If that is the \
             wrong device, correct the configuration; if what is there is not needed, {wipe}: a new log is \
             created, and everything compared or copied"
        )
    }
}

/// Advice about a device that is to receive a log and holds something else.
fn would_overwrite(spec: &DeviceSpec, begin: &[u8], size_bytes: u64) -> String {
    let (what, wipe) = (describe_contents(begin, size_bytes), wipe_hint(spec));
    format!(
        "the write-intent log on {spec} would overwrite what is there, which is no log: {what}; if it is \
         not needed, {wipe}"
    )
}

/// The same for a device to which a log is to be moved.
pub(super) async fn destination_in_use(spec: &DeviceSpec, device: &SharedDevice) -> String {
    match beginning(device).await {
        Ok(begin) => would_overwrite(spec, &begin, device.geometry().size_bytes),
        Err(error) => format!("{spec} cannot be read: {error}"),
    }
}

/// How to make a device acceptable for a new log.
fn wipe_hint(spec: &DeviceSpec) -> &'static str {
    match spec {
        DeviceSpec::Path(path) if path.is_file() => "remove it",
        _ => "write zeroes over its first MiB",
    }
}

fn describe_contents(beginning: &[u8], size_bytes: u64) -> String {
    // Reading from memory cannot fail, except at its end.
    let found = signatures(&mut Cursor::new(beginning), size_bytes).unwrap_or_default();
    let found: Vec<_> =
        found.iter().map(|one| format!("{} at byte {}", one.kind, one.offset_bytes)).collect();
    if !found.is_empty() {
        return format!("it has the signature of {}", found.join(", and of "));
    }
    let first = beginning.iter().position(|byte| *byte != 0).unwrap_or_default();
    format!("check its contents; it is not zero from byte {first} on")
}

async fn beginning(device: &SharedDevice) -> Result<Vec<u8>, IoError> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let len = geometry.size_bytes.min(LOG_PROBE_BYTES) / block * block;
    let memory = buf::acquire(len as usize).await.map_err(|_| IoError::NoMemory)?;
    Ok(device.read(0, memory).await?.to_vec())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
