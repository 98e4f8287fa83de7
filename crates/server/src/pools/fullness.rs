//! Fullness of a pool: thresholds for warnings to the operator.

use flagstone_pool::PoolStatus;
use flagstone_units::display::size;

use super::{PoolState, Pools};

/// Thresholds in percent of the capacity, in use or reserved.
const THRESHOLDS: [u64; 4] = [80, 90, 95, 100];

/// Highest threshold that a pool has reached, in percent; 0 below all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fullness(pub(crate) u64);

/// Space in use, held by overwritten parts of compressed data, or reserved, in percent of the
/// capacity, rounded down.
pub(crate) fn used_percent(status: &PoolStatus) -> u64 {
    let used = [status.used_bytes, status.held_bytes, status.reserved_bytes];
    let used: u128 = used.into_iter().map(u128::from).sum();
    let percent = used * 100 / u128::from(status.capacity_bytes.max(1));
    percent.min(100) as u64
}

impl Fullness {
    pub(crate) fn of(status: &PoolStatus) -> Fullness {
        let percent = used_percent(status);
        let reached = THRESHOLDS.iter().rev().find(|threshold| percent >= **threshold);
        Fullness(reached.copied().unwrap_or_default())
    }
}

impl Pools {
    /// Logs each pool whose threshold has changed since the last call.
    pub(super) fn watch(&self) {
        for (name, slot) in self.slots.borrow_mut().iter_mut() {
            let PoolState::Open(pool) = &slot.state else { continue };
            let status = pool.status();
            let now = Fullness::of(&status);
            let free = status.capacity_bytes - status.capacity_bytes * used_percent(&status) / 100;
            if now > slot.fullness {
                tracing::warn!(
                    "pool {name} is {} % full, about {} are left: delete volumes or discard data; \
                     when it is full, new writes fail",
                    used_percent(&status),
                    size(free)
                );
            } else if now < slot.fullness {
                tracing::info!("pool {name} is {} % full", used_percent(&status));
            }
            slot.fullness = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_pool::PoolId;

    #[test]
    fn thresholds_count_used_and_reserved_space() {
        let status = |used_bytes, reserved_bytes| PoolStatus {
            name: "fast".to_owned(),
            id: PoolId::default(),
            devices: Vec::new(),
            capacity_bytes: 1000,
            used_bytes,
            held_bytes: 0,
            provisioned_bytes: 0,
            data_bytes: 0,
            stored_bytes: 0,
            reserved_bytes,
            free_segment_bytes: 0,
            volumes: 0,
            checkpoints: 0,
            cleaned_segments: 0,
            copied_blocks: 0,
            deduplicated_bytes: 0,
            dedup: None,
            is_freeing: false,
            failed: None,
            log: None,
            redundancy: None,
            map_cache_bytes: 0,
        };
        for (used, reserved, reached) in
            [(0, 0, 0), (799, 0, 0), (700, 100, 80), (949, 0, 90), (950, 0, 95), (1000, 9, 100)]
        {
            assert_eq!(
                Fullness::of(&status(used, reserved)),
                Fullness(reached),
                "{used} {reserved}"
            );
        }
    }
}
