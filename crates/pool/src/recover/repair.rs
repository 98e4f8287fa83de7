//! Repair of superblocks at an opening: brings every copy to the newest update before anything else
//! is written, because later writes may reuse space that an older update refers to.
//!
//! Damaged copies first get the update of their own device, unless another device lacks it, so that
//! a torn write leaves two whole copies. Then the newest update goes to copies 0 and 1 of every
//! device, and after that to copies 2 and 3. A leg whose content it does not record gets only the
//! next update.

use super::superblocks::FoundSuperblock;
use crate::error::PoolError;
use crate::ondisk::superblock::{COPIES, Superblock};
use crate::pairs::Pairs;
use crate::storage::{NamedDevice, Storage};

/// Copies of one device to write.
#[derive(Debug)]
struct Repair<'a> {
    /// Its position in the device table.
    index: u16,
    /// Copies that get the update of the device, which comes first.
    own: (&'a Superblock, Vec<usize>),
    /// Copies that get the newest update, in two phases.
    newest: [Vec<usize>; 2],
}

fn repairs<'a>(
    newest: &Superblock,
    members: &[(u16, &'a FoundSuperblock)],
) -> (Vec<Repair<'a>>, bool) {
    let is_outdated = |own: &FoundSuperblock| own.superblock.update < newest.update;
    let any_outdated = members.iter().any(|(_, own)| is_outdated(own));
    let repair = |(index, own): &(u16, &'a FoundSuperblock)| {
        let FoundSuperblock { superblock, damaged, older } = own;
        let wanted = |copy: &usize| {
            is_outdated(own) || older.contains(copy) || any_outdated && damaged.contains(copy)
        };
        let healed = match any_outdated && !is_outdated(own) {
            true => Vec::new(),
            false => damaged.clone(),
        };
        Repair {
            index: *index,
            own: (superblock, healed),
            newest: [(0..2).filter(wanted).collect(), (2..COPIES).filter(wanted).collect()],
        }
    };
    (members.iter().map(repair).collect(), any_outdated)
}

/// Repairs the superblocks of all devices.
///
/// # Errors
/// Errors of the device whose second copy failed; with redundancy, of the last leg in sync.
pub(crate) async fn repair(
    storage: &Storage,
    newest: &Superblock,
    found: &[FoundSuperblock],
) -> Result<(), PoolError> {
    // A new log device has no superblock before the next update.
    let own = |(index, _): (u16, NamedDevice)| {
        let id = Superblock { device: index, ..newest.clone() }.device_id();
        let found = found.iter().find(|found| found.superblock.device_id() == id);
        let pairs = storage.pairs.as_ref();
        let is_recorded = pairs.is_none_or(|pairs| pairs.is_recorded(newest, index.into()));
        Some((index, found.filter(|_| is_recorded)?))
    };
    let members: Vec<(u16, &FoundSuperblock)> =
        storage.members().into_iter().filter_map(own).collect();
    let (repairs, any_outdated) = repairs(newest, &members);
    match &storage.pairs {
        Some(pairs) => repair_pairs(pairs, newest, &repairs).await,
        None => repair_devices(storage, newest, &repairs, any_outdated).await,
    }
}

async fn repair_devices(
    storage: &Storage,
    newest: &Superblock,
    repairs: &[Repair<'_>],
    any_outdated: bool,
) -> Result<(), PoolError> {
    let failure = |index: u16| {
        let named = storage.members().into_iter().find(|(member, _)| *member == index);
        let device = named.map(|(_, named)| named.name.clone()).unwrap_or_default();
        move |error| PoolError::Device { device, error }
    };
    let mut failed = vec![0; repairs.len()];
    for (repair, failed) in repairs.iter().zip(&mut failed) {
        let (superblock, copies) = &repair.own;
        let healed = storage.write_copies(repair.index, superblock, copies, failed).await;
        healed.map_err(failure(repair.index))?;
    }
    if any_outdated {
        failed.fill(0);
    }
    for phase in 0..2 {
        for (repair, failed) in repairs.iter().zip(&mut failed) {
            let copies = &repair.newest[phase];
            let written = storage.write_copies(repair.index, newest, copies, failed).await;
            written.map_err(failure(repair.index))?;
        }
    }
    Ok(())
}

/// As for other devices, but a leg that fails, or does not answer in time, is left out.
async fn repair_pairs(
    pairs: &Pairs,
    newest: &Superblock,
    repairs: &[Repair<'_>],
) -> Result<(), PoolError> {
    let of = |position: usize| repairs.iter().find(|own| usize::from(own.index) == position);
    let device = format!("a device of pool {}", newest.name);
    let failure = |error| PoolError::Device { device: device.clone(), error };
    let own = |position: usize| {
        let own = of(position).map(|repair| (repair.own.0, repair.own.1.clone()));
        own.unwrap_or((newest, Vec::new()))
    };
    pairs.write_copies(&pairs.writers(), own).await.map_err(failure)?;
    let legs = pairs.writers();
    for phase in 0..2 {
        let copies = |position: usize| {
            (newest, of(position).map_or(Vec::new(), |repair| repair.newest[phase].clone()))
        };
        pairs.write_copies(&legs, copies).await.map_err(failure)?;
    }
    Ok(())
}
