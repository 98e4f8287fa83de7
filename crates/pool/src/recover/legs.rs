//! Choice of the legs of a pool with redundancy: decides from superblocks alone which devices have
//! every acknowledged write. Pure.

use crate::error::PoolError;
use crate::ondisk::legs::{LEGS, LegRecord, LegState};
use crate::ondisk::superblock::Superblock;

/// Decision about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegRole {
    /// The leg at this position of the device table, with the recorded content.
    Leg(usize),
    /// The leg at this position, which lacks updates, and so perhaps writes: to be rebuilt whole.
    Stale(usize),
    /// A copy of the leg at some earlier time, or a leg with another history: a leg in sync lacks
    /// at most one update.
    Old,
    /// A device that was replaced: ignored.
    Replaced,
    /// It was used without the device that has the newest superblock.
    Apart,
}

fn calls_in_sync(superblock: &Superblock, position: usize) -> bool {
    superblock.leg(position).is_some_and(|leg| leg.state == LegState::InSync)
}

/// Role of a device with superblock `own`. `is_second_phase` is true if copies 2 or 3 of any device
/// have the newest update.
///
/// The newest superblock alone does not prove that a leg has the recorded content: the leg may have
/// failed in this update, before the next one called it missing. So the leg must have the update
/// itself, or the one before while the update is in its first phase.
pub(super) fn role(newest: &Superblock, own: &Superblock, is_second_phase: bool) -> LegRole {
    let id = own.device_id();
    if id == newest.device_id() {
        return LegRole::Leg(own.device.into());
    }
    if calls_out_of_sync(own, newest) {
        return LegRole::Apart;
    }
    let Some(position) = newest.pairs.iter().flatten().position(|leg| leg.id == id) else {
        let place = newest.leg(own.device.into());
        return match place.is_some_and(|leg| own.update < leg.since) {
            true => LegRole::Replaced,
            false => LegRole::Apart,
        };
    };
    let leg = newest.leg(position).expect("it was found");
    if leg.state != LegState::InSync && calls_in_sync(own, position) && own.update >= leg.since {
        return LegRole::Apart;
    }
    let lacks_one = own.update == newest.previous();
    match leg.state {
        _ if own.update == newest.update || lacks_one && !is_second_phase => LegRole::Leg(position),
        LegState::InSync if !lacks_one => LegRole::Old,
        LegState::InSync | LegState::Missing | LegState::Behind { .. } => LegRole::Stale(position),
    }
}

/// True if `own` calls a leg missing or behind that the newest superblock calls in sync since
/// before that update. If another such leg is in sync for `own`, the update was not completed: it
/// would be on that leg.
fn calls_out_of_sync(own: &Superblock, newest: &Superblock) -> bool {
    let state = |leg: &LegRecord| {
        let is_same = leg.state == LegState::InSync && own.update >= leg.since;
        let found = own.pairs.iter().flatten().find(|found| found.id == leg.id)?;
        (is_same && leg.id != own.device_id()).then_some(found.state == LegState::InSync)
    };
    let in_sync: Vec<bool> = newest.pairs.iter().flatten().filter_map(state).collect();
    in_sync.contains(&false) && !in_sync.contains(&true)
}

/// Error if a device has no leg in sync among the positions `current`.
pub(super) fn lost(newest: &Superblock, current: &[usize]) -> Option<PoolError> {
    for index in 0..newest.pairs.len() {
        let mut legs = LEGS * index..LEGS * (index + 1);
        let is_usable = |leg: usize| current.contains(&leg) && calls_in_sync(newest, leg);
        if !legs.clone().any(is_usable) {
            let needed = legs.find(|leg| calls_in_sync(newest, *leg))?;
            let id = newest.leg(needed)?.id;
            let pool = newest.name.clone();
            return Some(PoolError::NoCopy { pool, id });
        }
    }
    None
}

#[cfg(test)]
#[path = "legs_tests.rs"]
mod tests;
