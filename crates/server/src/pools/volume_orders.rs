//! Orders on volumes of pools: create, resize, set, rename and delete. A dry run takes the same
//! steps up to the first change.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_config::{Subsystem, Volume};
use flagstone_mirror::ondisk::locate::{is_found_after_growth, replica_end};
use flagstone_pool::{Pool, PoolVolume, VolumeEncryption, VolumeError, VolumeInfo, VolumeOptions};
use flagstone_units::display::size;
use flagstone_units::exact_size;
use serde_json::Value;

use super::dedup;
use super::key_files::{self, KeyChange};
use super::legs;
use super::orders::Outcome;
use super::received_from::RECEIVED_FROM_KEY;
use super::settings::{self, KEY_FILE_KEY, Settings};
use super::volume_state::{VolumeOrder, VolumeState};
use super::{PoolState, failed};
use crate::http::Problem;
use crate::reservations::remove_records;
use crate::serve::Server;
use crate::subsystems::{allowed_hosts, nqn};
use crate::volume::{PoolPlace, ServedVolume};

/// `volume create`
pub(crate) struct MakeVolume {
    pub(crate) name: String,
    pub(crate) pool: String,
    pub(crate) size_bytes: u64,
    pub(crate) thick: bool,
    pub(crate) settings: Settings,
    pub(crate) dry_run: bool,
}

/// `volume set`
pub(crate) struct SetVolume {
    pub(crate) name: String,
    /// `None` keeps the reservation.
    pub(crate) thick: Option<bool>,
    /// Settings to replace; `null` removes one.
    pub(crate) settings: Settings,
    pub(crate) force: bool,
    pub(crate) dry_run: bool,
}

/// A volume of an open pool, served or not.
pub(crate) struct FoundVolume {
    pub(crate) pool_name: String,
    pub(crate) pool: Pool,
    pub(crate) info: VolumeInfo,
    pub(crate) served: Option<Rc<ServedVolume>>,
    pub(super) state: VolumeState,
}

impl FoundVolume {
    /// Checks that the state of the volume allows an order.
    ///
    /// # Errors
    /// 409 if it does not.
    pub(super) fn check(&self, order: VolumeOrder) -> Result<(), Problem> {
        self.state.check(&self.info.name, order).map_err(Problem::conflict)
    }
}

impl Server {
    /// Finds a volume of a pool; `None` if there is none of this name.
    ///
    /// # Errors
    /// 409 for a volume of the configuration, and for a name that two pools have.
    pub(super) fn find_in_pools(&self, name: &str) -> Result<Option<FoundVolume>, Problem> {
        self.find_in(None, name)
    }

    /// Finds a volume of any pool, or of the pool `only`.
    ///
    /// # Errors
    /// Without `only`, 409 for a volume of the configuration, and for a name that two pools have:
    /// the order must not reach the volume that is not served. 404 for an unknown pool, 409 for a
    /// closed one.
    fn find_in(&self, only: Option<&str>, name: &str) -> Result<Option<FoundVolume>, Problem> {
        let is_configured =
            |volume: &&Rc<ServedVolume>| volume.name() == name && volume.pool.is_none();
        let volumes = self.volumes();
        let mut all = Vec::new();
        match only {
            Some(only) => all.push((only.to_owned(), self.pools.open_pool(only)?)),
            None => {
                if let Some(volume) = volumes.iter().find(is_configured) {
                    let place = match volume.config.backing.leg() {
                        Some(leg) => format!("and its leg {} in pool {}", leg.volume, leg.pool),
                        None => "not in a pool".to_owned(),
                    };
                    return Err(Problem::conflict(format!(
                        "volume {name} is in the configuration, {place}: change it there"
                    )));
                }
                all.extend(self.pools.slots().into_iter().filter_map(
                    |(name, slot)| match slot.state {
                        PoolState::Open(pool) => Some((name, pool)),
                        PoolState::Changing { .. } | PoolState::Closed { .. } => None,
                    },
                ))
            }
        }
        let mut found: Option<FoundVolume> = None;
        for (pool_name, pool) in all {
            let Some(info) = pool.volume(name) else { continue };
            if let Some(other) = found {
                return Err(Problem::conflict(format!(
                    "the pools {} and {pool_name} both have a volume {name}: run flagstone volume \
                     rename or delete with --pool",
                    other.pool_name
                )));
            }
            let is_own = |volume: &&Rc<ServedVolume>| {
                let place = volume.pool.as_ref();
                volume.name() == name && place.is_some_and(|place| place.pool == pool_name)
            };
            let served = self.volumes().iter().find(is_own).cloned();
            let state = self.pools.state_of(&pool_name, &info);
            found = Some(FoundVolume { pool_name, pool, info, served, state });
        }
        Ok(found)
    }

    pub(super) fn required(&self, name: &str) -> Result<FoundVolume, Problem> {
        self.required_in(None, name)
    }

    pub(super) fn required_in(
        &self,
        only: Option<&str>,
        name: &str,
    ) -> Result<FoundVolume, Problem> {
        let known = || self.volumes().into_iter().filter(|volume| volume.pool.is_some());
        self.find_in(only, name)?.ok_or_else(|| {
            let detail = match self.pools.unknown_names().filter(|_| only.is_none()) {
                None => format!("no pool has a volume `{name}`"),
                Some(why) => format!("no open pool has a volume `{name}`, but {why}"),
            };
            Problem::not_found(detail).accepting(known().map(|volume| volume.name().to_owned()))
        })
    }

    /// Checks the settings of a volume, and that its names are free.
    pub(super) fn checked(
        &self,
        pool: &str,
        name: &str,
        settings: &Settings,
        own: Option<usize>,
    ) -> Result<(Volume, Subsystem), Problem> {
        settings::check_pool_keys(settings)?;
        settings::key_file(settings).map_err(Problem::invalid)?;
        let checked = settings::volume(&self.config, pool, name, settings);
        let (volume, subsystem) = checked.map_err(|mistakes| settings::problem(&mistakes))?;
        self.check_names(&volume, &subsystem, own).map_err(Problem::conflict)?;
        self.check_access(&subsystem).map_err(Problem::conflict)?;
        Ok((volume, subsystem))
    }

    /// Checks the settings of a volume that gets the name `name`. Returns the mirrored volume of
    /// the configuration of which it is then the leg.
    pub(super) fn check_name_of(
        &self,
        pool: &str,
        name: &str,
        settings: &Settings,
        own: Option<usize>,
    ) -> Result<Option<String>, Problem> {
        let mirrored = self.pools.mirrored(pool, name);
        match mirrored {
            Some(mirrored) => legs::check_settings(name, mirrored, settings)?,
            None => drop(self.checked(pool, name, settings, own)?),
        }
        Ok(mirrored.map(str::to_owned))
    }

    /// Creates a volume and serves it.
    pub(crate) async fn create_volume(&self, order: MakeVolume) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[&order.name], Some(&order.pool)).await?;
        let MakeVolume { name, pool: pool_name, size_bytes, thick, settings, dry_run } = &order;
        let pool = self.pools.open_pool(pool_name)?;
        let mut settings = settings.clone();
        settings::check_removed(&Settings::new(), &settings)?;
        settings.retain(|_, value| *value != Value::Null);
        if let Some(found) = self.find_in_pools(name)? {
            found.check(VolumeOrder::Create)?;
            let same = found.pool_name == *pool_name
                && found.info.size_bytes == *size_bytes
                && found.info.thick == *thick
                && settings::from_properties(&found.info.properties).as_ref() == Ok(&settings);
            return match same {
                true => Ok(Outcome::unchanged(format!("volume {name} exists already"))),
                false => Err(Problem::conflict(format!(
                    "volume {name} exists already in pool {}, with another size or other settings",
                    found.pool_name
                ))),
            };
        }
        let mirrored = self.check_name_of(pool_name, name, &settings, None)?;
        self.check_dedup(pool_name, &pool, name, &settings)?;
        if *size_bytes == 0 || !size_bytes.is_multiple_of(4096) {
            return Err(Problem::invalid("the size is a positive multiple of 4096 bytes"));
        }
        let status = pool.status();
        let free = status.capacity_bytes.saturating_sub(status.used_bytes + status.reserved_bytes);
        if *thick && *size_bytes > free {
            return Err(no_space(pool_name, free));
        }
        if *thick {
            let checked = pool.check_thick_creation(*size_bytes);
            checked.map_err(|error| problem(pool_name, error))?;
        }
        let key = key_files::for_creation(&self.pools.key_command, &settings).await?;
        let kind = if *thick { "thick, its space is reserved" } else { "thin" };
        let full = exact_size(*size_bytes);
        let mut outcome =
            Outcome::changed(format!("volume {name} of {full}, {kind}, is in pool {pool_name}"))
                .with_next(next_of(name, mirrored.as_deref()));
        if !*thick && *size_bytes > free {
            outcome.outcome += &format!(
                "; it is larger than the free space of {}, and writes fail when the pool is full",
                size(free)
            );
        }
        if key.is_some() {
            outcome.outcome += "; it is encrypted, so keep copies of its key file: without the key, \
                                its data is lost";
        }
        outcome.outcome += &dedup::change_note(pool_name, &Settings::new(), &settings);
        if *dry_run {
            return Ok(outcome);
        }
        let properties = settings::to_properties(&settings);
        let options = VolumeOptions { size_bytes: *size_bytes, thick: *thick, properties };
        let created = match &key {
            Some(key) => pool.create_encrypted_volume(name, &options, key).await,
            None => pool.create_volume(name, &options).await,
        };
        let device = created.map_err(|error| problem(pool_name, error))?;
        self.serve_created(pool_name, &pool, device).await?;
        tracing::info!("volume {name} of {full} was created in pool {pool_name}");
        Ok(outcome)
    }

    /// Serves a new volume. Deletes it again if it cannot be served, e.g. because its layers do not
    /// support its block size.
    pub(super) async fn serve_created(
        &self,
        pool_name: &str,
        pool: &Pool,
        device: Arc<PoolVolume>,
    ) -> Result<(), Problem> {
        let info = device.info().ok_or_else(|| failed("the volume was deleted"))?;
        let Err(why) = self.serve_pool_volume(pool_name, pool, &info) else { return Ok(()) };
        drop(device);
        pool.delete_volume(&info.name).await.map_err(|error| problem(pool_name, error))?;
        Err(Problem::conflict(why))
    }

    /// Grows a volume, and notifies hosts.
    pub(crate) async fn resize_volume(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[name], None).await?;
        let is_plain = |volume: &&Rc<ServedVolume>| volume.name() == name && volume.pool.is_none();
        if let Some(served) = self.volumes().iter().find(is_plain) {
            return self.resize_plain(served, size_bytes, dry_run);
        }
        let found = self.required(name)?;
        found.check(VolumeOrder::Resize)?;
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        let size_bytes = size_bytes.ok_or_else(|| {
            Problem::invalid(format!("name the new size of volume {name}, such as 300GiB"))
        })?;
        let (from, to) = (exact_size(info.size_bytes), exact_size(size_bytes));
        if size_bytes == info.size_bytes {
            return Ok(Outcome::unchanged(format!("volume {name} has {from} already")));
        }
        if size_bytes < info.size_bytes {
            return Err(Problem::conflict(format!(
                "volume {name} has {from}, and volumes do not shrink: data would be lost"
            )));
        }
        if !size_bytes.is_multiple_of(4096) {
            return Err(Problem::invalid("the size is a multiple of 4096 bytes"));
        }
        pool.check_resize(name, size_bytes).map_err(|error| problem(&pool_name, error))?;
        if let Some(mirrored) = self.pools.mirrored(&pool_name, name) {
            let leg: SharedDevice =
                pool.open_volume(name).map_err(|error| problem(&pool_name, error))?;
            let end = replica_end(&leg).await.map_err(|error| {
                Problem::conflict(format!("the replica on leg {name} cannot be found: {error}"))
            })?;
            if let Some(end) = end.filter(|end| !is_found_after_growth(*end, size_bytes)) {
                return Err(Problem::conflict(format!(
                    "the mirror would not find its metadata, which ends at {}: run flagstone mirror \
                     grow {mirrored}, or grow leg {name} by less first, to the next MiB or GiB, and \
                     run it then",
                    exact_size(end)
                )));
            }
        }
        let status = pool.status();
        let free = status.capacity_bytes.saturating_sub(status.used_bytes + status.reserved_bytes);
        if info.thick && size_bytes - info.size_bytes > free {
            return Err(no_space(&pool_name, free));
        }
        let outcome = match self.pools.mirrored(&pool_name, name) {
            Some(mirrored) => {
                Outcome::changed(format!("leg {name} of {mirrored} grows from {from} to {to}"))
                    .with_next(format!(
                        "when the legs of all nodes have grown: flagstone mirror grow {mirrored}"
                    ))
            }
            None => Outcome::changed(format!(
                "volume {name} grows from {from} to {to}; NVMe hosts see it at once, NBD clients \
                 when they connect again"
            )),
        };
        if dry_run {
            return Ok(outcome);
        }
        let resized = pool.resize_volume(name, size_bytes).await;
        resized.map_err(|error| problem(&pool_name, error))?;
        if let Some(served) = served {
            let nqn = nqn(&served.subsystem.nqn).map_err(|error| failed(error.to_string()))?;
            let reported = self.target.resize_namespace(&nqn, served.nsid);
            reported.map_err(|error| failed(error.to_string()))?;
        }
        tracing::info!("volume {name} was grown from {from} to {to}");
        Ok(outcome)
    }

    /// Lets a volume of the configuration follow its device, which has grown.
    fn resize_plain(
        &self,
        served: &ServedVolume,
        size_bytes: Option<u64>,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let name = served.name();
        if self.mirror_of(served.number).is_some() {
            let how = match served.config.backing.leg() {
                Some(leg) => {
                    format!("run flagstone volume resize {} SIZE on all nodes", leg.volume)
                }
                None => "grow the devices of all nodes".to_owned(),
            };
            return Err(Problem::conflict(format!(
                "volume {name} is mirrored: {how}, then run flagstone mirror grow {name}"
            )));
        }
        let device = served.device.get();
        let device = device.ok_or_else(|| {
            Problem::conflict(format!("volume {name} is not open yet: see flagstone status {name}"))
        })?;
        let geometry = device.geometry();
        // Looked at before hosts hear of the growth, which cannot be taken back.
        let present = device.present_bytes().unwrap_or_default();
        let present = present - present % u64::from(geometry.block_bytes);
        let before = geometry.size_bytes;
        let present = before.max(present);
        if let Some(wanted) = size_bytes.filter(|wanted| *wanted != present) {
            return Err(Problem::conflict(format!(
                "volume {name} cannot have {}, since its device has {}: grow the device first, and \
                 give its size or none",
                exact_size(wanted),
                exact_size(present)
            )));
        }
        let now = match dry_run {
            true => present,
            false => {
                device.refresh();
                device.geometry().size_bytes
            }
        };
        let (from, to) = (exact_size(before), exact_size(now));
        if before == now {
            return Ok(Outcome::unchanged(format!(
                "volume {name} has the size of its device, {to}"
            )));
        }
        if !dry_run {
            let nqn = nqn(&served.subsystem.nqn).map_err(|error| failed(error.to_string()))?;
            let reported = self.target.resize_namespace(&nqn, served.nsid);
            reported.map_err(|error| failed(error.to_string()))?;
            tracing::info!("volume {name} was grown from {from} to {to}");
        }
        Ok(Outcome::changed(format!(
            "volume {name} grows from {from} to {to}; NVMe hosts see it at once, NBD clients when \
             they connect again"
        )))
    }

    /// Changes settings. Limits, compression, deduplication and allowed hosts change at once. Other
    /// settings take the volume out of service for a moment, and so need detached hosts.
    pub(crate) async fn set_volume(&self, order: SetVolume) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[&order.name], None).await?;
        let SetVolume { name, thick, settings: change, force, dry_run } = &order;
        self.settle(name).await;
        let found = self.required(name)?;
        found.check(VolumeOrder::Set)?;
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        let before = settings::from_properties(&info.properties);
        let mut settings = match &before {
            Ok(settings) => settings.clone(),
            Err(_) if *force => Settings::new(),
            Err(why) => {
                return Err(Problem::conflict(format!(
                    "volume {name}: {why}; --force replaces all its settings, its allowed hosts \
                     included"
                )));
            }
        };
        settings::check_removed(&settings, change)?;
        settings::merge(&mut settings, change);
        let thick = thick.unwrap_or(info.thick);
        let former = before.clone().unwrap_or_default();
        let is_given = change.contains_key(KEY_FILE_KEY);
        let of = (pool_name.as_str(), &pool, &info);
        let key =
            key_files::change_of(&self.pools.key_command, of, &former, &settings, is_given).await?;
        let is_unlocked =
            info.encryption == VolumeEncryption::Locked && !matches!(key, KeyChange::Unchanged);
        if before.as_ref() == Ok(&settings) && thick == info.thick && !is_unlocked {
            return Ok(Outcome::unchanged(format!("volume {name} has these settings already")));
        }
        let own = served.as_ref().map(|served| served.number);
        let (volume, subsystem) = self.checked(&pool_name, name, &settings, own)?;
        self.check_dedup(&pool_name, &pool, name, &settings)?;
        let live = served.clone().filter(|served| is_live(served, &volume, &subsystem));
        if live.is_none() {
            self.check_detached(served.as_slice(), *force)?;
        }
        let mut outcome = Outcome::changed(match &live {
            _ if is_unlocked => format!("volume {name} is unlocked and served"),
            Some(_) => format!("volume {name} is changed while hosts are attached"),
            None => {
                format!("volume {name} is taken out of service and served with its new settings")
            }
        });
        outcome.outcome += &dedup::change_note(&pool_name, &former, &settings);
        if let KeyChange::Next { present, .. } = &key {
            outcome.outcome += "; its former key opens only old copies of the devices from then on";
            outcome.outcome += &key_files::former_key_users(&pool, name, present);
        }
        if thick && !info.thick {
            pool.check_thick(name).map_err(|error| problem(&pool_name, error))?;
        }
        let lost =
            before.is_err().then(|| "its former settings, allowed hosts included".to_owned());
        let outcome = outcome.losing(lost);
        if *dry_run {
            return Ok(outcome);
        }
        let _detached = match &live {
            Some(_) => None,
            None => Some(self.keep_detached(served.as_slice(), *force)?),
        };
        let mut properties = settings::to_properties(&settings);
        let origin = info.properties.get_key_value(RECEIVED_FROM_KEY);
        properties.extend(origin.map(|(key, value)| (key.clone(), value.clone())));
        let set = match &key {
            KeyChange::Next { present, next } => {
                pool.set_volume_key(name, (present, next), thick, properties).await
            }
            KeyChange::Unchanged | KeyChange::Same(_) => {
                pool.set_volume(name, thick, properties).await
            }
        };
        let unlocked = set.and_then(|()| match &key {
            KeyChange::Unchanged => Ok(()),
            KeyChange::Same(key) | KeyChange::Next { next: key, .. } => {
                pool.unlock_volume(name, key)
            }
        });
        unlocked.map_err(|error| problem(&pool_name, error))?;
        match live {
            Some(served) => {
                self.set_live(&served, volume, subsystem, settings).map_err(failed)?;
            }
            None => self.serve_again(&pool_name, &pool, served, name).await?,
        }
        tracing::info!("volume {name} has new settings");
        Ok(outcome)
    }

    fn set_live(
        &self,
        served: &ServedVolume,
        volume: Volume,
        subsystem: Subsystem,
        settings: Settings,
    ) -> Result<(), String> {
        if let Some(limiter) = &served.limiter {
            Server::set_limit(&volume, limiter)?;
        }
        let set_hosts = || {
            let hosts = allowed_hosts(&subsystem)?;
            let nqn = nqn(&subsystem.nqn)?;
            self.target.set_allowed_hosts(&nqn, hosts).map_err(crate::subsystems::unservable)
        };
        if subsystem.allow_hosts != served.subsystem.allow_hosts {
            set_hosts().map_err(|error| error.to_string())?;
        }
        let place = served.pool.as_ref().map(|place| PoolPlace { settings, ..place.clone() });
        let changed =
            Rc::new(ServedVolume { config: volume, subsystem, pool: place, ..served.clone() });
        let mut volumes = self.volumes.borrow_mut();
        if let Some(place) = volumes.iter_mut().find(|other| other.number == served.number) {
            *place = changed;
        }
        Ok(())
    }

    /// Serves a volume with the state that the pool has now.
    pub(super) async fn serve_again(
        &self,
        pool_name: &str,
        pool: &Pool,
        served: Option<Rc<ServedVolume>>,
        name: &str,
    ) -> Result<(), Problem> {
        if let Some(served) = served {
            let retired = self.retire(&served).await;
            retired.map_err(|why| {
                failed(format!("volume {name} is changed, and {why}: it is served when they have"))
            })?;
        }
        let info = pool.volume(name);
        let info = info.ok_or_else(|| failed("the volume was deleted"))?;
        self.serve_pool_volume(pool_name, pool, &info).map_err(|why| {
            let mut slots = self.pools.slots.borrow_mut();
            if let Some(slot) = slots.get_mut(pool_name) {
                slot.unserved.insert(name.to_owned(), why.clone());
            }
            failed(format!("volume {name} is changed, but not served: {why}"))
        })
    }

    /// Renames a volume. Its UUID stays; its NQN and export follow the name unless they are set.
    /// `only` selects the pool of a name that two pools have.
    pub(crate) async fn rename_volume(
        &self,
        only: Option<&str>,
        name: &str,
        to: &str,
        force: bool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[name, to], only).await?;
        self.settle(name).await;
        self.settle(to).await;
        if self.find_in(only, name)?.is_none() && self.find_in(only, to)?.is_some() {
            if only.is_none() {
                self.pools.check_absent("volume", name)?;
            }
            let outcome = format!("there is a volume {to}, and none named {name}: nothing to do");
            return Ok(Outcome::unchanged(outcome));
        }
        let found = self.required_in(only, name)?;
        found.check(VolumeOrder::Rename)?;
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        if name == to {
            return Ok(Outcome::unchanged(format!("the volume is named {to} already")));
        }
        if self.find_in_pools(to)?.is_some() {
            return Err(Problem::conflict(format!("there is a volume {to} already")));
        }
        let settings = settings::from_properties(&info.properties).map_err(Problem::conflict)?;
        let own = served.as_ref().map(|served| served.number);
        let mirrored = self.check_name_of(&pool_name, to, &settings, own)?;
        self.check_detached(served.as_slice(), force)?;
        let mut outcome = Outcome::changed(format!("volume {name} is renamed to {to}"));
        if let Some(mirrored) = &mirrored {
            outcome.outcome += &format!(", the leg of mirrored volume {mirrored}");
            let loss =
                format!("the content of volume {name}, if the mirror of {mirrored} replaces it");
            outcome = outcome.losing(Some(loss)).with_next(next_of(to, Some(mirrored)));
        }
        if dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(served.as_slice(), force)?;
        let renamed = pool.rename_volume(name, to).await;
        renamed.map_err(|error| problem(&pool_name, error))?;
        if let Some(slot) = self.pools.slots.borrow_mut().get_mut(&pool_name) {
            slot.unserved.remove(name);
        }
        self.serve_again(&pool_name, &pool, served, to).await?;
        tracing::info!("volume {name} was renamed to {to}");
        Ok(outcome)
    }

    /// Deletes a volume with its data. `only` selects the pool of a name that two pools have.
    pub(crate) async fn delete_volume(
        &self,
        only: Option<&str>,
        name: &str,
        force: bool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[name], only).await?;
        let Some(found) = self.find_in(only, name)? else {
            if only.is_none() {
                self.pools.check_absent("volume", name)?;
            }
            return Ok(Outcome::unchanged(format!("there is no volume {name}: nothing to do")));
        };
        found.check(VolumeOrder::Delete)?;
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        let own = format!("{name}@");
        let snapshots = pool.snapshots();
        let snapshots = snapshots.iter().filter(|snapshot| snapshot.name.starts_with(&own)).count();
        if snapshots > 0 {
            let name = name.to_owned();
            return Err(problem(&pool_name, VolumeError::HasSnapshots { name, snapshots }));
        }
        self.check_detached(served.as_slice(), force)?;
        let (full, used) = (exact_size(info.size_bytes), size(info.used_bytes));
        let outcome = Outcome::changed(format!("volume {name} is deleted from pool {pool_name}"))
            .losing(Some(format!("volume {name} of {full}, of which {used} are used")));
        if dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(served.as_slice(), force)?;
        self.pools.receivers.borrow_mut().remove(name);
        if let Some(served) = served
            && let Err(why) = self.retire(&served).await
        {
            tracing::warn!("{why}; it is deleted nevertheless");
        }
        let deleted = pool.delete_volume(name).await;
        deleted.map_err(|error| problem(&pool_name, error))?;
        let settings = settings::from_properties(&info.properties).unwrap_or_default();
        let volume = settings::volume(&self.config, &pool_name, name, &settings).ok();
        let uuid = volume.and_then(|(volume, _)| volume.uuid);
        remove_records(self.forget_reservations(info.uuid, uuid)).await;
        self.end_retirement(info.uuid, None);
        if let Some(slot) = self.pools.slots.borrow_mut().get_mut(&pool_name) {
            slot.unserved.remove(name);
        }
        tracing::info!("volume {name} was deleted from pool {pool_name}");
        Ok(outcome)
    }
}

/// True if only limits and allowed hosts differ.
fn is_live(served: &ServedVolume, volume: &Volume, subsystem: &Subsystem) -> bool {
    let others = |volume: &Volume| {
        let mut volume = volume.clone();
        volume.layers.retain(|layer| !matches!(layer, flagstone_config::LayerConfig::Limit(_)));
        volume
    };
    let allow_hosts = served.subsystem.allow_hosts.clone();
    let has_same_limits = served.config.layers.len() == volume.layers.len() || {
        // A stack that was made without a limit gets it on top.
        let is_first =
            matches!(volume.layers.first(), None | Some(flagstone_config::LayerConfig::Limit(_)));
        is_first || volume.layers.len() < served.config.layers.len()
    };
    others(&served.config) == others(volume)
        && has_same_limits
        && served.subsystem == Subsystem { allow_hosts, ..subsystem.clone() }
}

/// Next step after an order that made a volume, or the leg of a mirrored one.
pub(super) fn next_of(name: &str, mirrored: Option<&str>) -> String {
    match mirrored {
        Some(mirrored) => format!("flagstone mirror status {mirrored}, of which it is the leg"),
        None => format!("flagstone volume show {name} has the addresses to attach"),
    }
}

fn no_space(pool: &str, free: u64) -> Problem {
    let free = size(free);
    Problem::conflict(format!("pool {pool} has {free} free: reserve less, or make the volume thin"))
}

pub(crate) fn problem(pool: &str, error: VolumeError) -> Problem {
    match error {
        VolumeError::Io(error) => {
            failed(format!("pool {pool} cannot write: {error}; see flagstone pool status {pool}"))
        }
        refused => Problem::conflict(refused.to_string()),
    }
}
