//! Choice of the legs of a pool with redundancy: decides from superblocks alone which devices have
//! every acknowledged write. Pure.

use crate::error::PoolError;
use crate::ondisk::legs::{LEGS, LegState};
use crate::ondisk::superblock::Superblock;

/// Decision about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegRole {
    /// The leg at this position of the device table.
    Leg(usize),
    /// A device that was replaced: ignored.
    Replaced,
    /// It was used without the device that has the newest superblock.
    Apart,
    /// It should be in sync, and lacks updates.
    Outdated,
}

fn calls_in_sync(superblock: &Superblock, position: usize) -> bool {
    superblock.leg(position).is_some_and(|leg| leg.state == LegState::InSync)
}

/// Role of a device with superblock `own`. `is_second_phase` is true if copies 2 or 3 of any device
/// have the newest update.
pub(super) fn role(newest: &Superblock, own: &Superblock, is_second_phase: bool) -> LegRole {
    let id = own.device_id();
    let Some(position) = newest.pairs.iter().flatten().position(|leg| leg.id == id) else {
        let place = newest.leg(own.device.into());
        return match place.is_some_and(|leg| own.update < leg.since) {
            true => LegRole::Replaced,
            false => LegRole::Apart,
        };
    };
    let leg = newest.leg(position).expect("it was found");
    if leg.state == LegState::InSync {
        let lacks_one = own.update == newest.previous() && !is_second_phase;
        return match own.update == newest.update || lacks_one {
            true => LegRole::Leg(position),
            false => LegRole::Outdated,
        };
    }
    // The newest superblock itself may be on a leg that is behind.
    let is_newest = newest.device_id() == id;
    let was_used = calls_in_sync(own, position) && own.update >= leg.since;
    let blames = !is_newest && !blamed_by(own, newest).unwrap_or(true);
    match !is_newest && (was_used || blames) {
        true => LegRole::Apart,
        false => LegRole::Leg(position),
    }
}

/// Whether `own` calls the leg with the newest superblock in sync; none if that leg is new to it.
fn blamed_by(own: &Superblock, newest: &Superblock) -> Option<bool> {
    let id = newest.device_id();
    let position = own.pairs.iter().flatten().position(|leg| leg.id == id)?;
    Some(calls_in_sync(own, position))
}

/// Positions of the devices that have no leg in sync among `present` positions.
pub(super) fn lost(newest: &Superblock, present: &[usize]) -> Option<PoolError> {
    for index in 0..newest.pairs.len() {
        let mut legs = LEGS * index..LEGS * (index + 1);
        let is_usable = |leg: usize| present.contains(&leg) && calls_in_sync(newest, leg);
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
