//! Redundancy: the devices of pools with two copies, which open without some of them.
//!
//! Invariants:
//! - the state directory records the identifier of each device with its path, so a missing device
//!   keeps its path, and an order can name it;
//! - a device is left out of an opening only if the others are a whole pool.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_pool::limits::BLOCK_BYTES;
use flagstone_pool::{
    DeviceSet, LegInfo, LegState, NamedDevice, Pool, PoolError, PoolId, PoolIdentity, PoolStatus,
};
use flagstone_runtime::time::{self, Instant};

use super::state_directory::PoolEntry;
use super::{PoolState, Pools, open_devices};
use crate::api::pool_document::{
    PairDeviceDocument, PairDeviceStateName, PairDocument, RedundancyDocument, RedundancyName,
};
use crate::limits::OPEN_TIMEOUT;
use crate::serve::Server;

/// Devices of a pair.
const PAIR: usize = 2;

/// Devices of a pool with redundancy, as this server sees them.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Reasons why devices were left out of the last opening, by path.
    left_out: BTreeMap<String, String>,
    /// State of each device, in the order of the device table.
    seen: Vec<Seen>,
}

/// State of a device since this server found it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    state: PairDeviceStateName,
    begun: Instant,
    /// Seconds since 1970.
    since_seconds: u64,
    /// Bytes that were rebuilt then.
    rebuilt_bytes: u64,
}

/// Recorded devices that an import of other ones keeps.
#[derive(Debug, Default)]
pub(super) struct KeptPaths {
    pub(super) paths: Vec<String>,
    /// Identifiers by path.
    pub(super) device_ids: BTreeMap<String, String>,
}

/// Opened devices of a pool, and the ones that were left out.
pub(super) struct PresentDevices {
    pub(super) devices: Vec<NamedDevice>,
    /// Reasons by path.
    pub(super) left_out: BTreeMap<String, String>,
}

fn state_of(leg: &LegInfo) -> PairDeviceStateName {
    match (leg.state, leg.failure) {
        (LegState::InSync, _) => PairDeviceStateName::InSync,
        (LegState::Behind { .. }, _) => PairDeviceStateName::Rebuilding,
        (LegState::Missing, Some(_)) => PairDeviceStateName::Failed,
        (LegState::Missing, None) => PairDeviceStateName::Missing,
    }
}

/// Paths of the devices of a pool with redundancy, in the order of the device table. `None` for a
/// missing device that was never seen under a recorded path.
fn paths_of(legs: &[LegInfo], entry: &PoolEntry) -> Vec<Option<String>> {
    let recorded: BTreeSet<&String> = entry.devices.iter().collect();
    let mut paths: Vec<Option<String>> = legs
        .iter()
        .map(|leg| Some(leg.device.clone()).filter(|path| recorded.contains(path)))
        .collect();
    let mut used: BTreeSet<String> = paths.iter().flatten().cloned().collect();
    let mut assign = |of: &dyn Fn(usize) -> Option<String>| {
        for (position, path) in paths.iter_mut().enumerate() {
            if path.is_none()
                && let Some(found) = of(position)
                && recorded.contains(&found)
                && used.insert(found.clone())
            {
                *path = Some(found);
            }
        }
    };
    let ids = &entry.device_ids;
    assign(&|position| {
        let id = legs[position].id.to_string();
        ids.iter().find(|(_, own)| **own == id).map(|(path, _)| path.clone())
    });
    // A replacement whose superblock was not written: the pool has its identifier already.
    let is_new = |position: usize| !ids.values().any(|id| *id == legs[position].id.to_string());
    assign(&|position| entry.adding.clone().filter(|_| !ids.is_empty() && is_new(position)));
    if ids.is_empty() && entry.devices.len() == legs.len() {
        // A crash after the creation of the pool: the paths have its order.
        assign(&|position| entry.devices.get(position).cloned());
    }
    paths
}

/// Records the present devices of a pool with redundancy in its entry.
pub(super) fn record(entry: &mut PoolEntry, legs: &[LegInfo]) {
    let paths = paths_of(legs, entry);
    let known = || paths.iter().zip(legs).filter_map(|(path, leg)| Some((path.clone()?, leg)));
    entry.device_ids = known().map(|(path, leg)| (path, leg.id.to_string())).collect();
    entry.devices = known().map(|(path, _)| path).collect();
    (entry.adding, entry.removing) = (None, None);
}

impl Copies {
    /// Devices of the pool now. Notes when each came into its state.
    fn look(
        &mut self,
        entry: &PoolEntry,
        legs: &[LegInfo],
        segment_bytes: u64,
    ) -> Vec<PairDeviceDocument> {
        let paths = paths_of(legs, entry);
        let mut devices = Vec::with_capacity(legs.len());
        for (position, (leg, path)) in legs.iter().zip(paths).enumerate() {
            let total_bytes = u64::from(leg.segments) * segment_bytes;
            let rebuilt_bytes = match leg.state {
                LegState::InSync => total_bytes,
                LegState::Behind { copied } => u64::from(copied) * segment_bytes,
                LegState::Missing => 0,
            };
            let state = state_of(leg);
            let now = Seen {
                state,
                begun: time::now(),
                since_seconds: time::wall_clock().as_secs(),
                rebuilt_bytes,
            };
            match self.seen.get_mut(position) {
                Some(seen) if seen.state == state && seen.rebuilt_bytes <= rebuilt_bytes => {}
                Some(seen) => *seen = now,
                None => self.seen.push(now),
            }
            let seen = self.seen[position];
            let reason = match state {
                PairDeviceStateName::Failed => leg.failure.map(|error| error.to_string()),
                PairDeviceStateName::Missing => {
                    path.as_ref().and_then(|path| self.left_out.get(path).cloned())
                }
                PairDeviceStateName::InSync
                | PairDeviceStateName::Rebuilding
                | PairDeviceStateName::Unknown => None,
            };
            let copied = rebuilt_bytes - seen.rebuilt_bytes;
            let millis = seen.begun.elapsed().as_millis().max(1);
            let rate = u128::from(copied) * 1000 / millis;
            devices.push(PairDeviceDocument {
                device: path.unwrap_or_else(|| leg.id.to_string()),
                id: leg.id.to_string(),
                state,
                reason,
                since_seconds: seen.since_seconds,
                rebuilt_bytes,
                total_bytes,
                bytes_per_second: match state {
                    PairDeviceStateName::Rebuilding => u64::try_from(rate).unwrap_or(u64::MAX),
                    _ => 0,
                },
            });
        }
        devices
    }
}

impl Pools {
    /// Entry of a pool, also if the state directory has none so far.
    pub(super) fn entry_of(&self, name: &str) -> PoolEntry {
        let set = || self.slots.borrow().get(name).map(|slot| slot.set.clone()).unwrap_or_default();
        self.registry.entry(name).unwrap_or_else(|| PoolEntry::new(name, &set(), None))
    }

    /// Command that adds space to a pool.
    pub(crate) fn growth_command(&self, name: &str) -> String {
        match self.entry_of(name).device_ids.is_empty() {
            true => format!("flagstone pool grow {name} DEVICE"),
            false => format!("flagstone pool grow {name} DEVICE DEVICE"),
        }
    }

    /// Devices of a pool with redundancy, in the order of the device table.
    pub(super) fn pair_devices(&self, name: &str, status: &PoolStatus) -> Vec<PairDeviceDocument> {
        let Some(redundancy) = &status.redundancy else { return Vec::new() };
        let entry = self.entry_of(name);
        let mut copies = self.copies.borrow_mut();
        let copies = copies.entry(name.to_owned()).or_default();
        copies.look(&entry, &redundancy.legs, redundancy.segment_bytes)
    }

    /// Copies of a pool; none without redundancy.
    pub(crate) fn redundancy(&self, name: &str, status: &PoolStatus) -> Option<RedundancyDocument> {
        let redundancy = status.redundancy.as_ref()?;
        let devices = self.pair_devices(name, status);
        let is_unused = |device: &&PairDeviceDocument| {
            matches!(device.state, PairDeviceStateName::Missing | PairDeviceStateName::Failed)
        };
        let left = devices.iter().map(|device| device.total_bytes - device.rebuilt_bytes);
        Some(RedundancyDocument {
            kind: RedundancyName::Mirror,
            missing_devices: devices.iter().filter(is_unused).count() as u64,
            rebuild_bytes: left.sum(),
            failed_reads: redundancy.failed_reads,
            left_out_bytes: redundancy.left_out_blocks * BLOCK_BYTES as u64,
            repaired_bytes: redundancy.repaired_blocks * BLOCK_BYTES as u64,
            pairs: devices
                .chunks(PAIR)
                .map(|pair| PairDocument { devices: pair.to_vec() })
                .collect(),
        })
    }

    /// Logs devices of pairs whose state has changed since the last call. True if one was lost: the
    /// identity of its pool is to be recorded soon, so that an opening refuses this device alone.
    pub(super) fn watch_devices(&self) -> bool {
        let mut is_lost = false;
        for (name, slot) in self.slots() {
            let PoolState::Open(pool) = slot.state else { continue };
            let status = pool.status();
            let states = |copies: &Copies| -> Vec<PairDeviceStateName> {
                copies.seen.iter().map(|seen| seen.state).collect()
            };
            let before = self.copies.borrow().get(&name).map(states).unwrap_or_default();
            let now = self.pair_devices(&name, &status);
            for (position, device) in now.iter().enumerate() {
                let PairDeviceDocument { device, state, reason, .. } = device;
                if before.get(position) == Some(state) {
                    continue;
                }
                let reason = reason.as_deref().unwrap_or("it is not used");
                match state {
                    PairDeviceStateName::Missing | PairDeviceStateName::Failed => {
                        is_lost = true;
                        tracing::error!(
                            "pool {name} has one copy of a part of its data: {device} is {state} \
                             ({reason}); see flagstone pool status {name}"
                        );
                    }
                    _ if before.is_empty() => {}
                    _ => tracing::info!("pool {name}: {device} is {state}"),
                }
            }
        }
        is_lost
    }

    /// Notes the devices that were left out of an opening of the pool.
    pub(super) fn note_left_out(&self, name: &str, left_out: BTreeMap<String, String>) {
        for reason in left_out.values() {
            tracing::error!("pool {name} is open without a device: {reason}");
        }
        let copies = Copies { left_out, seen: Vec::new() };
        self.copies.borrow_mut().insert(name.to_owned(), copies);
    }

    /// Recorded paths of a pool that an import of `devices` keeps: of devices that are missing, or
    /// fit the others. One that was used apart would close the pool again.
    pub(super) async fn kept_paths(&self, name: &str, devices: &[String], id: PoolId) -> KeptPaths {
        let Some(entry) = self.registry.entry(name) else { return KeptPaths::default() };
        let is_same = self.registry.identity(name).is_some_and(|last| last.id == id);
        if !is_same || entry.device_ids.is_empty() {
            return KeptPaths::default();
        }
        let mut paths = Vec::new();
        for path in entry.devices.into_iter().filter(|path| !devices.contains(path)) {
            let fits = async {
                let Ok(other) = open_devices(std::slice::from_ref(&path)).await else {
                    return true;
                };
                let Ok(mut opened) = open_devices(devices).await else { return true };
                opened.extend(other);
                Pool::examine(&opened).await.is_ok()
            };
            if time::timeout(OPEN_TIMEOUT, fits).await.unwrap_or(true) {
                paths.push(path);
            }
        }
        KeptPaths { paths, device_ids: entry.device_ids }
    }

    /// Opens the devices of a pool. With redundancy, devices that do not answer or are no devices
    /// of the pool are left out.
    ///
    /// # Errors
    /// The first reason, if the other devices are not a whole pool.
    pub(super) async fn open_present(
        &self,
        name: &str,
        paths: &[String],
    ) -> Result<PresentDevices, String> {
        let entry = self.registry.entry(name);
        let has_pairs = entry.is_some_and(|entry| !entry.device_ids.is_empty());
        let identity = self.registry.identity(name);
        let (mut devices, mut left_out) = (Vec::with_capacity(paths.len()), BTreeMap::new());
        for path in paths {
            let opening = open_devices(std::slice::from_ref(path));
            let opened = match has_pairs {
                true => {
                    let checked = async { checked(opening.await?, identity).await };
                    let silent = |_| Err(format!("{path} does not answer"));
                    time::timeout(OPEN_TIMEOUT, checked).await.unwrap_or_else(silent)
                }
                false => opening.await,
            };
            match opened {
                Ok(opened) => devices.extend(opened),
                Err(reason) => drop(left_out.insert(path.clone(), reason)),
            }
        }
        let Some(first) = left_out.values().next().cloned() else {
            return Ok(PresentDevices { devices, left_out });
        };
        if devices.is_empty() {
            return Err(first);
        }
        match Pool::examine(&devices).await {
            Ok(_) => Ok(PresentDevices { devices, left_out }),
            Err(error @ (PoolError::NoCopy { .. } | PoolError::UsedApart { .. })) => {
                let reasons: Vec<String> = left_out.into_values().collect();
                Err(format!("{error}; {}", reasons.join("; ")))
            }
            Err(_) => Err(first),
        }
    }
}

/// Checks that a device belongs to a pool, as far as it shows that alone.
async fn checked(
    opened: Vec<NamedDevice>,
    identity: Option<PoolIdentity>,
) -> Result<Vec<NamedDevice>, String> {
    for named in &opened {
        let found = Pool::identify(named).await.map_err(|error| error.to_string())?;
        if identity.is_some_and(|own| own.id != found) {
            return Err(format!("{} is a device of another pool, {found}", named.name));
        }
    }
    match Pool::examine(&opened).await {
        Err(error @ PoolError::Cut { .. }) => Err(error.to_string()),
        // The opening decides about the devices together.
        Ok(_) | Err(_) => Ok(opened),
    }
}

impl Server {
    /// Records the devices of an open pool with redundancy.
    pub(super) async fn record_pairs(&self, name: &str, pool: &Pool) {
        let Some(redundancy) = pool.status().redundancy else { return };
        let change = |entry: &mut Option<PoolEntry>| {
            if let Some(entry) = entry {
                record(entry, &redundancy.legs);
            }
        };
        if let Err(problem) = self.pools.registry.change(name, change).await {
            tracing::warn!("the devices of pool {name} are not recorded: {}", problem.detail);
        }
        let mut entry = self.pools.entry_of(name);
        record(&mut entry, &redundancy.legs);
        if let Some(slot) = self.pools.slots.borrow_mut().get_mut(name) {
            slot.set = DeviceSet::from(entry.devices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(id: u8, device: &str, is_attached: bool) -> LegInfo {
        let state = if is_attached { LegState::InSync } else { LegState::Missing };
        let (id, device) = (PoolId([id; 16]), device.to_owned());
        LegInfo { id, device, state, segments: 8, is_attached, failure: None }
    }

    fn entry(paths: &[&str]) -> PoolEntry {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        PoolEntry::new("fast", &paths.into(), None)
    }

    #[test]
    fn missing_devices_keep_their_paths() {
        let mut own = entry(&["/b", "/a", "/d", "/c"]);
        let all = [leg(1, "/a", true), leg(2, "/b", true), leg(3, "/c", true), leg(4, "/d", true)];
        record(&mut own, &all);
        assert_eq!(own.devices, ["/a", "/b", "/c", "/d"]);
        let some =
            [leg(1, "?1", false), leg(2, "/b", true), leg(3, "/c", true), leg(4, "?4", false)];
        let before = own.clone();
        record(&mut own, &some);
        assert_eq!(own, before);
        // A device came back under the path of another one.
        let moved =
            [leg(1, "/d", true), leg(2, "/b", true), leg(3, "/c", true), leg(4, "?4", false)];
        assert_eq!(paths_of(&moved, &own)[3], None);
    }

    /// The pool names the new device, and the crash came before its superblock.
    #[test]
    fn interrupted_replacement_has_the_new_path() {
        let mut own = entry(&["/a", "/b"]);
        record(&mut own, &[leg(1, "/a", true), leg(2, "/b", true)]);
        own.devices.push("/new".to_owned());
        own.adding = Some("/new".to_owned());
        let unchanged = [leg(1, "/a", true), leg(2, "/b", true)];
        assert_eq!(paths_of(&unchanged, &own), [Some("/a".to_owned()), Some("/b".to_owned())]);
        record(&mut own, &[leg(1, "/a", true), leg(3, "?3", false)]);
        assert_eq!((own.devices, own.adding), (vec!["/a".to_owned(), "/new".to_owned()], None));
    }

    #[test]
    fn crash_after_creation_leaves_the_order_of_paths() {
        let own = entry(&["/a", "/b"]);
        let legs = [leg(1, "?1", false), leg(2, "/b", true)];
        assert_eq!(paths_of(&legs, &own), [Some("/a".to_owned()), Some("/b".to_owned())]);
    }
}
