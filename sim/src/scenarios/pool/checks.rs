//! Checks of a pool scenario: what exists after a crash, snapshots, and everything at rest.

use flagstone_blockdev::BlockDevice;
use flagstone_pool::{Pool, PoolError};
use flagstone_runtime::{buf, time};

use super::cluster::{Cluster, LogDevice, TIMEOUT};
use crate::load::verify;

const PIECE: u64 = 64 << 10;

/// Content of a device, or None if it cannot be read.
pub(super) async fn content(device: &dyn BlockDevice) -> Option<Vec<u8>> {
    let (size, mut all) = (device.geometry().size_bytes, Vec::new());
    while (all.len() as u64) < size {
        let len = PIECE.min(size - all.len() as u64) as usize;
        let mut tries = 0;
        let read = loop {
            match device.read(all.len() as u64, buf::alloc(len).await).await {
                Ok(read) => break read,
                Err(_) if tries < 20 => tries += 1,
                Err(_) => return None,
            }
        };
        all.extend_from_slice(&read);
    }
    Some(all)
}

impl Cluster {
    /// Waits for the pool after a restart. Without damage it has to open.
    ///
    /// # Panics
    /// If it does not.
    pub(super) async fn reopened(&mut self) -> Option<Pool> {
        let pool = self.opened().await;
        if pool.is_none() {
            let refused = self.node.refused.borrow();
            let why = refused.as_ref().map_or("no answer".to_owned(), PoolError::to_string);
            assert!(self.damaged, "the pool does not open: {why}\n{}", self.sim.report());
            assert!(refused.is_some(), "damage is not reported");
        }
        pool
    }

    /// Reads a snapshot, and compares it with what it was.
    pub(super) async fn check_snapshot(&mut self, index: usize) {
        let pool = self.node.pool.borrow().clone().expect("it is open");
        let name = self.snapshots[index].name.clone();
        let Ok(device) = pool.open_snapshot(&name) else {
            assert!(self.damaged, "snapshot {name} is missing");
            return;
        };
        drop(pool);
        let read = self.sim.spawn_on(self.server, async move { content(&*device).await });
        let Ok(found) = time::timeout(TIMEOUT, read).await.expect("reads end") else { return };
        let snapshot = &mut self.snapshots[index];
        let Some(found) = found else {
            assert!(self.profile.faulty, "{} cannot be read", snapshot.name);
            return;
        };
        match &snapshot.content {
            Some(before) => assert!(*before == found, "snapshot {} has changed", snapshot.name),
            None => {
                snapshot.model.check_snapshot(&snapshot.point, &found);
                snapshot.content = Some(found);
            }
        }
    }

    /// Compares what the pool has with what it must have. The server is up and its orders were
    /// answered.
    pub(super) fn check_names(&mut self) {
        let pool = self.node.pool.borrow().clone().expect("it is open");
        let volumes = pool.volumes().into_iter().map(|volume| (volume.name, volume.size_bytes));
        let snapshots = pool.snapshots().into_iter().map(|found| (found.name, found.size_bytes));
        let mut found: Vec<(String, u64)> = volumes.chain(snapshots).collect();
        found.retain(|(name, _)| !self.ghosts.contains(name));
        found.sort();
        let own = self.volumes.iter().map(|volume| (volume.name.clone(), volume.size_bytes));
        let kept = self.snapshots.iter().map(|own| (own.name.clone(), own.size_bytes));
        let mut expected: Vec<(String, u64)> = own.chain(kept).collect();
        expected.sort();
        assert_eq!(found, expected, "volumes and snapshots of the pool");
    }
}

/// Ends all faults and loads, and checks everything; then once more after a stop in order.
pub(super) async fn at_rest(cluster: &mut Cluster) {
    cluster.heal();
    if cluster.node.log.get() == LogDevice::Absent {
        cluster.node.log.set(LogDevice::Present);
    }
    if cluster.reopened().await.is_none() {
        return;
    }
    cluster.stop_loads().await;
    // A write may have failed until now; a failed durable write is noticed at the next one.
    if cluster.profile.faulty {
        cluster.kill(false);
        cluster.restart();
    }
    for last in [false, true] {
        let Some(pool) = cluster.reopened().await else { return };
        check_all(cluster, &pool).await;
        if last {
            break;
        }
        let closing = cluster.sim.spawn_on(cluster.server, async move { pool.close().await });
        let closed = time::timeout(TIMEOUT, closing).await.expect("it ends");
        let closed = closed.expect("the task is not aborted");
        assert!(closed.is_ok() || cluster.damaged, "the pool does not close: {closed:?}");
        cluster.kill(false);
        check_closed(cluster).await;
        cluster.restart();
    }
}

async fn check_all(cluster: &mut Cluster, pool: &Pool) {
    if !cluster.damaged {
        cluster.check_names();
    }
    for index in 0..cluster.snapshots.len() {
        cluster.check_snapshot(index).await;
    }
    let mut unreadable = false;
    for index in 0..cluster.volumes.len() {
        unreadable |= !cluster.verify(index).await;
    }
    let scrubbed = pool.clone();
    let damage = cluster.sim.spawn_on(cluster.server, async move {
        let mut place = Some(scrubbed.begin_scrub().await?);
        let mut damage = Vec::new();
        while let Some(from) = place {
            let step = scrubbed.scrub(from).await?;
            damage.extend(step.damage);
            place = step.next;
        }
        Ok::<_, flagstone_blockdev::IoError>(damage)
    });
    let damage = time::timeout(TIMEOUT, damage).await.expect("a scrub ends");
    match damage.expect("the task is not aborted") {
        Ok(damage) => {
            assert!(damage.is_empty() || cluster.damaged, "a scrub finds {damage:?}");
            assert!(!unreadable || !damage.is_empty(), "a scrub does not find what cannot be read");
        }
        Err(error) => assert!(cluster.damaged, "a scrub fails: {error}"),
    }
}

/// Checks the devices without a server.
async fn check_closed(cluster: &Cluster) {
    cluster.sim.restart(cluster.server);
    let devices = cluster.all_devices();
    let checked = cluster.sim.spawn_on(cluster.server, async move {
        Pool::check_devices(devices(), &mut |_, _| {}).await
    });
    let checked = time::timeout(TIMEOUT, checked).await.expect("a check ends");
    match checked.expect("the task is not aborted") {
        Ok(report) => {
            assert!(
                report.damage.is_empty() || cluster.damaged,
                "a check finds {:?}",
                report.damage
            );
        }
        Err(error) => assert!(cluster.damaged, "a check is refused: {error}"),
    }
    cluster.sim.crash(cluster.server);
}

impl Cluster {
    /// Reads a volume over the network. False if a part cannot be read.
    async fn verify(&self, index: usize) -> bool {
        let pool = self.node.pool.borrow().clone().expect("it is open");
        if self.damaged && pool.volume(&self.volumes[index].name).is_none() {
            return true;
        }
        let device = time::timeout(TIMEOUT, self.attach(index)).await;
        let device = device.expect("the volume is served").expect("the task is not aborted");
        let model = self.volumes[index].model.clone();
        if !self.damaged {
            let host = self.on_host(async move { verify(&device, &model).await });
            let read = time::timeout(TIMEOUT, host).await.expect("sound disks");
            read.expect("the task is not aborted").expect("sound disks");
            return true;
        }
        let host = self.on_host(async move { verify_damaged(&device, &model).await });
        let read = time::timeout(TIMEOUT, host).await.expect("reads end");
        read.expect("the task is not aborted")
    }
}

/// Reads a volume of which parts may fail, block by block.
async fn verify_damaged(
    device: &flagstone_blockdev::SharedDevice,
    model: &crate::model::Shared,
) -> bool {
    let mut whole = true;
    for offset in (0..device.geometry().size_bytes.min(model.bytes())).step_by(4096) {
        let mut tries = 0;
        loop {
            let claim = model.claim(offset, 4096, None).expect("it runs alone");
            match device.read(offset, buf::alloc(4096).await).await {
                Ok(data) => {
                    claim.returned(&data);
                    break;
                }
                Err(_) if tries < 3 => tries += 1,
                Err(_) => {
                    whole = false;
                    break;
                }
            }
        }
    }
    whole
}
