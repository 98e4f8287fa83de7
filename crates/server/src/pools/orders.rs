//! Orders on pools: create, reopen and destroy. A dry run takes the same steps up to the first
//! change.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use flagstone_host::guard::{self, GuardVerdict, GuardedAccess};
use flagstone_pool::limits::MAP_CACHE_BYTES;
use flagstone_pool::{CreateOptions, DeviceSet, Pool, Redundancy};
use flagstone_runtime::sync::Permit;
use flagstone_runtime::{JoinHandle, spawn, time};
use flagstone_units::display::size;

use super::import::AcceptedLoss;
use super::open::OperatorConsent;
use super::path_threads::{PathThread, in_thread};
use super::retire::not_retired;
use super::state_directory::{PoolEntry, check_entry};
use super::{ClosedCause, OpenPoolError, PoolSlot, PoolState, failed, log_orders, open_devices};
use crate::http::Problem;
use crate::limits::{CHANGE_TIMEOUT, OPEN_TIMEOUT, POOLS_MAX};
use crate::reservations::remove_records;
use crate::serve::Server;
use crate::volume::ServedVolume;

/// Result of an order, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) changed: bool,
    pub(crate) outcome: String,
    /// Data that the order loses.
    pub(crate) data_loss: Option<String>,
    /// Next step for the operator.
    pub(crate) next: Option<String>,
}

impl Outcome {
    pub(super) fn unchanged(outcome: impl Into<String>) -> Outcome {
        Outcome { outcome: outcome.into(), ..Outcome::default() }
    }

    pub(super) fn changed(outcome: impl Into<String>) -> Outcome {
        Outcome { changed: true, outcome: outcome.into(), ..Outcome::default() }
    }

    pub(super) fn losing(self, data: Option<String>) -> Outcome {
        Outcome { data_loss: data, ..self }
    }

    pub(super) fn with_next(self, next: impl Into<String>) -> Outcome {
        Outcome { next: Some(next.into()), ..self }
    }
}

/// `pool create` and `pool import`.
pub(crate) struct MakePool {
    pub(crate) name: String,
    pub(crate) devices: Vec<String>,
    /// Log device.
    pub(crate) log: Option<String>,
    /// Copies of a new pool.
    pub(crate) redundancy: Redundancy,
    /// Accepts a log device that loses its content when its machine stops.
    pub(crate) accept_ephemeral: bool,
    /// Devices whose data may be destroyed, by exact path.
    pub(crate) destroy_data: Vec<String>,
    /// For an import, which may open an older copy, or another pool of the name.
    pub(crate) accepted_loss: AcceptedLoss,
    pub(crate) dry_run: bool,
}

/// `pool set`.
pub(crate) struct SetPool {
    pub(crate) name: String,
    /// Size of the map cache, in bytes.
    pub(crate) map_cache_bytes: u64,
    pub(crate) dry_run: bool,
}

/// `pool destroy` and `pool reopen`.
pub(crate) struct DestroyPool {
    pub(crate) name: String,
    /// Proceeds although hosts are attached, or the pool cannot be opened.
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
}

impl Server {
    /// Creates a pool on devices that are empty, or whose data may be destroyed.
    pub(crate) async fn create_pool(&self, order: MakePool) -> Result<Outcome, Problem> {
        let _order = self.pools.order(&order.name).await?;
        let MakePool { name, devices, log, accept_ephemeral, destroy_data, dry_run, .. } = &order;
        let redundancy = order.redundancy;
        self.pools.end_opening(name, *dry_run);
        if let Some(outcome) = self.check_new_pool(name, devices, log.as_ref(), redundancy)? {
            return Ok(outcome);
        }
        let options = CreateOptions { redundancy, ..CreateOptions::new(name.clone()) };
        options.check_devices(devices.len(), log.is_some()).map_err(|error| {
            Problem::invalid(format!("{error} ({} devices were named)", devices.len()))
        })?;
        let all = || devices.iter().chain(log);
        if let Some(device) = destroy_data.iter().find(|device| !all().any(|one| one == *device)) {
            return Err(Problem::invalid(format!(
                "{device} is to be destroyed, but is no device of the pool"
            )));
        }
        let all_devices = all().map(String::as_str).collect::<Vec<_>>().join(", ");
        let opened = answered(&all_devices, OPEN_TIMEOUT, async {
            for device in all() {
                check_device(device, destroy_data.contains(device)).await?;
            }
            let opened = open_devices(devices).await.map_err(Problem::conflict)?;
            let log = open_devices(log.as_slice()).await.map_err(Problem::conflict)?;
            Ok((opened, log))
        });
        let (opened, mut opened_log) = opened.await?;
        let destroyed = all().filter(|device| destroy_data.contains(device));
        let lost: Vec<&str> = destroyed.map(String::as_str).collect();
        let sizes = opened.iter().map(|named| named.device.geometry().size_bytes);
        let sizes: Vec<u64> = sizes.collect();
        let ephemeral = match log {
            Some(log) => log_orders::ephemeral_loss(log).await?,
            None => None,
        };
        let loss = (!lost.is_empty()).then(|| format!("everything on {}", lost.join(" and ")));
        let loss = match (loss, &ephemeral) {
            (Some(loss), Some(ephemeral)) => Some(format!("{loss}; {ephemeral}")),
            (loss, ephemeral) => loss.or_else(|| ephemeral.clone()),
        };
        let mut outcome =
            Outcome::changed(format!("pool {name} has {}", places(&sizes, devices, redundancy)))
                .losing(loss)
                .with_next(format!("flagstone volume create NAME --pool {name} --size SIZE"));
        if let Some(log) = log {
            outcome.outcome += &format!(", with log device {log}");
        }
        if *dry_run {
            return Ok(outcome);
        }
        log_orders::check_consent(ephemeral, *accept_ephemeral)?;
        // Record the pool first, so that a crash leaves no pool that the server does not know.
        let set = DeviceSet::from(devices.clone());
        let new = PoolEntry::new(name, &set, log.clone());
        self.pools.registry.change(name, |entry| *entry = Some(new)).await?;
        let overwrite = !lost.is_empty();
        let options = CreateOptions { overwrite, ..options };
        // On the heap: this future is part of large ones.
        let created = Box::pin(Pool::create_with_log(opened, opened_log.pop(), &options));
        let pool = match time::timeout(CHANGE_TIMEOUT, created).await {
            Ok(Ok(pool)) => pool,
            Ok(Err(error)) => {
                self.pools.registry.change(name, |entry| *entry = None).await?;
                self.pools.slots.borrow_mut().remove(name);
                return Err(Problem::conflict(error.to_string()));
            }
            Err(_) => {
                // Close the pool as after a crash: its devices may still be writing.
                let reason =
                    format!("its creation did not end: a device does not answer ({all_devices})");
                let error =
                    OpenPoolError { reason: reason.clone(), cause: Some(ClosedCause::Absent) };
                self.pools.insert(name, PoolSlot::closed(set, error));
                return Err(failed(format!("{reason}; repeat the order when it does")));
            }
        };
        let capacity = size(pool.status().capacity_bytes);
        outcome.outcome += &format!("; {capacity} are for volumes");
        self.pools.registry.remember(name, || Some(pool.identity())).await;
        self.pools.insert(name, PoolSlot::open(set, pool.clone()));
        self.record_pairs(name, &pool).await;
        tracing::info!("pool {name} was created on {}", devices.join(", "));
        Ok(outcome)
    }

    /// Checks a pool before its creation. Returns the outcome if it exists with these devices.
    fn check_new_pool(
        &self,
        name: &str,
        devices: &[String],
        log: Option<&String>,
        redundancy: Redundancy,
    ) -> Result<Option<Outcome>, Problem> {
        self.pools.writable()?;
        let set = devices.to_vec().into();
        check_entry(&PoolEntry::new(name, &set, log.cloned())).map_err(Problem::invalid)?;
        let slots = self.pools.slots();
        match slots.get(name) {
            Some(PoolSlot { state: PoolState::Open(pool), set, .. })
                if set.devices == devices
                    && self.pools.log_path(name).as_ref() == log
                    && pool.status().redundancy.is_some() == (redundancy == Redundancy::Mirror) =>
            {
                return Ok(Some(Outcome::unchanged(format!("pool {name} exists already"))));
            }
            Some(PoolSlot { state: PoolState::Open(pool), set, .. }) => {
                let own = set.devices.join(" and ");
                let copies = match pool.status().redundancy {
                    Some(_) => "with",
                    None => "without",
                };
                return Err(Problem::conflict(format!(
                    "pool {name} exists already, on {own}, {copies} redundancy"
                )));
            }
            // An earlier creation did not complete.
            Some(PoolSlot {
                state: PoolState::Closed { cause: ClosedCause::Absent, .. }, ..
            }) => {}
            Some(PoolSlot { state: PoolState::Closed { reason, .. }, .. }) => {
                return Err(Problem::conflict(format!(
                    "pool {name} exists already, and is not open: {reason}"
                )));
            }
            Some(PoolSlot { state: PoolState::Changing { what }, .. }) => {
                return Err(Problem::conflict(format!("pool {name} exists already: {what}")));
            }
            None if slots.len() >= POOLS_MAX => {
                return Err(Problem::conflict(format!("a server has at most {POOLS_MAX} pools")));
            }
            None => {}
        }
        self.check_unused(name, devices)?;
        self.check_unused(name, log.map_or(&[], std::slice::from_ref))?;
        Ok(None)
    }

    /// Checks that no other pool has one of the devices.
    pub(super) fn check_unused(&self, name: &str, devices: &[String]) -> Result<(), Problem> {
        for (other, slot) in self.pools.slots().iter().filter(|(other, _)| *other != name) {
            let log = self.pools.log_path(other);
            let mut own = slot.set.devices.iter().chain(&log);
            if let Some(device) = own.find(|device| devices.contains(device)) {
                return Err(Problem::conflict(format!("{device} is a device of pool {other}")));
            }
        }
        Ok(())
    }

    /// Changes the size of a pool's map cache, at once and for later openings.
    pub(crate) async fn set_pool(&self, order: SetPool) -> Result<Outcome, Problem> {
        let _order = self.pools.order(&order.name).await?;
        let SetPool { name, map_cache_bytes, dry_run } = order;
        self.pools.writable()?;
        let slot = self.pools.slot(&name)?;
        if !MAP_CACHE_BYTES.contains(&map_cache_bytes) {
            return Err(Problem::invalid("a map cache has 1 MiB to 64 GiB"));
        }
        let bytes = size(map_cache_bytes);
        let former = self.pools.registry.entry(&name).and_then(|entry| entry.map_cache_bytes);
        if former == Some(map_cache_bytes) {
            return Ok(Outcome::unchanged(format!(
                "pool {name} has a map cache of {bytes} already"
            )));
        }
        let outcome = Outcome::changed(format!("pool {name} has a map cache of {bytes}"));
        if dry_run {
            return Ok(outcome);
        }
        let change = |entry: &mut Option<PoolEntry>| {
            if let Some(entry) = entry {
                entry.map_cache_bytes = Some(map_cache_bytes);
            }
        };
        self.pools.registry.change(&name, change).await?;
        if let PoolState::Open(pool) = slot.state {
            self.pools.apply_map_cache(&name, &pool);
        }
        Ok(outcome)
    }

    /// Closes a pool and opens it again, as after a failure of a device.
    pub(crate) async fn reopen_pool(
        self: &Rc<Self>,
        order: DestroyPool,
    ) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let DestroyPool { name, force, dry_run } = &order;
        self.pools.end_opening(name, *dry_run);
        let slot = self.pools.slot(name)?;
        let loss = match &slot.state {
            PoolState::Open(pool) if is_whole(pool) => {
                return self.reopen_locked(name, pool, *dry_run).await;
            }
            PoolState::Open(pool) if pool.status().failed.is_none() => None,
            PoolState::Open(_) => {
                Some("writes since the last flush, although they were acknowledged".to_owned())
            }
            PoolState::Changing { .. } | PoolState::Closed { .. } => None,
        };
        let volumes = self.volumes_of(name);
        self.check_detached(&volumes, *force)?;
        self.check_legs_idle(name, *force)?;
        let outcome = Outcome::changed(format!("pool {name} is opened again")).losing(loss);
        if *dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(&volumes, *force)?;
        self.retire_all(volumes).await.map_err(|why| not_retired(&why))?;
        let reopening = "it is being opened again, and its devices have not answered";
        self.pools.insert(name, PoolSlot::changing(slot.set.clone(), reopening));
        self.release_legs(name).await;
        if let PoolState::Open(pool) = &slot.state {
            // A disk that is restored meanwhile counts as an old copy.
            self.pools.registry.remember(name, || Some(pool.identity())).await;
        }
        self.pools.halt_scrub(name).await;
        if let PoolState::Open(pool) = &slot.state {
            self.pools.end_receivers(pool);
        }
        self.pools.removals.borrow_mut().remove(name);
        let PoolSlot { set, state, .. } = slot;
        // A pool that has not failed is closed first: it loses nothing.
        let closing = match &state {
            PoolState::Open(pool) if pool.status().failed.is_none() => Some(pool.clone()),
            PoolState::Open(_) | PoolState::Changing { .. } | PoolState::Closed { .. } => None,
        };
        // Closes the devices of a failed pool, and so unlocks them.
        drop(state);
        let work = async move || match closing {
            None => Ok(()),
            Some(pool) => pool.close().await.map_err(|error| failed(error.to_string())),
        };
        let consent = OperatorConsent::default();
        self.reopen(name, set, reopening, permit, consent, work).await?;
        Ok(outcome)
    }

    /// Opens a pool again, after `work` on its devices. Both continue with the lock of the pool if
    /// the devices do not answer in time.
    ///
    /// # Errors
    /// 500 if the devices do not answer in time, errors of the work, and 409 if the pool is not
    /// open afterwards.
    pub(super) async fn reopen(
        self: &Rc<Self>,
        name: &str,
        set: DeviceSet<String>,
        what: &'static str,
        permit: Permit,
        consent: OperatorConsent,
        work: impl AsyncFnOnce() -> Result<(), Problem> + 'static,
    ) -> Result<(), Problem> {
        self.pools.end_opening(name, false);
        self.pools.insert(name, PoolSlot::changing(set.clone(), what));
        let (server, own) = (self.clone(), name.to_owned());
        let task = spawn(async move {
            let _permit = permit;
            let done = work().await;
            // The work may have recorded other devices.
            let set = server.pools.slot(&own).map_or(set, |slot| slot.set);
            server.try_open(&own, set, "", consent).await;
            let done = done.and_then(|()| server.pools.open_pool(&own).map(drop));
            if let Err(problem) = &done {
                tracing::error!("pool {own}: {}", problem.detail);
            }
            done
        });
        end_of_change(task, late(name, what)).await
    }

    /// Removes the superblocks of a pool whose volumes are out of service, and its record.
    async fn destroy_open(
        self: &Rc<Self>,
        name: &str,
        set: DeviceSet<String>,
        pool: Pool,
        permit: Permit,
    ) -> Result<(), Problem> {
        let what = "it is being destroyed, and its devices have not answered";
        self.pools.insert(name, PoolSlot::changing(set.clone(), what));
        let (server, own) = (self.clone(), name.to_owned());
        let task = spawn(async move {
            let _permit = permit;
            let volumes: Vec<_> = pool.volumes().into_iter().map(|info| info.uuid).collect();
            let has_copies = pool.status().redundancy.is_some();
            let destroyed = pool.destroy().await.map_err(|error| error.to_string());
            drop(pool);
            // A device that failed earlier still has superblocks of the pool.
            let destroyed = match (destroyed, has_copies) {
                (Ok(()), true) => server.remove_superblocks(&own).await.map(drop),
                (destroyed, _) => destroyed,
            };
            if let Err(error) = destroyed {
                let reason = format!(
                    "it was not destroyed completely: {error}; when its devices answer, flagstone \
                     pool destroy {own} removes the rest"
                );
                tracing::error!("pool {own}: {reason}");
                server.pools.insert(&own, PoolSlot::closed(set, reason.clone().into()));
                return Err(failed(reason));
            }
            for id in volumes {
                remove_records(server.forget_reservations(id, None)).await;
            }
            let forgotten = server.forget_pool(&own).await;
            if let Err(problem) = &forgotten {
                let reason = format!("it was destroyed, but is recorded: {}", problem.detail);
                server.pools.insert(&own, PoolSlot::closed(set, reason.into()));
            }
            forgotten
        });
        end_of_change(task, late(name, what)).await
    }

    async fn forget_pool(&self, name: &str) -> Result<(), Problem> {
        self.pools.registry.change(name, |entry| *entry = None).await?;
        self.pools.slots.borrow_mut().remove(name);
        self.pools.removed.borrow_mut().remove(name);
        self.pools.copies.borrow_mut().remove(name);
        self.end_retirements(name, None);
        tracing::info!("pool {name} was forgotten");
        Ok(())
    }

    /// Removes a pool with its volumes, and frees its devices for other use.
    pub(crate) async fn destroy_pool(
        self: &Rc<Self>,
        order: DestroyPool,
    ) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let DestroyPool { name, force, dry_run } = &order;
        self.pools.end_opening(name, *dry_run);
        self.pools.writable()?;
        let Ok(slot) = self.pools.slot(name) else {
            return Ok(Outcome::unchanged(format!("there is no pool {name}: nothing to do")));
        };
        let is_rest = !force && self.pools.registry.is_destroying(name);
        let outcome = match &slot.state {
            PoolState::Open(pool) => {
                self.check_no_legs(name, pool)?;
                let infos = pool.volumes();
                let listed = infos
                    .iter()
                    .map(|info| format!("{} ({} used)", info.name, size(info.used_bytes)));
                let listed: Vec<String> = listed.collect();
                let loss = (!listed.is_empty()).then(|| format!("volumes {}", listed.join(", ")));
                Outcome::changed(format!(
                    "pool {name} is removed from {}",
                    slot.set.devices.join(" and ")
                ))
                .losing(loss)
            }
            PoolState::Closed { .. } if is_rest => Outcome::changed(format!(
                "the rest of pool {name} is removed from {}",
                slot.set.devices.join(" and ")
            ))
            .losing(Some(format!("everything that is left of pool {name}"))),
            PoolState::Closed { cause: ClosedCause::Absent, .. } => Outcome::changed(format!(
                "pool {name}, whose creation did not complete, is forgotten"
            )),
            PoolState::Changing { what } => {
                return Err(Problem::conflict(format!("pool {name} is not open: {what}")));
            }
            PoolState::Closed { reason, .. } if !force => {
                return Err(Problem::conflict(format!(
                    "pool {name} is not open: {reason}; to forget it and leave its devices as they \
                     are, use --force"
                )));
            }
            PoolState::Closed { .. } => Outcome::changed(format!(
                "pool {name} is forgotten, and its devices stay as they are"
            ))
            .with_next(format!("flagstone pool import {name} DEVICE… brings it back")),
        };
        let volumes = self.volumes_of(name);
        self.check_detached(&volumes, *force)?;
        if *dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(&volumes, *force)?;
        if let PoolState::Open(pool) = &slot.state {
            // Record it first: a crash or an error leaves superblocks on some devices, which the
            // repeated order removes. If this cannot be recorded, nothing was destroyed.
            let identity = pool.identity();
            let mark = |entry: &mut Option<PoolEntry>| {
                if let Some(entry) = entry {
                    (entry.last_seen, entry.destroying) = (Some(identity.into()), true);
                }
            };
            self.pools.registry.change(name, mark).await?;
        }
        for volume in volumes {
            if let Err(why) = self.retire(&volume).await {
                tracing::warn!("{why}; pool {name} is destroyed nevertheless");
            }
        }
        self.pools.forget_scrub(name).await;
        self.pools.removals.borrow_mut().remove(name);
        if let PoolState::Open(pool) = slot.state {
            self.pools.end_receivers(&pool);
            self.destroy_open(name, slot.set, pool, permit).await?;
        } else {
            let spared = match is_rest {
                true => self.complete_destruction(name).await?,
                false => Vec::new(),
            };
            self.forget_pool(name).await?;
            if !spared.is_empty() {
                let text = format!(
                    "{}; {} had no superblock of it: it was removed earlier, or the disk has another \
                     name now, and keeps its data",
                    outcome.outcome,
                    spared.join(" and ")
                );
                return Ok(Outcome { outcome: text, ..outcome });
            }
        }
        Ok(outcome)
    }

    /// Removes the superblocks that an interrupted destruction left. Returns the devices on which
    /// none was found.
    async fn complete_destruction(&self, name: &str) -> Result<Vec<String>, Problem> {
        let entry = self.pools.registry.entry(name);
        let paths = entry.map(|entry| entry.devices.join(", ")).unwrap_or_default();
        answered(&paths, OPEN_TIMEOUT, async {
            self.remove_superblocks(name).await.map_err(|why| {
                Problem::conflict(format!(
                    "pool {name} is not destroyed completely: {why}; repeat the order when its \
                     devices answer, or use --force to forget the pool and leave its devices as they are"
                ))
            })
        })
        .await
    }

    /// Removes the superblocks of a closed pool from all of its recorded devices. Returns those on
    /// which none was found. The error is of the first device that failed.
    async fn remove_superblocks(&self, name: &str) -> Result<Vec<String>, String> {
        let Some(entry) = self.pools.registry.entry(name) else { return Ok(Vec::new()) };
        let id = self.pools.registry.identity(name).map(|identity| identity.id);
        let (mut spared, mut failure) = (Vec::new(), None);
        for path in entry.devices.into_iter().chain(entry.log) {
            let removed = async {
                let mut removed = false;
                for named in open_devices(std::slice::from_ref(&path)).await? {
                    let id = id.ok_or("the identifier of the pool is not recorded")?;
                    let done = Pool::complete_destruction(&named, id).await;
                    removed |= done.map_err(|error| error.to_string())?;
                }
                Ok::<bool, String>(removed)
            };
            match removed.await {
                Ok(true) => {}
                Ok(false) => spared.push(path),
                Err(why) => failure = failure.or(Some(why)),
            }
        }
        failure.map_or(Ok(spared), Err)
    }

    pub(super) fn volumes_of(&self, pool: &str) -> Vec<Rc<ServedVolume>> {
        let mut volumes = self.volumes();
        volumes.retain(|volume| volume.pool.as_ref().is_some_and(|place| place.pool == pool));
        volumes
    }
}

/// True if an open pool has not failed, and lacks no device.
fn is_whole(pool: &Pool) -> bool {
    let status = pool.status();
    let legs = status.redundancy.map(|copies| copies.legs).unwrap_or_default();
    status.failed.is_none() && legs.iter().all(|leg| leg.is_attached)
}

/// Size of a new pool, its devices, and what their loss means.
fn places(sizes: &[u64], devices: &[String], redundancy: Redundancy) -> String {
    let sum = || size(sizes.iter().sum());
    match (redundancy, devices) {
        (Redundancy::Mirror, _) => {
            let pairs: Vec<String> = devices.chunks(2).map(|pair| pair.join(" and ")).collect();
            let usable = sizes.chunks(2).map(|pair| pair.iter().copied().min().unwrap_or_default());
            format!("{} with two copies, on the pairs {}", size(usable.sum()), pairs.join("; "))
        }
        (Redundancy::None, [device]) => format!("{} on {device}", sum()),
        (Redundancy::None, _) => format!(
            "{} on {}, without redundancy: the loss of one device loses the pool (--redundancy \
             mirror keeps two copies)",
            sum(),
            devices.join(" and ")
        ),
    }
}

/// Limits the time of a step that holds the lock of its pool while devices may hang. Dropping
/// `work` reverts it, except for calls in flight.
pub(super) async fn answered<T>(
    devices: &str,
    timeout: Duration,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let done = time::timeout(timeout, work).await;
    done.unwrap_or_else(|_| {
        Err(failed(format!(
            "the order was given up: a device does not answer ({devices}); repeat it when it does"
        )))
    })
}

fn late(name: &str, what: &str) -> String {
    format!(
        "pool {name} is not open: {what}; this continues when they do, or fails when they are \
         detached: see flagstone pool status {name}"
    )
}

/// Waits for the task of a change, for a limited time.
///
/// # Errors
/// Errors of the task, and 500 with the text `late`.
pub(super) async fn end_of_change(
    task: JoinHandle<Result<(), Problem>>,
    late: String,
) -> Result<(), Problem> {
    match time::timeout(CHANGE_TIMEOUT, task).await {
        Ok(done) => done.unwrap_or_else(|_| Err(failed("the server is stopping"))),
        Err(_) => Err(failed(late)),
    }
}

/// Checks that a device may become part of a pool.
pub(super) async fn check_device(device: &str, agreed: bool) -> Result<(), Problem> {
    let name = device.to_owned();
    let access = GuardedAccess::Write { agreed, own_file: false };
    let check = move |_: &PathThread| guard::check_path(&name, &PathBuf::from(&name), access);
    let checked = in_thread("guard", device, check).await;
    let checked = checked.map_err(|error| failed(error.to_string()))?;
    match checked {
        Ok(GuardVerdict::Free) => Ok(()),
        Ok(GuardVerdict::Absent) => Err(Problem::conflict(format!(
            "{device} does not exist: make a file first (truncate -s 10G FILE), or look for the \
             disk with lsblk"
        ))),
        Err(refused) => Err(Problem::conflict(refused.to_string())),
    }
}
