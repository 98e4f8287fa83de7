//! Orders on the log device of a pool: replacement, removal, and giving up a lost tail.

use std::path::PathBuf;
use std::rc::Rc;

use flagstone_host::local_ssd::volatile_model;
use flagstone_host::root::Root;
use flagstone_pool::VolumeInfo;
use flagstone_runtime::{spawn_blocking, time};

use super::open::OperatorConsent;
use super::orders::{answered, check_device};
use super::retire::not_retired;
use super::state_directory::PoolEntry;
use super::{Outcome, PoolSlot, PoolState, failed, open_devices};
use crate::http::Problem;
use crate::limits::OPEN_TIMEOUT;
use crate::serve::Server;

/// `pool set-log`.
pub(crate) struct SetLog {
    pub(crate) name: String,
    /// Path of the log device; `None` to remove it.
    pub(crate) log: Option<String>,
    /// See [`super::MakePool`].
    pub(crate) accept_ephemeral: bool,
    pub(crate) destroy_data: Vec<String>,
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
}

/// Data that may be lost with an ephemeral log device, whose content a stop of the machine erases.
pub(super) async fn ephemeral_loss(log: &str) -> Result<Option<String>, Problem> {
    let path = PathBuf::from(log);
    let look = move || volatile_model(&Root::new("/"), &path);
    let model = spawn_blocking("host", look).await.map_err(|error| failed(error.to_string()))?;
    Ok(model.map(|model| {
        format!(
            "if the machine stops unplanned, flushed writes that only {log} has, which is erased then \
             ({model})"
        )
    }))
}

/// # Errors
/// 409 for an ephemeral log device without consent.
pub(super) fn check_consent(loss: Option<String>, accepted: bool) -> Result<(), Problem> {
    match loss {
        Some(loss) if !accepted => Err(Problem::conflict(format!(
            "the log device is ephemeral, and no mirror covers it: this would lose, {loss}; to accept \
             that, use --yes (`accept_ephemeral`)"
        ))),
        _ => Ok(()),
    }
}

impl Server {
    /// Replaces or removes the log device of a pool. Its volumes are out of service meanwhile.
    pub(crate) async fn set_log(self: &Rc<Self>, order: SetLog) -> Result<Outcome, Problem> {
        let permit = self.pools.order(&order.name).await?;
        let SetLog { name, log, accept_ephemeral, destroy_data, force, dry_run } = &order;
        self.pools.writable()?;
        let pool = self.pools.open_pool(name)?;
        let former = self.pools.log_path(name);
        let status = pool.status().log;
        // A device under the path of a missing log device is another device.
        let is_in_use = status.as_ref().map(|log| log.name.as_ref()) == log.as_ref().map(Some);
        if former == *log && is_in_use {
            let has =
                log.as_ref().map_or("no log device".to_owned(), |log| format!("log device {log}"));
            return Ok(Outcome::unchanged(format!("pool {name} has {has} already")));
        }
        if pool.status().redundancy.is_some() {
            return Err(Problem::conflict(format!(
                "pool {name} has two copies of everything, and takes no log device, which would be a \
                 single copy of the newest changes"
            )));
        }
        if let Some(device) = destroy_data.iter().find(|device| Some(*device) != log.as_ref()) {
            return Err(Problem::invalid(format!(
                "{device} is to be destroyed, but is not the new log device"
            )));
        }
        // Ignore errors: closing the pool only needs a log device that answers.
        if time::timeout(OPEN_TIMEOUT, pool.ask_log_device()).await.is_err() {
            return Err(Problem::conflict(format!(
                "the log device of pool {name} does not answer, or takes no writes, and has what was \
                 written last: wait until it does, or detach it and restart the server"
            )));
        }
        let slot = self.pools.slot(name)?;
        let mut outcome = Outcome::changed(match log {
            Some(log) => format!("pool {name} has log device {log}"),
            None => format!("pool {name} has no log device"),
        });
        let (mut opened, mut ephemeral) = (Vec::new(), None);
        if let Some(log) = log {
            if slot.set.devices.contains(log) {
                return Err(Problem::conflict(format!("{log} is a device of pool {name}")));
            }
            self.check_unused(name, std::slice::from_ref(log))?;
            let new = answered(log, OPEN_TIMEOUT, async {
                check_device(log, destroy_data.contains(log)).await?;
                open_devices(std::slice::from_ref(log)).await.map_err(Problem::conflict)
            });
            opened = new.await?;
            ephemeral = ephemeral_loss(log).await?;
            let erased = destroy_data.contains(log).then(|| format!("everything on {log}"));
            let losses: Vec<String> = erased.into_iter().chain(ephemeral.clone()).collect();
            outcome = outcome.losing((!losses.is_empty()).then(|| losses.join("; ")));
        }
        let volumes = self.volumes_of(name);
        self.check_detached(&volumes, *force)?;
        self.check_legs_idle(name, *force)?;
        if *dry_run {
            return Ok(outcome);
        }
        check_consent(ephemeral, *accept_ephemeral)?;
        let _detached = self.keep_detached(&volumes, *force)?;
        self.retire_all(volumes).await.map_err(|why| not_retired(&why))?;
        let what = "its log device is being changed, and its devices have not answered";
        self.pools.insert(name, PoolSlot::changing(slot.set.clone(), what));
        self.release_legs(name).await;
        self.pools.halt_scrub(name).await;
        self.pools.end_receivers(&pool);
        self.pools.removals.borrow_mut().remove(name);
        let PoolSlot { set, state, .. } = slot;
        drop(state);
        let (server, own, log) = (self.clone(), name.clone(), log.clone());
        let overwrite = !destroy_data.is_empty();
        let work = async move || {
            let set = pool.set_log_device(opened.pop(), overwrite).await;
            // Closes the devices, and so unlocks them.
            drop(pool);
            set.map_err(|error| Problem::conflict(error.to_string()))?;
            let change = |entry: &mut Option<PoolEntry>| {
                if let Some(entry) = entry {
                    entry.log = log;
                }
            };
            server.pools.registry.change(&own, change).await
        };
        self.reopen(name, set, what, permit, OperatorConsent::default(), work).await?;
        Ok(outcome)
    }

    /// Gives up the tail of a lost log device: opens the pool, and serves its volumes without the
    /// lost changes.
    pub(crate) async fn give_up_tail(
        self: &Rc<Self>,
        name: &str,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let permit = self.pools.order(name).await?;
        self.pools.writable()?;
        self.pools.end_opening(name, dry_run);
        let slot = self.pools.slot(name)?;
        let outcome = Outcome::changed(format!(
            "pool {name} continues without the writes that only its log device had"
        ));
        let loss = "writes that were flushed, and orders that were confirmed, shortly before the log \
                    device was lost";
        match slot.state {
            PoolState::Open(pool) => {
                // Mirrors restore their legs from their peers.
                let is_given_up = |volume: &VolumeInfo| {
                    volume.incomplete && self.pools.mirrored(name, &volume.name).is_none()
                };
                let incomplete = pool.volumes().into_iter().filter(is_given_up);
                let names: Vec<String> = incomplete.map(|volume| volume.name).collect();
                let legs = self.legs_without_source(name, &pool);
                if names.is_empty() {
                    return Ok(Outcome::unchanged(format!(
                        "no volume of pool {name} waits for this order: nothing to do{legs}"
                    )));
                }
                let outcome = Outcome { outcome: outcome.outcome + &legs, ..outcome };
                let outcome = outcome.losing(Some(format!("of {}: {loss}", names.join(", "))));
                if dry_run {
                    return Ok(outcome);
                }
                for volume in &names {
                    let accepted = pool.accept_incomplete(volume).await;
                    accepted.map_err(|error| failed(error.to_string()))?;
                }
                tracing::warn!("pool {name}: writes lost with the log device were given up");
                self.serve_withheld(name, &pool, &names);
                Ok(outcome)
            }
            PoolState::Changing { what } => {
                Err(Problem::conflict(format!("pool {name} is not open: {what}")))
            }
            PoolState::Closed { .. } => {
                let legs = self.losses_of_legs(name);
                let loss = format!("{loss}, unless the log device comes back first{legs}");
                let outcome = outcome.losing(Some(loss));
                if dry_run {
                    return Ok(outcome);
                }
                let consent = OperatorConsent { lost_tail: true, ..OperatorConsent::default() };
                let what = "it is being opened, and its devices have not answered";
                self.reopen(name, slot.set, what, permit, consent, async || Ok(())).await?;
                tracing::warn!("pool {name} was opened without writes of its log device");
                Ok(outcome)
            }
        }
    }

    fn serve_withheld(&self, name: &str, pool: &flagstone_pool::Pool, names: &[String]) {
        let infos = pool.volumes().into_iter().filter(|info| names.contains(&info.name));
        for info in infos {
            self.serve_or_note(name, pool, &info);
        }
    }
}
