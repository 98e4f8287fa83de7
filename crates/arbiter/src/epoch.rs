//! Role epochs: fencing tokens that are unique among the replicas of a volume.
//!
//! Each replica uses the numbers of one residue class, its rank, which depends on its identity
//! alone. So two replicas that promote themselves without contact never pick the same epoch.

/// Number of residue classes. Identities are random: of three replicas, two share a class with a
/// probability of one in 1.4 billion.
pub const EPOCH_STRIDE: u64 = 1 << 32;

/// The lowest epoch after `seen`, for any replica. Saturates at the maximum, which only a forged
/// epoch comes close to, so the result is never lower than `seen`.
pub fn least_epoch(seen: u64) -> u64 {
    seen.saturating_add(1)
}

/// The epoch that rank `rank` picks after `seen`: the first of its class from [`least_epoch`].
pub fn next_epoch(seen: u64, rank: u64) -> u64 {
    let least = least_epoch(seen);
    let first = (least - least % EPOCH_STRIDE).saturating_add(rank % EPOCH_STRIDE);
    if first >= least { first } else { first.saturating_add(EPOCH_STRIDE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_grow_and_are_unique_per_replica() {
        for seen in 0..40 {
            for rank in 0..3 {
                let next = next_epoch(seen, rank);
                assert!(next > seen && next <= seen + EPOCH_STRIDE);
                assert_eq!(next % EPOCH_STRIDE, rank);
            }
        }
    }

    #[test]
    fn promoted_peer_takes_first_epoch_of_its_class() {
        for seen in (0..40).chain(u64::MAX - EPOCH_STRIDE - 8..u64::MAX - EPOCH_STRIDE) {
            let named = least_epoch(seen);
            assert!(named > seen);
            let taken = [0, 1, named % EPOCH_STRIDE].map(|rank| next_epoch(seen, rank));
            assert!(taken.iter().all(|epoch| *epoch >= named), "{seen}: {taken:?}");
            assert!(taken.contains(&named), "{seen}: {taken:?} lacks the lowest epoch");
        }
        assert_eq!(least_epoch(u64::MAX), u64::MAX, "the epoch never decreases");
    }

    #[test]
    fn next_epoch_saturates_after_forged_epoch() {
        for below in (0..9).chain(EPOCH_STRIDE - 9..EPOCH_STRIDE + 9) {
            for rank in (0..9).chain(EPOCH_STRIDE - 9..EPOCH_STRIDE) {
                let seen = u64::MAX - below;
                let next = next_epoch(seen, rank);
                assert!(next > seen || next == u64::MAX, "{seen}: {next}");
            }
        }
    }
}
