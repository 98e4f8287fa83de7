//! Replacement of a device of a pair, which may be missing.
//!
//! The state directory records the new device before the order writes to it. After a crash, the
//! device table of the pool decides whether it replaced the former one.

use std::rc::Rc;

use flagstone_pool::DeviceSet;
use flagstone_runtime::spawn;
use flagstone_units::display::size;

use super::orders::{Outcome, answered, check_device, end_of_change};
use super::state_directory::{PoolEntry, check_entry};
use super::{failed, open_devices};
use crate::api::pool_document::{PairDeviceDocument, PairDeviceStateName};
use crate::http::Problem;
use crate::limits::OPEN_TIMEOUT;
use crate::serve::Server;

/// `pool replace-device`
pub(crate) struct ReplaceDevice {
    pub(crate) name: String,
    /// Path of the former device, or its identifier.
    pub(crate) old: String,
    pub(crate) new: String,
    /// True if the data on the new device may be destroyed.
    pub(crate) destroy_data: bool,
    pub(crate) dry_run: bool,
}

/// Order on the devices of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacement {
    /// The device at this position of the device table.
    At(usize),
    /// The new device is in use already, in this state.
    Done(PairDeviceStateName),
}

/// Decides which device is replaced. An order is repeated after a lost answer, and after a crash
/// that left the new device in the table without its superblock.
///
/// # Errors
/// 404 or 409.
fn decide(
    devices: &[PairDeviceDocument],
    name: &str,
    old: &str,
    new: &str,
) -> Result<Replacement, Problem> {
    let is_used =
        |state| matches!(state, PairDeviceStateName::InSync | PairDeviceStateName::Rebuilding);
    let at = |sought: &str| {
        devices.iter().position(|device| device.device == sought || device.id == sought)
    };
    match (at(old), at(new)) {
        (None, Some(new)) | (Some(_), Some(new)) if is_used(devices[new].state) => match at(old) {
            Some(old) if old != new => Err(Problem::conflict(format!(
                "{} is a device of pool {name} already: name another one",
                devices[new].device
            ))),
            _ => Ok(Replacement::Done(devices[new].state)),
        },
        (None, Some(new)) => Ok(Replacement::At(new)),
        (Some(old), None) => Ok(Replacement::At(old)),
        (Some(old), Some(new)) if old == new => Ok(Replacement::At(old)),
        (Some(_), Some(new)) => Err(Problem::conflict(format!(
            "{} belongs to another device of pool {name}, which is {}: replace that one with it, or \
             name another path",
            devices[new].device, devices[new].state
        ))),
        (None, None) => {
            let known = devices.iter().map(|device| device.device.clone());
            Err(Problem::not_found(format!("pool {name} has no device {old}")).accepting(known))
        }
    }
}

impl Server {
    /// Replaces a device of a pair, and rebuilds the new one in the background.
    pub(crate) async fn replace_device(
        self: &Rc<Self>,
        order: ReplaceDevice,
    ) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let ReplaceDevice { name, old, new, destroy_data, dry_run } = &order;
        self.pools.writable()?;
        let set = self.pools.slot(name)?.set;
        let pool = self.pools.open_pool(name)?;
        let status = pool.status();
        if let Some(error) = status.failed {
            return Err(Problem::conflict(format!(
                "pool {name} has failed ({error}): flagstone pool reopen {name} comes first"
            )));
        }
        if status.redundancy.is_none() {
            return Err(Problem::conflict(format!(
                "pool {name} has one copy of everything: flagstone pool grow {name} {new}, then \
                 flagstone pool remove-device {name} {old}"
            )));
        }
        let devices = self.pools.pair_devices(name, &status);
        let next = format!("flagstone pool status {name} --watch");
        let position = match decide(&devices, name, old, new)? {
            Replacement::At(position) => position,
            Replacement::Done(state) => {
                let outcome = format!("{new} is a device of pool {name} already, and {state}");
                return Ok(Outcome::unchanged(outcome).with_next(next));
            }
        };
        let (former, other) = (&devices[position], &devices[position ^ 1]);
        let mut during = DeviceSet { adding: Some(new.clone()), ..set };
        if !during.devices.contains(new) {
            during.devices.push(new.clone());
        }
        self.check_unused(name, std::slice::from_ref(new))?;
        if former.device == *new {
            // The server has it locked since it failed.
            pool.close_missing(&former.id);
        }
        let device_ids = self.pools.entry_of(name).device_ids;
        let entry = PoolEntry { device_ids, ..PoolEntry::new(name, &during, None) };
        check_entry(&entry).map_err(Problem::invalid)?;
        let opened = answered(new, OPEN_TIMEOUT, async {
            check_device(new, *destroy_data).await?;
            let mut opened =
                open_devices(std::slice::from_ref(new)).await.map_err(Problem::conflict)?;
            let named = opened.pop().ok_or_else(|| failed("no device was opened"))?;
            let checked = pool.check_replacement(&former.id, &named, *destroy_data).await;
            checked.map_err(|error| Problem::conflict(error.to_string()))?;
            Ok(named)
        });
        let named = opened.await?;
        let bytes = size(named.device.geometry().size_bytes);
        let until = match former.state {
            PairDeviceStateName::InSync => {
                format!("; until then, only {} has this part of the data", other.device)
            }
            _ => String::new(),
        };
        let outcome = Outcome::changed(format!(
            "{new} of {bytes} replaces {} in pool {name}, and is rebuilt from {}{until}",
            former.device, other.device
        ))
        .losing(destroy_data.then(|| format!("everything on {new}")))
        .with_next(next);
        if *dry_run {
            return Ok(outcome);
        }
        self.pools.set_devices(name, during).await?;
        let (server, own, id) = (self.clone(), name.clone(), former.id.clone());
        let (destroys, device) = (*destroy_data, new.clone());
        let task = spawn(async move {
            let _permit = permit;
            let replaced = pool.replace_device(&id, named, destroys).await;
            // After a failure of the pool, its next opening decides.
            if pool.status().failed.is_none() {
                server.record_pairs(&own, &pool).await;
            }
            match &replaced {
                Ok(()) => tracing::info!("{device} replaces a device of pool {own}"),
                Err(error) => tracing::error!("{device} replaces no device of pool {own}: {error}"),
            }
            replaced.map_err(|error| Problem::conflict(error.to_string()))
        });
        let late = format!(
            "{new} is not in pool {name} yet: a device has not answered; this continues when it does: \
             see flagstone pool status {name}"
        );
        end_of_change(task, late).await?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_replacements_change_nothing_twice() {
        let devices = |second, state| -> Vec<PairDeviceDocument> {
            let device = |path: &str, id: &str, state| PairDeviceDocument {
                device: path.to_owned(),
                id: id.to_owned(),
                state,
                ..PairDeviceDocument::default()
            };
            vec![device("/a", "1", PairDeviceStateName::InSync), device(second, "2", state)]
        };
        let (in_sync, rebuilding, missing) = (
            PairDeviceStateName::InSync,
            PairDeviceStateName::Rebuilding,
            PairDeviceStateName::Missing,
        );
        for (second, state, old, new, expected) in [
            ("/b", in_sync, "/b", "/new", Some(Replacement::At(1))),
            ("/b", missing, "/b", "/new", Some(Replacement::At(1))),
            ("/b", missing, "2", "/new", Some(Replacement::At(1))),
            ("/b", missing, "/b", "/b", Some(Replacement::At(1))),
            ("/b", in_sync, "/b", "/b", Some(Replacement::Done(in_sync))),
            // The answer to the order was lost.
            ("/new", rebuilding, "/b", "/new", Some(Replacement::Done(rebuilding))),
            // A crash came before the superblock of the new device.
            ("/new", missing, "/b", "/new", Some(Replacement::At(1))),
            ("/b", missing, "/b", "/a", None),
            ("/b", missing, "/a", "/b", None),
            ("/b", in_sync, "/c", "/new", None),
        ] {
            let decided = decide(&devices(second, state), "fast", old, new);
            assert_eq!(decided.ok(), expected, "{old} {new} in {second} {state}");
        }
    }
}
