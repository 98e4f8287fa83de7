//! Growth of a pool with two copies by a pair of devices.
//!
//! The state directory records both paths before the order writes to a device. An opening leaves
//! out devices that did not become part of the pool.

use std::rc::Rc;

use flagstone_pool::{DeviceSet, NamedDevice, Pool};
use flagstone_runtime::spawn;
use flagstone_runtime::sync::Permit;
use flagstone_units::display::size;

use super::device_orders::{GrowPool, Growing, Growth};
use super::orders::{Outcome, answered, check_device, end_of_change};
use super::state_directory::{PoolEntry, check_entry};
use super::{ClosedCause, PoolSlot, PoolState, failed, open_devices};
use crate::http::Problem;
use crate::limits::OPEN_TIMEOUT;
use crate::serve::Server;

/// Pair to add.
struct OpenedPair {
    devices: [NamedDevice; 2],
    /// True for those whose data may be destroyed.
    destroys: [bool; 2],
}

impl Server {
    /// Adds a pair to an open pool, or to one that is too full to be opened.
    pub(super) async fn grow_pool_by_pair(
        self: &Rc<Self>,
        order: &GrowPool,
        devices: [String; 2],
        permit: Permit,
    ) -> Result<Outcome, Problem> {
        let GrowPool { name, destroy_data, dry_run, .. } = order;
        self.pools.writable()?;
        let PoolSlot { set, state, .. } = self.pools.slot(name)?;
        let (growing, paths) = match state {
            PoolState::Closed { cause: ClosedCause::Full { devices, log }, .. } => {
                self.pools.end_opening(name, *dry_run);
                (Growing::Full(log), devices)
            }
            _ => {
                let pool = self.pools.open_pool(name)?;
                if let Some(error) = pool.status().failed {
                    return Err(Problem::conflict(format!(
                        "pool {name} has failed ({error}): flagstone pool reopen {name} comes first"
                    )));
                }
                (Growing::Open(pool), set.devices)
            }
        };
        let names = devices.join(" and ");
        if devices.iter().all(|device| paths.contains(device)) {
            return match growing {
                Growing::Open(_) => {
                    let outcome = format!("{names} are devices of pool {name} already");
                    Ok(Outcome::unchanged(outcome))
                }
                // An earlier order may have recorded them, and ended before they were part of it.
                Growing::Full(_) => Err(Problem::conflict(format!(
                    "{names} are recorded for pool {name}, which is still too full to be opened: if they \
                     did not become part of it, repeat this after flagstone pool import {name} with its \
                     former devices; otherwise name another pair"
                ))),
            };
        }
        if let Some(own) = devices.iter().find(|device| paths.contains(device)) {
            let outcome = format!("{own} is a device of pool {name} already: name another one");
            return Err(Problem::conflict(outcome));
        }
        let before = DeviceSet::from(paths);
        let mut during = before.clone();
        during.devices.extend(devices.clone());
        self.check_unused(name, &devices)?;
        let entry = PoolEntry::new(name, &during, self.pools.log_path(name));
        check_entry(&entry).map_err(Problem::invalid)?;
        let opened = answered(&names, OPEN_TIMEOUT, async {
            for device in &devices {
                check_device(device, destroy_data.contains(device)).await?;
            }
            let opened = open_devices(&devices).await.map_err(Problem::conflict)?;
            let devices: [NamedDevice; 2] =
                opened.try_into().map_err(|_| failed("two devices were not opened"))?;
            let destroys = devices.each_ref().map(|named| destroy_data.contains(&named.name));
            let pair = OpenedPair { devices, destroys };
            if let Growing::Open(pool) = &growing {
                let checked = pool.check_pair(&pair.devices, pair.destroys).await;
                checked.map_err(|error| Problem::conflict(error.to_string()))?;
            }
            Ok(pair)
        });
        let pair = opened.await?;
        let sizes = pair.devices.iter().map(|named| named.device.geometry().size_bytes);
        let bytes = size(sizes.min().unwrap_or_default());
        let loss = (!destroy_data.is_empty())
            .then(|| format!("everything on {}", destroy_data.join(" and ")));
        let mut outcome =
            Outcome::changed(format!("pool {name} grows by {bytes}, on the pair {names}"))
                .losing(loss)
                .with_next(format!("flagstone pool status {name}"));
        if *dry_run {
            return Ok(outcome);
        }
        self.grow_by_pair(name, growing, Growth { before, during }, pair, permit).await?;
        let status = self.pools.open_pool(name)?.status();
        outcome.outcome += &format!("; {} are for volumes", size(status.capacity_bytes));
        tracing::info!("pool {name} was grown by {names}");
        Ok(outcome)
    }

    /// Records the new devices, checks that they answer, and adds them, as for one device.
    async fn grow_by_pair(
        self: &Rc<Self>,
        name: &str,
        growing: Growing,
        Growth { before, during }: Growth,
        OpenedPair { devices: new, destroys }: OpenedPair,
        permit: Permit,
    ) -> Result<(), Problem> {
        let names = format!("{} and {}", new[0].name, new[1].name);
        let paths = before.devices.clone();
        self.pools.set_devices(name, during.clone()).await?;
        let prepared = async {
            let closed = match &growing {
                Growing::Open(_) => None,
                Growing::Full(log) => {
                    let own = paths.join(", ");
                    let closed = self.pools.closed_pool(name, &paths, *log);
                    let closed = async { closed.await.map_err(Problem::conflict) };
                    Some(answered(&own, OPEN_TIMEOUT, closed).await?)
                }
            };
            answered(&names, OPEN_TIMEOUT, async {
                let prepared = match (&growing, &closed) {
                    (Growing::Open(pool), _) => pool.prepare_pair(&new, destroys).await,
                    (Growing::Full(_), Some((devices, options))) => {
                        Pool::prepare_closed_pair(devices, options, &new, destroys).await
                    }
                    (Growing::Full(_), None) => unreachable!("it was opened before"),
                };
                prepared.map_err(|error| Problem::conflict(error.to_string()))
            })
            .await
        };
        if let Err(problem) = prepared.await {
            self.pools.set_devices(name, before).await?;
            return Err(problem);
        }
        let (server, own) = (self.clone(), name.to_owned());
        match growing {
            Growing::Open(pool) => {
                let task = spawn(async move {
                    let _permit = permit;
                    let grown = pool.grow_by_pair(new, destroys).await;
                    // After a failure of the pool, its next opening decides.
                    if pool.status().failed.is_none() {
                        server.record_pairs(&own, &pool).await;
                    }
                    grown.map_err(|error| Problem::conflict(error.to_string()))
                });
                let late = format!(
                    "{names} are not in pool {name} yet: a device has not answered; this continues \
                     when it does: see flagstone pool status {name}"
                );
                end_of_change(task, late).await
            }
            Growing::Full(log) => {
                let work = async move || {
                    let closed = server.pools.closed_pool(&own, &paths, log).await;
                    let (devices, options) = closed.map_err(Problem::conflict)?;
                    let grown = Pool::grow_closed_by_pair(&devices, &options, new, destroys).await;
                    grown.map_err(|error| Problem::conflict(error.to_string()))
                };
                let what = "it is being grown, and its devices have not answered";
                self.reopen(name, during, what, permit, log.consent(), work).await
            }
        }
    }
}
