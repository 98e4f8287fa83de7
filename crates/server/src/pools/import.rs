//! Import: takes over an existing pool, from another machine or under other paths.
//!
//! The state directory records the last update of a pool, and another disk of this machine may be a
//! newer copy. An import of devices that are older than either is an order that loses data.
//!
//! Invariant: opening the devices holds no order lock, so hung devices block neither orders on the
//! pool nor its return. An order on the pool cancels the opening.

use std::rc::Rc;

use flagstone_pool::{AbsentLegs, DeviceSet, Pool, PoolId, PoolIdentity};
use flagstone_runtime::sync::oneshot;
use flagstone_runtime::{spawn, spawn_detached, time};

use super::disk_search::DiskCopy;
use super::open::{OperatorConsent, examine};
use super::orders::answered;
use super::redundancy::KeptPaths;
use super::state_directory::{PoolEntry, check_entry};
use super::{
    ClosedCause, MakePool, OpenPoolError, Outcome, PoolSlot, PoolState, failed, redundancy,
};
use crate::http::Problem;
use crate::limits::{CHANGE_TIMEOUT, OPEN_TIMEOUT, POOLS_MAX};
use crate::serve::Server;

/// Loss of data that an operator accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum AcceptedLoss {
    /// None.
    #[default]
    None,
    /// Only the loss that was shown: devices may be exchanged between the question and its answer.
    Shown(String),
    /// Any loss, without a question.
    Any,
}

impl AcceptedLoss {
    /// Accepted loss from the members of an order.
    pub(crate) fn new(accepts: bool, shown: Option<String>) -> AcceptedLoss {
        match (accepts, shown) {
            (false, _) => AcceptedLoss::None,
            (true, Some(shown)) => AcceptedLoss::Shown(shown),
            (true, None) => AcceptedLoss::Any,
        }
    }

    /// Checks the loss that an order would cause now.
    ///
    /// # Errors
    /// The reason why it is not accepted.
    fn check(&self, loss: &str) -> Result<(), String> {
        match self {
            AcceptedLoss::Any => Ok(()),
            AcceptedLoss::Shown(shown) if shown == loss => Ok(()),
            AcceptedLoss::Shown(_) => Err(format!(
                "the devices have changed since you were asked. This would lose {loss}; repeat the order"
            )),
            AcceptedLoss::None => Err(format!(
                "this would lose {loss}; to accept that, use --yes (`accept_data_loss`)"
            )),
        }
    }
}

/// Data that is lost if `found` is opened as the pool `name`. The text names everything that is
/// compared, because an operator accepts exactly this text.
fn loss(
    name: &str,
    found: PoolIdentity,
    recorded: Option<PoolIdentity>,
    copy: Option<DiskCopy>,
) -> Option<String> {
    let update = found.update;
    match (recorded, copy) {
        (Some(seen), _) if seen.id != found.id => Some(format!(
            "pool {name} as it was open last, {}: these devices are another pool of its name, {}, with \
             update {update}",
            seen.id, found.id
        )),
        (Some(seen), _) if update < seen.update => Some(format!(
            "what was written to pool {name}, {}, since update {update}, which these devices have: it had \
             {} when it was open last",
            found.id, seen.update
        )),
        (_, Some(copy)) if update < copy.update => Some(format!(
            "what was written to pool {name}, {}, since update {update}, which these devices have: {} is a \
             copy with {}",
            found.id, copy.path, copy.update
        )),
        _ => None,
    }
}

/// Data that may be lost without absent devices, which may have been used without the present ones.
fn absent_loss(absent: &[PoolId]) -> Option<String> {
    let ids: Vec<String> = absent.iter().map(ToString::to_string).collect();
    (!ids.is_empty()).then(|| {
        format!(
            "what was written with the absent device {} alone, if it was used",
            ids.join(" and ")
        )
    })
}

/// Refuses copies of which neither is newer: no order can say which data is meant to be lost.
fn check_rival(copy: Option<&DiskCopy>) -> Result<(), String> {
    let Some(DiskCopy { path, update, rival: Some(rival) }) = copy else { return Ok(()) };
    Err(format!(
        "{path} and {rival} are copies of the pool that were written to independently, and both have update \
         {update}: detach the one that is not needed, and repeat the order"
    ))
}

impl Server {
    /// Opens an existing pool and records it.
    pub(crate) async fn import_pool(self: &Rc<Self>, order: MakePool) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let MakePool { name, devices, log, dry_run, .. } = &order;
        self.pools.end_opening(name, *dry_run);
        self.pools.writable()?;
        let set = DeviceSet::from(devices.clone());
        check_entry(&PoolEntry::new(name, &set, log.clone())).map_err(Problem::invalid)?;
        if let Some(outcome) = self.check_importable(&order)? {
            return Ok(outcome);
        }
        let examined = async { examine(devices).await.map_err(Problem::conflict) };
        let examined = answered(&devices.join(", "), OPEN_TIMEOUT, examined).await?;
        if examined.name != *name {
            let (devices, found) = (devices.join(", "), &examined.name);
            return Err(Problem::conflict(format!("{devices}: pool {found}, not {name}")));
        }
        let (identity, unproven) = (examined.identity, examined.unproven.clone());
        let without: Vec<String> = examined.missing.iter().map(ToString::to_string).collect();
        let without = match without.is_empty() {
            true => String::new(),
            false => format!(" without the devices {}", without.join(", ")),
        };
        // Disks that could not be read need no consent.
        let copy = self.pools.search.find_copy(examined, devices).await.unwrap_or_default();
        check_rival(copy.as_ref()).map_err(Problem::conflict)?;
        let loss = loss(name, identity, self.pools.registry.identity(name), copy);
        let absent = match unproven.is_empty() {
            true => AbsentLegs::Refuse,
            false => AbsentLegs::GiveUp(unproven.clone()),
        };
        let parts = [loss, absent_loss(&unproven)];
        let loss = parts.into_iter().flatten().reduce(|one, other| format!("{one}; and {other}"));
        if *dry_run {
            return Ok(Outcome::changed(format!("pool {name} is opened{without}")).losing(loss));
        }
        if let Some(loss) = &loss {
            order.accepted_loss.check(loss).map_err(Problem::conflict)?;
        }
        if loss.is_some() {
            // First, so that no crash leaves an older copy whose legs count as current.
            let note = |entry: &mut Option<PoolEntry>| {
                if let Some(entry) = entry {
                    entry.has_old_legs = true;
                }
            };
            self.pools.registry.change(name, note).await?;
        }
        let kept = Box::pin(self.pools.kept_paths(name, devices, identity.id)).await;
        let (sender, ended) = oneshot();
        let (server, own) = (self.clone(), name.clone());
        let task = spawn(async move {
            let name = order.name.clone();
            // Accept only the examined state or a newer one: a device may be exchanged in between.
            let devices = Some(identity);
            let consent = OperatorConsent { devices, absent, ..OperatorConsent::default() };
            let opened =
                server.pools.open(&name, &order.devices, order.log.as_ref(), consent).await;
            let _order = server.pools.lock(&name).await;
            let ended = server.end_import(order, identity, kept, opened).await;
            match &ended {
                Ok(outcome) => tracing::info!("import of pool {name}: {}", outcome.outcome),
                Err(problem) => tracing::error!("pool {name} is not imported: {}", problem.detail),
            }
            sender.send(ended);
            // Removing the opening ends this task.
            server.pools.end_opening(&name, false);
        });
        let name = own;
        self.pools.imports.borrow_mut().insert(name.clone(), task.abort_on_drop());
        drop(permit);
        match time::timeout(CHANGE_TIMEOUT, ended).await {
            Ok(Some(done)) => done.map(|outcome| {
                let loss = loss.filter(|_| outcome.changed);
                outcome.losing(loss)
            }),
            Ok(None) => {
                Err(Problem::conflict(format!("another order on pool {name} ended its import")))
            }
            Err(_) => Err(failed(format!(
                "pool {name} is not imported: its devices have not answered; this continues when they \
                 do, until the next order on the pool, and its end is logged"
            ))),
        }
    }

    /// Checks an import against the pools of the server. Returns the outcome if the pool is already
    /// open.
    fn check_importable(&self, order: &MakePool) -> Result<Option<Outcome>, Problem> {
        let MakePool { name, devices, log, .. } = order;
        self.check_unused(name, devices)?;
        self.check_unused(name, log.as_slice())?;
        let slots = self.pools.slots();
        match slots.get(name).map(|slot| &slot.state) {
            Some(PoolState::Open(_)) => {
                let on = slots[name].set.devices.join(" and ");
                Ok(Some(Outcome::unchanged(format!("pool {name} is open already, on {on}"))))
            }
            None if slots.len() >= POOLS_MAX => {
                Err(Problem::conflict(format!("a server has at most {POOLS_MAX} pools")))
            }
            Some(PoolState::Changing { .. } | PoolState::Closed { .. }) | None => Ok(None),
        }
    }

    /// Records an opened import, and serves its volumes. The caller has the lock of the pool.
    async fn end_import(
        self: &Rc<Self>,
        order: MakePool,
        identity: PoolIdentity,
        kept: KeptPaths,
        opened: Result<Pool, OpenPoolError>,
    ) -> Result<Outcome, Problem> {
        let MakePool { name, devices, log, .. } = &order;
        let set = DeviceSet::from(devices.clone());
        // The pool may have come back meanwhile, or another pool may have got one of the devices.
        let outcome = self.check_importable(&order);
        if !matches!(outcome, Ok(None)) {
            if let Ok(pool) = opened {
                close_unused(pool);
            }
            return outcome.map(Option::unwrap_or_default);
        }
        // Record paths and identity together: the former identity could refuse an older pool.
        let seen = opened.as_ref().map_or(identity, Pool::identity);
        let mut new =
            PoolEntry { last_seen: Some(seen.into()), ..PoolEntry::new(name, &set, log.clone()) };
        let copies = opened.as_ref().ok().and_then(|pool| pool.status().redundancy);
        if let Some(copies) = &copies {
            let others = kept.paths.into_iter().filter(|path| !devices.contains(path));
            new.devices.extend(others);
            new.device_ids = kept.device_ids;
            redundancy::record(&mut new, &copies.legs);
        }
        if copies.is_some() && log.is_some() {
            opened.map(close_unused).unwrap_or_default();
            return Err(Problem::conflict(format!(
                "pool {name} has two copies, and no log device: repeat the order without it"
            )));
        }
        let set = DeviceSet::from(new.devices.clone());
        let import = |entry: &mut Option<PoolEntry>| {
            let former = entry.take();
            let has_old_legs = former.as_ref().is_none_or(PoolEntry::may_be_older);
            let map_cache_bytes = former.and_then(|former| former.map_cache_bytes);
            *entry = Some(PoolEntry { map_cache_bytes, has_old_legs, ..new });
        };
        let pool = match opened {
            Ok(pool) => pool,
            Err(error) => {
                let refused = Problem::conflict(error.reason.clone());
                if matches!(error.cause, Some(ClosedCause::Full { .. })) {
                    // A pool that is too full to open must be recorded, so that it can be grown.
                    self.pools.registry.change(name, import).await?;
                    self.pools.insert(name, PoolSlot::closed(set, error));
                }
                return Err(refused);
            }
        };
        if let Err(problem) = self.pools.registry.change(name, import).await {
            close_unused(pool);
            return Err(problem);
        }
        if let Err(reason) = self.release_old_legs(name, &pool).await {
            close_unused(pool);
            self.pools.insert(name, PoolSlot::closed(set, OpenPoolError::refused(reason.clone())));
            return Err(failed(format!("pool {name} is not open: {reason}")));
        }
        self.pools.apply_map_cache(name, &pool);
        self.pools.insert(name, PoolSlot::open(set, pool.clone()));
        self.serve_pool(name, &pool);
        self.pools.resume_scrub(name, &pool).await;
        self.serve_locked(name, &pool).await;
        let volumes = pool.status().volumes;
        let mut outcome = format!("pool {name} is open and has {volumes} volumes");
        let missing = self.pools.redundancy(name, &pool.status());
        if let Some(missing) =
            missing.map(|copies| copies.missing_devices).filter(|count| *count > 0)
        {
            outcome += &format!(", without {missing} of its devices");
        }
        let unserved: Vec<String> = self.pools.slot(name)?.unserved.into_keys().collect();
        if !unserved.is_empty() {
            outcome += &format!(", of which are not served: {}", unserved.join(", "));
        }
        Ok(Outcome::changed(outcome).with_next(format!("flagstone pool status {name}")))
    }
}

/// Closes a pool that is not served, without waiting for its devices, which may hang.
fn close_unused(pool: Pool) {
    spawn_detached(async move {
        let _ = pool.close().await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the question and its answer, another copy got the name of the device.
    #[test]
    fn accepted_loss_is_the_one_that_was_shown() {
        let (id, other) = (PoolId([1; 16]), PoolId([2; 16]));
        let at = |id, update| PoolIdentity { id, update };
        let copy = |update| Some(DiskCopy { path: "/dev/sdc".to_owned(), update, rival: None });
        let lost = |found, recorded, copy| loss("fast", found, recorded, copy).unwrap();
        let shown = lost(at(id, 7), Some(at(id, 8)), None);
        let accepted = AcceptedLoss::new(true, Some(shown.clone()));
        assert_eq!(accepted.check(&shown), Ok(()));
        for now in [
            lost(at(id, 6), Some(at(id, 8)), None),
            lost(at(id, 7), Some(at(id, 9)), None),
            lost(at(id, 7), None, copy(8)),
            lost(at(other, 7), Some(at(id, 8)), None),
        ] {
            assert!(accepted.check(&now).unwrap_err().contains("have changed"), "{now}");
            assert_eq!(AcceptedLoss::new(true, None).check(&now), Ok(()));
            assert!(AcceptedLoss::new(false, Some(now.clone())).check(&now).is_err());
        }
        // Another pool of the name, of which the devices became an older copy; and another copy.
        for (before, after) in [
            (lost(at(other, 7), Some(at(id, 8)), None), lost(at(other, 6), Some(at(id, 8)), None)),
            (lost(at(id, 7), None, copy(8)), lost(at(other, 7), None, copy(8))),
        ] {
            assert!(AcceptedLoss::new(true, Some(before)).check(&after).is_err());
        }
    }

    #[test]
    fn import_beside_two_rivals_is_refused() {
        let copy = |rival: Option<&str>| {
            let rival = rival.map(str::to_owned);
            DiskCopy { path: "/dev/sdc".to_owned(), update: 7, rival }
        };
        let refused = check_rival(Some(&copy(Some("/dev/sdd")))).unwrap_err();
        assert!(refused.contains("/dev/sdc and /dev/sdd"), "{refused}");
        assert_eq!((check_rival(Some(&copy(None))), check_rival(None)), (Ok(()), Ok(())));
    }

    #[test]
    fn import_of_less_than_was_recorded_names_the_loss() {
        let (id, other) = (PoolId([1; 16]), PoolId([2; 16]));
        let at = |id, update| PoolIdentity { id, update };
        let copy = |update| Some(DiskCopy { path: "/dev/sdc".to_owned(), update, rival: None });
        for (recorded, copy, part) in [
            (None, None, None),
            (Some(at(id, 7)), None, None),
            (Some(at(id, 6)), copy(7), None),
            (Some(at(id, 8)), None, Some("had 8")),
            (Some(at(other, 1)), None, Some("another pool")),
            (None, copy(8), Some("/dev/sdc")),
            (Some(at(id, 7)), copy(8), Some("/dev/sdc")),
        ] {
            let lost = loss("fast", at(id, 7), recorded, copy.clone());
            let is_expected = match (&lost, part) {
                (Some(lost), Some(part)) => lost.contains(part),
                (lost, part) => lost.is_none() && part.is_none(),
            };
            assert!(is_expected, "{recorded:?} {copy:?}: {lost:?}");
        }
    }
}
