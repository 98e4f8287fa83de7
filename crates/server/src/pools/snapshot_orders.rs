//! Orders on snapshots and clones: create, roll back, delete, clone and promote. A dry run takes
//! the same steps up to the first change.

use flagstone_pool::stream::receive::RECEIVED_KEY;
use flagstone_pool::{Pool, SnapshotInfo, VolumeError, VolumeInfo};
use flagstone_units::display::size;
use flagstone_units::exact_size;
use serde_json::Value;

use super::PoolState;
use super::dedup;
use super::orders::Outcome;
use super::retire::not_retired;
use super::settings::{self, KEY_FILE_KEY, Settings};
use super::stream_orders::end_receiving;
use super::volume_orders::{FoundVolume, next_of, problem};
use super::volume_state::VolumeOrder;
use crate::http::Problem;
use crate::serve::Server;

/// `volume clone`
pub(crate) struct CloneVolume {
    pub(crate) name: String,
    /// Full name of the snapshot.
    pub(crate) snapshot: String,
    pub(crate) settings: Settings,
    pub(crate) dry_run: bool,
}

/// Splits a full name into volume and snapshot.
///
/// # Errors
/// 422 unless it has the form `VOLUME@SNAPSHOT`.
pub(super) fn parts(full: &str) -> Result<(&str, &str), Problem> {
    let parts = full.split_once('@').filter(|(volume, name)| !volume.is_empty() && is_name(name));
    parts.ok_or_else(|| {
        let help = "write VOLUME@SNAPSHOT, such as db@before-upgrade";
        Problem::invalid(format!("`{full}` is no name of a snapshot: {help}"))
    })
}

/// Volume part of a name that may be malformed.
pub(super) fn volume_of(full: &str) -> &str {
    full.split_once('@').map_or(full, |(volume, _)| volume)
}

/// True for a name that needs no quoting in a path, a shell or a log.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_.:".contains(c);
    !name.is_empty() && name.chars().all(plain)
}

fn find(pool: &Pool, full: &str) -> Option<SnapshotInfo> {
    pool.snapshots().into_iter().find(|snapshot| snapshot.name == full)
}

/// Rolls a volume back, and ends its receive. After a crash in between, the receive begins again:
/// the volume has nothing of the stream any more.
async fn roll_back(pool: &Pool, info: &VolumeInfo, snapshot: &str) -> Result<(), VolumeError> {
    let (name, mut properties) = (&info.name, info.properties.clone());
    if properties.remove(RECEIVED_KEY).is_some() {
        pool.set_volume(name, info.thick, properties.clone()).await?;
    }
    pool.rollback(name, snapshot).await?;
    match end_receiving(&mut properties) {
        true => pool.set_volume(name, info.thick, properties).await,
        false => Ok(()),
    }
}

impl Server {
    /// Snapshots of the open pools, with the names of their pools.
    pub(crate) fn snapshots(&self) -> Vec<(String, SnapshotInfo)> {
        let mut found = Vec::new();
        for (name, slot) in self.pools.slots() {
            if let PoolState::Open(pool) = slot.state {
                let of_pool = pool.snapshots().into_iter();
                found.extend(of_pool.map(|snapshot| (name.clone(), snapshot)));
            }
        }
        found
    }

    /// The pool and the description of a snapshot.
    ///
    /// # Errors
    /// 404.
    pub(crate) fn find_snapshot(&self, full: &str) -> Result<(FoundVolume, SnapshotInfo), Problem> {
        let local = self.local_name(full)?;
        if local != full {
            return Err(Problem::not_found(format!(
                "the volume of {full} is mirrored, and this node has the snapshot as {local}, if at \
                 all: name {local}"
            )));
        }
        let found = self.required(parts(full)?.0)?;
        let snapshot = find(&found.pool, full);
        match snapshot {
            Some(snapshot) => Ok((found, snapshot)),
            None => {
                let own = format!("{}@", found.info.name);
                let known = found.pool.snapshots().into_iter().map(|snapshot| snapshot.name);
                Err(Problem::not_found(format!("there is no snapshot `{full}`"))
                    .accepting(known.filter(|name| name.starts_with(&own))))
            }
        }
    }

    /// Takes snapshots of volumes of one pool, at one point of the order of writes.
    pub(crate) async fn create_snapshots(
        &self,
        names: &[String],
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let named: Vec<&str> = names.iter().map(|full| volume_of(full)).collect();
        let _order = self.pools.order_on(&named, None).await?;
        let mut volumes = Vec::new();
        let mut existing = Vec::new();
        let mut pools: Vec<(String, Pool)> = Vec::new();
        let own = parts(names.first().map_or("", String::as_str))?.1;
        for full in names {
            let (volume, snapshot) = parts(full)?;
            if snapshot != own {
                return Err(Problem::invalid(format!(
                    "snapshots that are taken together have one name: {own} and {snapshot} differ"
                )));
            }
            let found = self.required(volume)?;
            found.check(VolumeOrder::TakeSnapshot)?;
            let FoundVolume { pool_name, pool, .. } = found;
            if volumes.contains(&volume) {
                return Err(Problem::invalid(format!("volume {volume} is named twice")));
            }
            volumes.push(volume);
            existing.extend(find(&pool, full));
            pools.push((pool_name, pool));
        }
        let (pool_name, pool) = pools.swap_remove(0);
        if let Some((other, _)) = pools.iter().find(|(other, _)| *other != pool_name) {
            return Err(Problem::conflict(format!(
                "the volumes are in the pools {pool_name} and {other}: snapshots at one point of \
                 the order of writes need one pool"
            )));
        }
        let listed = names.join(", ");
        if let Some(first) = existing.first() {
            let together = existing.iter().all(|snapshot| snapshot.id == first.id);
            return match existing.len() == names.len() && together {
                true => Ok(Outcome::unchanged(format!("{listed} exist already"))),
                false => Err(Problem::conflict(format!(
                    "snapshot {} exists already, and was not taken together with the others",
                    first.name
                ))),
            };
        }
        let outcome = match names {
            [name] => format!("snapshot {name} is taken"),
            _ => format!("snapshots {listed} are taken at one point of the order of writes"),
        };
        let caveats = volumes.iter().filter_map(|volume| self.resync_caveat(&pool_name, volume));
        let outcome = Outcome::changed(outcome + &caveats.collect::<String>())
            .with_next(format!("flagstone volume clone {} NAME makes a volume of it", names[0]));
        if dry_run {
            let checked = pool.check_snapshot(&volumes, own);
            return checked.map(|()| outcome).map_err(|error| problem(&pool_name, error));
        }
        let taken = pool.create_snapshot(&volumes, own).await;
        taken.map_err(|error| problem(&pool_name, error))?;
        tracing::info!("snapshots {listed} were taken in pool {pool_name}");
        Ok(outcome)
    }

    /// Replaces the content of a volume by that of one of its snapshots.
    pub(crate) async fn rollback(
        &self,
        full: &str,
        force: bool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        if self.is_mirrored(parts(full)?.0) {
            return self.roll_back_mirrored(full, dry_run).await;
        }
        let _order = self.pools.order_on(&[parts(full)?.0], None).await?;
        let (volume, own) = parts(full)?;
        self.settle(volume).await;
        let (found, snapshot) = self.find_snapshot(full)?;
        found.check(VolumeOrder::Rollback)?;
        let found_bytes = found.state.received_bytes();
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        self.check_detached(served.as_slice(), force)?;
        let sizes = match snapshot.size_bytes == info.size_bytes {
            true => String::new(),
            false => format!(", and its size of {}", exact_size(snapshot.size_bytes)),
        };
        let receiving = match found_bytes {
            Some(_) => "; the stream that it was receiving begins again",
            None => "",
        };
        let outcome = Outcome::changed(format!(
            "volume {volume} gets the content of {full}{sizes}{receiving}"
        ))
        .losing(Some(format!("everything written to volume {volume} since {full} was taken")));
        // Before hosts are disconnected.
        pool.check_rollback(volume, own).map_err(|error| problem(&pool_name, error))?;
        if dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(served.as_slice(), force)?;
        if let Some(served) = &served {
            self.retire(served).await.map_err(|why| not_retired(&why))?;
        }
        // A client that streams into the volume must begin again.
        self.pools.receivers.borrow_mut().remove(volume);
        let done = roll_back(&pool, &info, own).await;
        let serving = self.serve_again(&pool_name, &pool, None, volume).await;
        done.map_err(|error| problem(&pool_name, error))?;
        serving?;
        tracing::info!("volume {volume} was rolled back to {full}");
        Ok(outcome)
    }

    /// Deletes a snapshot.
    pub(crate) async fn delete_snapshot(
        &self,
        full: &str,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[volume_of(full)], None).await?;
        // An imported pool may have any names: at least allow deletion.
        let (volume, _) = full.split_once('@').map_or_else(|| parts(full), Ok)?;
        let found = self.find_in_pools(volume)?;
        let is_found = found.is_some();
        let snapshot = found.as_ref().and_then(|found| find(&found.pool, full));
        let (Some(found), Some(snapshot)) = (found, snapshot) else {
            parts(full)?;
            if !is_found {
                self.pools.check_absent("snapshot", full)?;
            }
            return Ok(Outcome::unchanged(format!("there is no snapshot {full}: nothing to do")));
        };
        found.check(VolumeOrder::DeleteSnapshot)?;
        let FoundVolume { pool_name, pool, .. } = found;
        if snapshot.users.len() > 1 {
            let error =
                VolumeError::InUse { snapshot: full.to_owned(), users: snapshot.users.join(", ") };
            return Err(problem(&pool_name, error));
        }
        let outcome = Outcome::changed(format!("snapshot {full} is deleted from pool {pool_name}"))
            .losing(Some(format!(
                "snapshot {full}, which refers to {}",
                size(snapshot.referenced_bytes)
            )));
        if dry_run {
            return Ok(outcome);
        }
        let deleted = pool.delete_snapshot(full).await;
        deleted.map_err(|error| problem(&pool_name, error))?;
        tracing::info!("snapshot {full} was deleted from pool {pool_name}");
        Ok(outcome)
    }

    /// Creates a volume with the content of a snapshot, and serves it.
    pub(crate) async fn clone_volume(&self, order: CloneVolume) -> Result<Outcome, Problem> {
        let CloneVolume { name, snapshot, settings, dry_run } = &order;
        // Of a mirrored volume, the clone continues from this node's snapshot.
        let full = &self.local_name(snapshot)?;
        let _order = self.pools.order_on(&[name.as_str(), volume_of(full)], None).await?;
        let (FoundVolume { pool_name, pool, info, .. }, snapshot) = self.find_snapshot(full)?;
        let mut settings = settings.clone();
        settings::check_removed(&Settings::new(), &settings)?;
        settings.retain(|_, value| *value != Value::Null);
        if let Some(found) = self.find_in_pools(name)? {
            let mut own = settings::from_properties(&found.info.properties);
            if let (Ok(own), false) = (&mut own, settings.contains_key(KEY_FILE_KEY)) {
                // It was inherited.
                own.remove(KEY_FILE_KEY);
            }
            let same = found.info.origin.as_ref() == Some(full) && own.as_ref() == Ok(&settings);
            return match same {
                true => Ok(Outcome::unchanged(format!("volume {name} exists already"))),
                false => Err(Problem::conflict(format!(
                    "volume {name} exists already, and is no clone of {full} with these settings"
                ))),
            };
        }
        let inherited = settings::from_properties(&info.properties).map_err(Problem::conflict)?;
        let inherited = inherited.get(KEY_FILE_KEY);
        if settings.get(KEY_FILE_KEY).is_some_and(|given| Some(given) != inherited) {
            return Err(Problem::invalid(format!(
                "a clone has the encryption and the key file of {full}: leave {KEY_FILE_KEY} out; \
                 flagstone volume set {name} changes the key afterwards"
            )));
        }
        settings.extend(inherited.map(|path| (KEY_FILE_KEY.to_owned(), path.clone())));
        let mirrored = self.check_name_of(&pool_name, name, &settings, None)?;
        self.check_dedup(&pool_name, &pool, name, &settings)?;
        let bytes = exact_size(snapshot.size_bytes);
        let note = dedup::change_note(&pool_name, &Settings::new(), &settings);
        let outcome = Outcome::changed(format!("volume {name} of {bytes} begins as {full}{note}"))
            .with_next(next_of(name, mirrored.as_deref()));
        if *dry_run {
            return Ok(outcome);
        }
        let cloned = pool.clone_volume(full, name, settings::to_properties(&settings)).await;
        let device = cloned.map_err(|error| problem(&pool_name, error))?;
        self.serve_created(&pool_name, &pool, device).await?;
        tracing::info!("volume {name} was cloned from {full} in pool {pool_name}");
        Ok(outcome)
    }

    /// Makes a clone the owner of its ancestors.
    pub(crate) async fn promote_volume(
        &self,
        name: &str,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let _order = self.pools.order_on(&[name], None).await?;
        let found = self.required(name)?;
        found.check(VolumeOrder::Promote)?;
        let FoundVolume { pool_name, pool, info, .. } = found;
        let Some(origin) = &info.origin else {
            return Ok(Outcome::unchanged(format!(
                "volume {name} is no clone, or owns the snapshots from which it continues: \
                 nothing to do"
            )));
        };
        let outcome = Outcome::changed(format!(
            "volume {name} takes over {origin} and the snapshots before it, as {name}@…"
        ));
        if dry_run {
            let checked = pool.check_promotion(name);
            return checked.map(|()| outcome).map_err(|error| problem(&pool_name, error));
        }
        let promoted = pool.promote_volume(name).await;
        promoted.map_err(|error| problem(&pool_name, error))?;
        tracing::info!("volume {name} was promoted in pool {pool_name}");
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
    use flagstone_pool::{CreateOptions, NamedDevice, VolumeOptions};
    use flagstone_runtime::task::yield_now;
    use flagstone_runtime::{Buf, block_on, buf, spawn};

    use super::super::volume_state::RECEIVING_KEY;
    use super::*;

    /// After a crash in between, the receive continued at its position, in the content of the
    /// snapshot.
    #[test]
    fn rollback_forgets_the_position_of_a_receive_first() {
        block_on(async {
            let device = Arc::new(MemoryDevice::new(5 << 20, 512).unwrap());
            let devices = vec![NamedDevice { name: "/a".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let size = VolumeOptions { size_bytes: 4096, ..VolumeOptions::default() };
            let db = pool.create_volume("db", &size).await.unwrap();
            db.write(0, Buf::copy_of(&[1; 4096]).unwrap(), false).await.unwrap();
            pool.create_snapshot(&["db"], "a").await.unwrap();
            db.write(0, Buf::copy_of(&[2; 4096]).unwrap(), false).await.unwrap();
            let marks = [RECEIVING_KEY, RECEIVED_KEY].map(|key| (key.to_owned(), "x".to_owned()));
            pool.set_volume("db", false, BTreeMap::from(marks)).await.unwrap();
            let own = pool.clone();
            let rolled = spawn(async move {
                let info = own.volume("db").unwrap();
                roll_back(&own, &info, "a").await
            });
            while !rolled.is_finished() {
                let found = db.read(0, buf::alloc(4096).await).await.unwrap();
                let marks = pool.volume("db").unwrap().properties;
                assert!(found[0] == 2 || !marks.contains_key(RECEIVED_KEY), "{marks:?}");
                yield_now().await;
            }
            rolled.await.unwrap().unwrap();
            assert_eq!(db.read(0, buf::alloc(4096).await).await.unwrap()[0], 1);
            assert!(pool.volume("db").unwrap().properties.is_empty());
        })
        .unwrap();
    }

    #[test]
    fn names_of_snapshots_have_a_volume() {
        assert_eq!(parts("db@before-1.0").unwrap(), ("db", "before-1.0"));
        for bad in ["", "db", "@a", "db@", "db@a@b", "db@a b", "db@a/b", "db@\u{7}"] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }
}
