//! Orders on the devices of an open pool: add a device, and remove one.
//!
//! A removal runs in the background, and continues after a restart of the server. The state
//! directory records a device before an order writes to it: see [`DeviceSet`].

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_pool::limits::DEVICES_MAX;
use flagstone_pool::manage::devices::{DeviceOrderError, Evacuation, release};
use flagstone_pool::{DeviceSet, NamedDevice, Pool};
use flagstone_runtime::sync::Permit;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};
use flagstone_units::display::size;

use super::open::LogDecision;
use super::orders::{Outcome, answered, check_device, end_of_change};
use super::state_directory::{PoolEntry, check_entry};
use super::{ClosedCause, PoolSlot, PoolState, failed, open_devices};
use crate::api::pool_document::{RemovalDocument, RemovalStateName};
use crate::http::Problem;
use crate::limits::OPEN_TIMEOUT;
use crate::serve::Server;

/// `pool grow`
pub(crate) struct GrowPool {
    pub(crate) name: String,
    /// One device, or the two of a new pair.
    pub(crate) devices: Vec<String>,
    /// Those whose data may be destroyed.
    pub(crate) destroy_data: Vec<String>,
    pub(crate) dry_run: bool,
}

/// State of a pool that grows.
pub(super) enum Growing {
    Open(Pool),
    /// Closed, and too full to be opened.
    Full(LogDecision),
}

/// Devices that a pool can still get, below which answers say so.
const PLACES_FEW: usize = 2;

/// Recorded devices of a pool, before and during its growth.
pub(super) struct Growth {
    pub(super) before: DeviceSet<String>,
    /// Recorded until the device is added.
    pub(super) during: DeviceSet<String>,
}

/// `pool remove-device`
pub(crate) struct RemoveDevice {
    pub(crate) name: String,
    pub(crate) device: String,
    /// True to cancel the removal.
    pub(crate) cancel: bool,
    pub(crate) dry_run: bool,
}

/// A removal, running or failed.
pub(crate) struct Removal {
    document: Rc<RefCell<RemovalDocument>>,
    /// `None` if it could not continue.
    _task: Option<AbortOnDrop<()>>,
}

impl Removal {
    pub(crate) fn document(&self) -> RemovalDocument {
        self.document.borrow().clone()
    }
}

/// Moves segments in steps. Pauses as long as each step took, so that hosts get most of the device.
async fn work(evacuation: &Evacuation, document: &RefCell<RemovalDocument>) -> Result<(), String> {
    loop {
        let begun = time::now();
        let done = evacuation.step().await.map_err(|error| error.to_string())?;
        let left = evacuation.left_bytes();
        {
            let mut document = document.borrow_mut();
            document.left_bytes = left;
            document.total_bytes = document.total_bytes.max(left);
        }
        if done {
            return Ok(());
        }
        time::sleep(begun.elapsed()).await;
    }
}

/// Part of an answer about a pool that can get few more devices.
fn places_caveat(pool: &Pool) -> String {
    match pool.places_left() {
        left @ 0..=PLACES_FEW => format!(
            "; the pool can get {left} devices after that, because removed ones count among its \
             {DEVICES_MAX}; then a device takes the place of a removed one, and uses at most its size"
        ),
        _ => String::new(),
    }
}

impl Server {
    /// Adds a device, or a pair, to an open pool, or to one that is too full to be opened.
    pub(crate) async fn grow_pool(self: &Rc<Self>, order: GrowPool) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let GrowPool { name, devices, destroy_data, dry_run } = &order;
        let device = match &devices[..] {
            [device] => device,
            // On the heap: this future is part of large ones.
            [one, other] => {
                let devices = [one.clone(), other.clone()];
                return Box::pin(self.grow_pool_by_pair(&order, devices, permit)).await;
            }
            _ => return Err(Problem::invalid("`devices` has one device, or two of a new pair")),
        };
        let destroy_data = destroy_data.contains(device);
        let PoolSlot { set, state, .. } = self.pools.slot(name)?;
        let (growing, before) = match state {
            PoolState::Closed { cause: ClosedCause::Full { devices, log }, .. } => {
                self.pools.end_opening(name, *dry_run);
                let removing = set.removing.filter(|device| devices.contains(device));
                (Growing::Full(log), DeviceSet { removing, ..devices.into() })
            }
            _ => {
                let pool = self.pools.open_pool(name)?;
                let status = pool.status();
                if let Some(error) = status.failed {
                    return Err(Problem::conflict(format!(
                        "pool {name} has failed ({error}): flagstone pool reopen {name} comes first"
                    )));
                }
                if status.redundancy.is_some() {
                    let refused = DeviceOrderError::Redundant { pool: name.clone() };
                    return Err(Problem::conflict(refused.to_string()));
                }
                // Drop the device of an earlier, unfinished order.
                let mut before = DeviceSet { adding: None, ..set };
                before.devices.retain(|device| status.devices.contains(device));
                before.removing = before.removing.filter(|device| status.devices.contains(device));
                (Growing::Open(pool), before)
            }
        };
        if before.devices.contains(device) {
            return Ok(Outcome::unchanged(format!("{device} is a device of pool {name} already")));
        }
        let mut during = DeviceSet { adding: Some(device.clone()), ..before.clone() };
        during.devices.push(device.clone());
        self.check_unused(name, std::slice::from_ref(device))?;
        check_entry(&PoolEntry::new(name, &during, self.pools.log_path(name)))
            .map_err(Problem::invalid)?;
        let opened = answered(device, OPEN_TIMEOUT, async {
            check_device(device, destroy_data).await?;
            open_devices(std::slice::from_ref(device)).await.map_err(Problem::conflict)
        });
        let named = opened.await?.pop().ok_or_else(|| failed("no device was opened"))?;
        let bytes = size(named.device.geometry().size_bytes);
        let loss = destroy_data.then(|| format!("everything on {device}"));
        let mut outcome = Outcome::changed(format!("pool {name} grows by {device} of {bytes}"))
            .losing(loss)
            .with_next(format!("flagstone pool status {name}"));
        if *dry_run {
            return Ok(outcome);
        }
        let sets = Growth { before: before.clone(), during };
        // On the heap: this future is part of large ones.
        Box::pin(self.grow(name, growing, sets, (named, destroy_data), permit)).await?;
        let status = self.pools.open_pool(name)?.status();
        outcome.outcome += &format!("; {} are for volumes", size(status.capacity_bytes));
        outcome.outcome += &places_caveat(&self.pools.open_pool(name)?);
        tracing::info!("pool {name} was grown by {device}");
        Ok(outcome)
    }

    /// Records the new device, checks that it answers, and adds it. Until it has answered, it
    /// blocks nothing in the pool; after that, the task that adds it holds the lock of the pool.
    async fn grow(
        self: &Rc<Self>,
        name: &str,
        growing: Growing,
        Growth { before, during }: Growth,
        (named, destroys): (NamedDevice, bool),
        permit: Permit,
    ) -> Result<(), Problem> {
        let (device, paths) = (named.name.clone(), before.devices.clone());
        self.pools.set_devices(name, during.clone()).await?;
        let prepared = async {
            let closed = match &growing {
                Growing::Open(_) => None,
                Growing::Full(log) => {
                    let own = paths.join(", ");
                    let closed = self.pools.closed_pool(name, &paths, *log);
                    let closed = async { closed.await.map_err(Problem::conflict) };
                    // Opening the log device has a time limit of its own.
                    Some(answered(&own, 2 * OPEN_TIMEOUT, closed).await?)
                }
            };
            answered(&device, OPEN_TIMEOUT, async {
                let prepared = match (&growing, &closed) {
                    (Growing::Open(pool), _) => pool.prepare_growth(&named, destroys).await,
                    (Growing::Full(_), Some((devices, options))) => {
                        Pool::prepare_closed_growth(devices, options, &named, destroys).await
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
        let after = DeviceSet { adding: None, ..during.clone() };
        match growing {
            Growing::Open(pool) => {
                let task = spawn(async move {
                    let _permit = permit;
                    if let Err(error) = pool.grow(named, destroys).await {
                        // The next opening of the pool decides whether a failed update took effect.
                        if pool.status().failed.is_none() {
                            server.pools.set_devices(&own, before).await?;
                        }
                        return Err(Problem::conflict(error.to_string()));
                    }
                    server.pools.set_devices(&own, after).await
                });
                let late = format!(
                    "{device} is not in pool {name} yet: a device has not answered; this continues when \
                     it does: see flagstone pool status {name}"
                );
                end_of_change(task, late).await
            }
            Growing::Full(log) => {
                let work = async move || {
                    let closed = server.pools.closed_pool(&own, &paths, log).await;
                    let (devices, options) = closed.map_err(Problem::conflict)?;
                    let grown = Pool::grow_closed(&devices, &options, named, destroys).await;
                    grown.map_err(|error| Problem::conflict(error.to_string()))?;
                    // A pool that is still too full can grow again.
                    server.pools.set_devices(&own, after).await
                };
                let what = "it is being grown, and its devices have not answered";
                let done = self.reopen(name, during, what, permit, log.consent(), work).await;
                match (done, self.pools.open_pool(name)) {
                    // The update took effect, and the opening detached the log device that had
                    // failed it.
                    (Err(problem), Ok(pool)) if pool.status().devices.contains(&device) => {
                        tracing::warn!("pool {name} has {device}, although: {}", problem.detail);
                        Ok(())
                    }
                    (done, _) => done,
                }
            }
        }
    }

    /// Moves everything from a device to the others and removes it, in the background.
    pub(crate) async fn remove_device(
        self: Rc<Self>,
        order: RemoveDevice,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order(&order.name).await?;
        let RemoveDevice { name, device, cancel, dry_run } = order;
        let pool = self.pools.open_pool(&name)?;
        let running = self.pools.removal(&name).filter(|removal| {
            removal.state == RemovalStateName::Running && removal.device == device
        });
        let set = self.pools.slot(&name)?.set;
        if !set.devices.contains(&device) {
            // The answer to an earlier order may have been lost.
            if !cancel && self.pools.removed.borrow().get(&name) == Some(&device) {
                let outcome = format!("{device} was removed from pool {name}: nothing to do");
                return Ok(Outcome::unchanged(outcome));
            }
            return Err(Problem::not_found(format!("pool {name} has no device {device}"))
                .accepting(set.devices));
        }
        let next = format!("flagstone pool status {name} --watch");
        if cancel {
            let outcome = match running {
                Some(_) => Outcome::changed(format!("{device} stays in pool {name}")),
                None => Outcome::unchanged(format!("{device} is not being removed")),
            };
            if !dry_run {
                let is_own = |removal: &Removal| removal.document().device == device;
                self.pools.removals.borrow_mut().retain(|of, one| *of != name || !is_own(one));
                if set.removing.as_ref() == Some(&device) {
                    self.pools.set_devices(&name, DeviceSet { removing: None, ..set }).await?;
                }
            }
            return Ok(outcome);
        }
        if running.is_some() {
            let outcome = format!("{device} is being removed from pool {name} already");
            return Ok(Outcome::unchanged(outcome).with_next(next));
        }
        let outcome = |left: u64| {
            let what = "to the other devices of pool";
            let moved =
                format!("{} move from {device} {what} {name}, then it is removed", size(left));
            Outcome::changed(moved + &places_caveat(&pool)).with_next(next)
        };
        // The order itself first packs compressed units and makes a checkpoint.
        let refused = |error: DeviceOrderError| Problem::conflict(error.to_string());
        if dry_run {
            return pool.check_evacuation(&device).map(outcome).map_err(refused);
        }
        let evacuation = pool.evacuate(&device).await.map_err(refused)?;
        let outcome = outcome(evacuation.left_bytes());
        let set = DeviceSet { removing: Some(device.clone()), ..set };
        self.pools.set_devices(&name, set).await?;
        self.start_removal(name, device, evacuation);
        Ok(outcome)
    }

    /// Continues a removal that the last stop of the server interrupted.
    pub(super) async fn resume_removal(self: &Rc<Self>, name: &str, pool: &Pool, device: &str) {
        match pool.evacuate(device).await {
            Ok(evacuation) => self.start_removal(name.to_owned(), device.to_owned(), evacuation),
            Err(error) => {
                tracing::error!("{device} is not removed from pool {name}: {error}");
                let document = RemovalDocument {
                    device: device.to_owned(),
                    state: RemovalStateName::Failed,
                    reason: Some(error.to_string()),
                    left_bytes: 0,
                    total_bytes: 0,
                };
                let removal = Removal { document: Rc::new(RefCell::new(document)), _task: None };
                self.pools.removals.borrow_mut().insert(name.to_owned(), removal);
            }
        }
    }

    fn start_removal(self: &Rc<Self>, name: String, device: String, evacuation: Evacuation) {
        let left = evacuation.left_bytes();
        let document = Rc::new(RefCell::new(RemovalDocument {
            device: device.clone(),
            state: RemovalStateName::Running,
            reason: None,
            left_bytes: left,
            total_bytes: left,
        }));
        let (server, shared, own) = (self.clone(), document.clone(), name.clone());
        let task = spawn(async move {
            let done = match work(&evacuation, &shared).await {
                Ok(()) => server.complete_removal(&own, &device, evacuation).await,
                Err(why) => {
                    drop(evacuation);
                    server.forget_removal(&own).await;
                    Err(why)
                }
            };
            match done {
                Ok(()) => drop(server.pools.removals.borrow_mut().remove(&own)),
                Err(why) => {
                    tracing::error!("{device} is not removed from pool {own}: {why}");
                    let mut document = shared.borrow_mut();
                    (document.state, document.reason) = (RemovalStateName::Failed, Some(why));
                }
            }
        });
        let removal = Removal { document, _task: Some(task.abort_on_drop()) };
        self.pools.removals.borrow_mut().insert(name, removal);
    }

    /// Forgets a failed removal. After a failure of the pool, the removal continues when the pool
    /// is opened again; after other failures, the operator must repeat the order.
    async fn forget_removal(&self, name: &str) {
        let _order = self.pools.lock(name).await;
        let Ok(slot) = self.pools.slot(name) else { return };
        match slot.state {
            PoolState::Open(pool) if pool.status().failed.is_none() => {}
            PoolState::Open(_) | PoolState::Changing { .. } | PoolState::Closed { .. } => return,
        }
        let set = DeviceSet { removing: None, ..slot.set };
        if let Err(problem) = self.pools.set_devices(name, set).await {
            tracing::warn!("the devices of pool {name} are not recorded: {}", problem.detail);
        }
    }

    /// Removes an evacuated device from the pool, then from the state directory. After a crash in
    /// between, the opening ignores the device.
    async fn complete_removal(
        &self,
        name: &str,
        device: &str,
        evacuation: Evacuation,
    ) -> Result<(), String> {
        let _order = self.pools.lock(name).await;
        let removed = evacuation.complete().await.map_err(|error| error.to_string())?;
        let mut set = self.pools.slot(name).map_err(|problem| problem.detail)?.set;
        set.devices.retain(|other| other != device);
        set.removing = None;
        let recorded = self.pools.set_devices(name, set).await;
        recorded.map_err(|problem| problem.detail)?;
        self.pools.removed.borrow_mut().insert(name.to_owned(), device.to_owned());
        let cleared = async {
            for named in open_devices(&[device.to_owned()]).await? {
                release(&named, removed).await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        };
        // While a hung call is in flight, the device cannot be reused.
        let cleared = time::timeout(OPEN_TIMEOUT, cleared).await;
        if let Err(why) = cleared.unwrap_or(Err("it does not answer".to_owned())) {
            tracing::warn!("{device} keeps an old superblock of pool {name}: {why}");
        }
        tracing::info!("{device} was removed from pool {name}");
        Ok(())
    }
}

impl super::Pools {
    /// Removal of a device, running or failed.
    pub(crate) fn removal(&self, name: &str) -> Option<RemovalDocument> {
        self.removals.borrow().get(name).map(Removal::document)
    }
}
