//! Pools with redundancy: openings without a device that may have later changes.

use flagstone_pool::{AbsentLegs, OpenOptions, Pool, PoolError};
use flagstone_runtime::{Buf, block_on, buf};

use crate::redundancy::{Disk, create, disk, fill, holds, open, write};

async fn open_strictly(disks: &[&Disk]) -> Result<Pool, PoolError> {
    Pool::open(disks.iter().map(|disk| disk.named.clone()).collect()).await
}

/// The failed leg does not know that it is missing. It was once opened as current when the other
/// leg, which has the later writes, did not answer.
#[test]
fn leg_that_was_left_behind_needs_consent() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        b.control.set_unreachable(true);
        fill(&volume, 2).await;
        drop((pool, volume));
        b.control.set_unreachable(false);
        a.control.set_unreachable(true);
        for given in [&[&a, &b][..], &[&b]] {
            let refused = open_strictly(given).await.err().unwrap();
            assert!(matches!(refused, PoolError::AbsentLeg { .. }), "{refused}");
        }
        a.control.set_unreachable(false);
        // The leg with all writes knows that it needs no other one.
        let pool = open_strictly(&[&a]).await.unwrap();
        holds(&pool.open_volume("db").unwrap(), 2).await;
        drop(pool);
        // With consent, the writes of the other leg are given up.
        let found = Pool::examine(std::slice::from_ref(&b.named)).await.unwrap();
        let absent = AbsentLegs::GiveUp(found.unproven);
        let options = OpenOptions { absent, ..OpenOptions::default() };
        let pool = Pool::open_with(vec![b.named.clone()], &options).await.unwrap();
        let volume = pool.open_volume("db").unwrap();
        holds(&volume, 1).await;
        write(&volume, 1, 3).await.unwrap();
        drop((pool, volume));
        let apart = open(&[&a, &b]).await.err().unwrap();
        assert!(matches!(apart, PoolError::UsedApart { .. }), "{apart}");
        // It is recorded: no further consent.
        open_strictly(&[&b]).await.unwrap();
    })
    .unwrap();
}

/// Any use of a pool needs a leg of every pair, so a pair with both legs shows the latest use.
#[test]
fn whole_pair_proves_that_nothing_is_newer() {
    block_on(async {
        let disks: Vec<Disk> = ["/a", "/b", "/c", "/d"].map(disk).into();
        let all: Vec<&Disk> = disks.iter().collect();
        let (pool, volume) = create(&all).await;
        fill(&volume, 1).await;
        drop((pool, volume));
        let refused = open_strictly(&[all[0], all[2]]).await.err().unwrap();
        assert!(matches!(refused, PoolError::AbsentLeg { .. }), "{refused}");
        let pool = open_strictly(&[all[0], all[2], all[3]]).await.unwrap();
        holds(&pool.open_volume("db").unwrap(), 1).await;
    })
    .unwrap();
}

/// The consent had no identifiers: devices that hung between the question and the opening were
/// given up, too.
#[test]
fn consent_covers_only_the_absent_legs_it_names() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        drop((pool, volume));
        let without = async |disk: &Disk| {
            Pool::examine(std::slice::from_ref(&disk.named)).await.unwrap().unproven
        };
        let options = |unproven| OpenOptions {
            absent: AbsentLegs::GiveUp(unproven),
            ..OpenOptions::default()
        };
        // The operator was asked about the absence of b, and a is absent now.
        let accepted = options(without(&a).await);
        let refused = Pool::open_with(vec![b.named.clone()], &accepted).await.err().unwrap();
        let PoolError::AbsentLeg { id, .. } = refused else { panic!("{refused}") };
        assert_eq!(vec![id], without(&b).await);
        let accepted = options(without(&b).await);
        let pool = Pool::open_with(vec![b.named.clone()], &accepted).await.unwrap();
        holds(&pool.open_volume("db").unwrap(), 1).await;
    })
    .unwrap();
}

/// A device that a later program had used counted as absent, so the older one could be opened with
/// consent.
#[test]
fn leg_of_a_later_version_refuses_the_pool() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        drop(create(&[&a, &b]).await);
        for copy in 0..4_u64 {
            let at = copy * (256 << 10);
            let read = b.memory.read(at, buf::alloc(4096).await).await.unwrap();
            let mut later = read.to_vec();
            later[8] = 9;
            b.memory.write(at, Buf::copy_of(&later).unwrap(), true).await.unwrap();
        }
        let refused = open(&[&a, &b]).await.err().unwrap();
        assert!(matches!(refused, PoolError::Superblock { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("/b") && text.contains("version 9"), "{text}");
    })
    .unwrap();
}
