//! Histories of volumes with compression: units, of which parts die, and their cleaning.

use super::*;

#[test]
fn crash_with_compression_leaves_a_flushed_prefix() {
    let plan = Plan { steps: 30, segments: 150, snapshots: 20, ..PLAN };
    run(60_000..60_003, Plan { writers: 3, compression: Compression::Lz4, ..plan });
    let mixed = Compression::Auto;
    run(61_000..61_003, Plan { disks: 2, segments: 80, compression: mixed, ..plan });
}

#[test]
fn crash_while_cleaning_compressed_data() {
    let plan = Plan { writers: 3, steps: 250, segments: 80, snapshots: 3, every: 29, ..PLAN };
    for (first, compression) in [(62_000, Compression::Zstd), (63_000, Compression::Auto)] {
        let total = run(first..first + seeds(2), Plan { compression, ..plan });
        assert!(total.copied > 50);
    }
}

#[test]
fn crash_of_a_full_compressed_pool() {
    // What does not compress fills so few segments with four snapshots of it.
    let plan = Plan { writers: 3, steps: 200, segments: 48, snapshots: 4, every: 50, ..PLAN };
    let total = run(1..1 + seeds(3), Plan { compression: Compression::Auto, fills: true, ..plan });
    assert!(total.full > 0, "no writer found the pool full");
}

#[test]
fn crash_in_short_compressed_histories() {
    run(70_000..70_100, Plan { compression: Compression::Auto, ..PLAN });
}

#[test]
fn crash_of_a_compressed_pool_with_a_log_device() {
    let plan = Plan { writers: 3, steps: 250, segments: 80, snapshots: 3, log_slots: 4, ..PLAN };
    let plan = Plan { every: 49, compression: Compression::Zstd, ..plan };
    let total = run(62_000..62_002, plan);
    assert!(total.copied > 20 && total.losses > 20, "{} {}", total.copied, total.losses);
}

#[test]
fn crash_while_disks_of_units_come_and_go() {
    let plan = Plan { steps: 40, segments: 100, snapshots: 4, every: 7, spares: 2, ..PLAN };
    let plan = Plan { writers: 3, compression: Compression::Auto, ..plan };
    let total = run(64_000..64_003, plan);
    assert!(total.grown > 0 && total.removed > 0, "{} {}", total.grown, total.removed);
}
