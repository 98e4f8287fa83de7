//! Superblocks: checks that the given devices are one complete and current pool. Pure, except for
//! the reading.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use super::legs::{LegRole, lost, role};
use crate::error::PoolError;
use crate::limits::LEG_TIME_LIMIT;
use crate::ondisk::FormatError;
use crate::ondisk::layout::PoolLayout;
use crate::ondisk::legs::LEGS;
use crate::ondisk::superblock::{COPIES, LOG_INDEX, Superblock, choose, copy_offset};
use crate::pairs::{AttachedLeg, Pairs, WriteCalls};
use crate::storage::{Devices, NamedDevice, Storage, read_block};

/// The superblock of one device.
#[derive(Clone, Debug)]
pub(crate) struct FoundSuperblock {
    pub(crate) superblock: Superblock,
    /// Copies that are damaged or cannot be read.
    pub(crate) damaged: Vec<usize>,
    /// Whole copies with an older update.
    pub(crate) older: Vec<usize>,
}

impl FoundSuperblock {
    /// True if copy 2 or 3 has the update. Copies 0 and 1 of every device then have it too.
    fn is_second_phase(&self) -> bool {
        (2..COPIES).any(|copy| !self.damaged.contains(&copy) && !self.older.contains(&copy))
    }
}

/// Reads the superblock of a device.
///
/// # Errors
/// Errors of the device if no copy can be read; [`PoolError`] if the copies cannot be used.
pub(crate) async fn read_superblock(named: &NamedDevice) -> Result<FoundSuperblock, PoolError> {
    let (copies, unreadable) = read_copies(named).await;
    let device = named.name.clone();
    let superblock = match (choose(&copies), unreadable) {
        (Ok(superblock), _) => superblock,
        (Err(_), Some(error)) => return Err(PoolError::Device { device, error }),
        (Err(FormatError::Absent), None) => return Err(PoolError::NotAPool { device }),
        (Err(reason), None) => return Err(PoolError::Superblock { device, reason }),
    };
    let damaged = (0..COPIES).filter(|copy| copies[*copy].is_err()).collect();
    let is_older = |copy: &Superblock| *copy != superblock;
    let older = (0..COPIES).filter(|copy| copies[*copy].as_ref().is_ok_and(is_older)).collect();
    Ok(FoundSuperblock { superblock, damaged, older })
}

type SuperblockRead = Result<FoundSuperblock, PoolError>;

/// Reads of several superblocks in progress, and their results.
struct ReadAll<'a> {
    reads: Vec<Pin<Box<dyn Future<Output = SuperblockRead> + 'a>>>,
    results: Vec<Option<SuperblockRead>>,
}

impl<'a> ReadAll<'a> {
    fn new(devices: &'a [NamedDevice]) -> ReadAll<'a> {
        let reads = devices.iter().map(|named| Box::pin(read_superblock(named)) as _).collect();
        ReadAll { reads, results: devices.iter().map(|_| None).collect() }
    }

    fn is_over(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    fn has_redundancy(&self) -> bool {
        let mut found = self.results.iter().flatten().flatten();
        found.any(|found| found.superblock.has_redundancy())
    }

    /// Reads until `is_enough`.
    async fn until(&mut self, is_enough: impl Fn(&ReadAll<'a>) -> bool) {
        std::future::poll_fn(|cx| {
            for (read, result) in self.reads.iter_mut().zip(&mut self.results) {
                if result.is_none()
                    && let Poll::Ready(ended) = read.as_mut().poll(cx)
                {
                    *result = Some(ended);
                }
            }
            match is_enough(self) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Reads the superblocks of devices. With redundancy, another device may have the data of one that
/// cannot be used, so devices have a time limit from the first superblock on. A pool without
/// redundancy waits for all of its devices.
///
/// # Errors
/// As [`read_superblock`], unless a device of a pool with redundancy was found.
pub(crate) async fn read_superblocks(
    devices: &[NamedDevice],
) -> Result<Vec<(NamedDevice, FoundSuperblock)>, PoolError> {
    let mut all = ReadAll::new(devices);
    all.until(|all| all.is_over() || all.has_redundancy()).await;
    let begun = time::now();
    let _silent = time::timeout(LEG_TIME_LIMIT, all.until(ReadAll::is_over)).await;
    let has_redundancy = all.has_redundancy();
    let (mut found, mut unusable) = (Vec::with_capacity(devices.len()), None);
    for (named, result) in devices.iter().zip(all.results) {
        let hung = || PoolError::Device { device: named.name.clone(), error: IoError::Unreachable };
        match result.unwrap_or_else(|| Err(hung())) {
            Ok(own) if own.superblock.has_redundancy() => {
                // Writes of an earlier opening could overwrite later ones.
                let left = LEG_TIME_LIMIT.saturating_sub(begun.elapsed());
                let writes = WriteCalls::of(&named.device);
                match time::timeout(left, writes.ended()).await {
                    Ok(()) => found.push((named.clone(), own)),
                    Err(_) => {
                        tracing::error!(
                            device = named.name,
                            "a device cannot be used: writes of an earlier opening have not ended"
                        );
                        unusable = unusable.or(Some(hung()));
                    }
                }
            }
            Ok(own) => found.push((named.clone(), own)),
            // A later program may have continued on this device alone.
            Err(PoolError::Superblock { device, reason: reason @ FormatError::Version(_) }) => {
                return Err(PoolError::Superblock { device, reason });
            }
            Err(error) => {
                if has_redundancy {
                    tracing::error!(%error, "a device of a pool with redundancy cannot be used");
                }
                unusable = unusable.or(Some(error));
            }
        }
    }
    match unusable {
        Some(error) if !has_redundancy || found.is_empty() => Err(error),
        Some(_) | None => Ok(found),
    }
}

/// Copies of a device's superblock, and the error of an unreadable one.
pub(crate) async fn read_copies(
    named: &NamedDevice,
) -> (Vec<Result<Superblock, FormatError>>, Option<IoError>) {
    let mut copies = Vec::with_capacity(COPIES);
    let mut unreadable = None;
    for copy in 0..COPIES {
        copies.push(match read_block(&named.device, copy_offset(copy)).await {
            Ok(block) => Superblock::decode(&block, copy),
            Err(error) => {
                unreadable = Some(error);
                Err(FormatError::Checksum)
            }
        });
    }
    (copies, unreadable)
}

/// Fields that are the same on all devices.
fn common(superblock: &Superblock) -> Superblock {
    Superblock { device: 0, ..superblock.clone() }
}

/// Sorts the devices by the device table of the newest superblock. The storage excludes the log
/// device; the last value is true if the log device is current.
///
/// # Errors
/// [`PoolError`] unless the devices belong to one pool, each given once, whole, and current.
pub(crate) fn assemble(
    found: &[(NamedDevice, FoundSuperblock)],
) -> Result<(Storage, Superblock, bool), PoolError> {
    let is_second_phase = |update: u64| {
        let with = |found: &FoundSuperblock| found.superblock.update == update;
        found.iter().any(|(_, found)| with(found) && found.is_second_phase())
    };
    let found: Vec<(&NamedDevice, &Superblock)> =
        found.iter().map(|(named, found)| (named, &found.superblock)).collect();
    let newest = found.iter().max_by_key(|(_, superblock)| superblock.update);
    let Some((first, newest)) =
        newest.map(|(named, newest)| (named.name.clone(), (*newest).clone()))
    else {
        return Err(PoolError::Options("no devices were named"));
    };
    let found: Vec<_> = found
        .into_iter()
        .filter(|(_, superblock)| superblock.pool != newest.pool || !newest.is_former(superblock))
        .collect();
    for (named, superblock) in &found {
        if superblock.pool != newest.pool {
            let pool =
                |superblock: &Superblock| format!("{} ({})", superblock.name, superblock.pool);
            return Err(PoolError::OtherPool {
                first,
                first_pool: pool(&newest),
                second: named.name.clone(),
                second_pool: pool(superblock),
            });
        }
    }
    for (index, (named, superblock)) in found.iter().enumerate() {
        let twin =
            found[..index].iter().find(|(_, other)| other.device_id() == superblock.device_id());
        if let Some((twin, _)) = twin {
            let (first, second) = (twin.name.clone(), named.name.clone());
            return Err(PoolError::Duplicate { first, second });
        }
    }
    if newest.has_redundancy() {
        let storage = assemble_pairs(&first, &newest, &found, is_second_phase(newest.update))?;
        return Ok((storage, newest, false));
    }
    let mut is_log_current = true;
    for (named, superblock) in &found {
        let device = || named.name.clone();
        let (found, newest_update) = (superblock.update, newest.update);
        if found + 1 < newest_update || (found < newest_update && is_second_phase(newest_update)) {
            if superblock.device == LOG_INDEX {
                is_log_current = false;
                continue;
            }
            return Err(PoolError::Outdated { device: device(), found, newest: newest_update });
        }
        if found == newest_update && common(superblock) != common(&newest) {
            let pool = newest.name.clone();
            return Err(PoolError::Contradiction { device: device(), pool, update: found });
        }
    }
    let devices = Devices::default();
    for (index, record) in newest.devices.iter().enumerate() {
        if record.is_removed() {
            devices.push_removed();
            continue;
        }
        let own = found.iter().find(|(_, superblock)| superblock.device_id() == record.id);
        let Some((named, _)) = own else {
            let present = newest.devices.iter().filter(|record| !record.is_removed());
            let (pool, count) = (newest.name.clone(), present.count());
            return Err(PoolError::Missing { pool, index, id: record.id, count });
        };
        let (is_bytes, was_bytes) = (named.device.geometry().size_bytes, record.size_bytes);
        if is_bytes < was_bytes {
            return Err(PoolError::Cut { device: named.name.clone(), is_bytes, was_bytes });
        }
        devices.push((*named).clone());
    }
    if let Some((named, superblock)) = found.iter().find(|(_, superblock)| {
        let id = superblock.device_id();
        !newest.devices.iter().chain(&newest.log_device).any(|record| record.id == id)
    }) {
        let (pool, update) = (superblock.name.clone(), superblock.update);
        return Err(PoolError::Contradiction { device: named.name.clone(), pool, update });
    }
    let layout = PoolLayout::new(newest.segment_blocks, &newest.devices)
        .map_err(|reason| PoolError::Superblock { device: first, reason })?;
    Ok((Storage { devices, layout, log: None, pairs: None }, newest, is_log_current))
}

/// Storage of a pool with redundancy, of which one leg of each device may be absent.
fn assemble_pairs(
    first: &str,
    newest: &Superblock,
    found: &[(&NamedDevice, &Superblock)],
    is_second_phase: bool,
) -> Result<Storage, PoolError> {
    let pool = || newest.name.clone();
    let mut legs: Vec<[Option<AttachedLeg>; LEGS]> =
        newest.pairs.iter().map(|_| [None, None]).collect();
    let (mut current, mut cut) = (Vec::new(), None);
    for (named, superblock) in found {
        let device = named.name.clone();
        let update = superblock.update;
        if update == newest.update && common(superblock) != common(newest) {
            let (first, second) = (first.to_owned(), device);
            return Err(PoolError::UsedApart { pool: pool(), first, second });
        }
        let role = role(newest, superblock, is_second_phase);
        match role {
            LegRole::Leg(position) | LegRole::Stale(position) => {
                let is_bytes = named.device.geometry().size_bytes;
                let was_bytes = newest.leg(position).map_or(0, |leg| leg.size_bytes);
                if is_bytes < was_bytes {
                    let error = PoolError::Cut { device, is_bytes, was_bytes };
                    tracing::error!(%error, "a device of a pool with redundancy cannot be used");
                    cut = Some(error);
                    continue;
                }
                let is_current = role == LegRole::Leg(position);
                match is_current {
                    true => current.push(position),
                    false => tracing::warn!(
                        device,
                        update,
                        newest = newest.update,
                        "device lacks updates of its pool: it is rebuilt"
                    ),
                }
                let named = (*named).clone();
                legs[position / LEGS][position % LEGS] = Some(AttachedLeg { named, is_current });
            }
            LegRole::Replaced => tracing::warn!(device, "device was replaced in pool {}", pool()),
            LegRole::Old => {
                let newest = newest.update;
                return Err(PoolError::Outdated { device, found: update, newest });
            }
            LegRole::Apart => {
                let (first, second) = (first.to_owned(), device);
                return Err(PoolError::UsedApart { pool: pool(), first, second });
            }
        }
    }
    if let Some(error) = lost(newest, &current) {
        return Err(cut.unwrap_or(error));
    }
    let layout = PoolLayout::new(newest.segment_blocks, &newest.devices)
        .map_err(|reason| PoolError::Superblock { device: first.to_owned(), reason })?;
    let pairs = Arc::new(Pairs::new(newest, legs));
    let devices = Devices::from(pairs.devices());
    Ok(Storage { devices, layout, log: None, pairs: Some(pairs) })
}

/// Error of a failed call on a block, with the name of the block's device.
pub(crate) fn device_error(storage: &Storage, block: u64, error: IoError) -> PoolError {
    PoolError::Device { device: storage.device_of(block).name.clone(), error }
}
