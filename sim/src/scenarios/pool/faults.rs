//! Faults of a pool scenario: crashes, slow and hung disks, and data faults of disks.

use std::time::Duration;

use flagstone_pool::{NamedDevice, PoolError};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, SimLatency};
use flagstone_runtime::time;

use super::cluster::{Cluster, LOG, LogDevice, named};
use super::operator;

impl Cluster {
    /// True if the pool has failed, so that its process must be restarted.
    pub(super) fn needs_reopening(&self) -> bool {
        let pool = self.node.pool.borrow();
        pool.as_ref().is_some_and(|pool| pool.status().failed.is_some())
    }

    /// All disks, with the log device.
    fn paths(&self) -> Vec<&'static str> {
        let log = self.profile.log.then_some(LOG);
        self.disks().into_iter().chain(log).collect()
    }

    /// Opens all disks, with the log device if it is part of the pool.
    pub(super) fn all_devices(&self) -> impl FnOnce() -> Vec<NamedDevice> + use<> {
        let paths = self.paths();
        move || paths.iter().filter_map(|path| named(path)).collect()
    }

    fn set_faults(&self, faults: &DiskFaults) {
        for path in self.paths() {
            self.sim.set_faults(self.server, path, faults.clone());
        }
    }

    fn set_latency(&self, read: SimLatency, write: SimLatency) {
        for path in self.paths() {
            self.sim.set_read_latency(self.server, path, read);
            self.sim.set_write_latency(self.server, path, write);
        }
    }

    /// Ends disk faults and delays.
    pub(super) fn heal(&self) {
        let config = DiskConfig::ssd();
        self.set_latency(config.read_latency, config.write_latency);
        self.set_faults(&DiskFaults::default());
    }
}

/// The server dies, and starts again after a while.
pub(super) async fn crash(cluster: &mut Cluster) {
    if cluster.profile.log && cluster.sim.chance(0.5) {
        return match cluster.sim.chance(0.5) {
            true => lose_log(cluster).await,
            false => hide_log(cluster).await,
        };
    }
    let power = cluster.sim.chance(0.6);
    cluster.kill(power);
    time::sleep(cluster.sim.random_span(Duration::ZERO, Duration::from_secs(2))).await;
    cluster.restart();
    // Also crashes of the recovery.
    while cluster.sim.chance(0.3) {
        time::sleep(cluster.sim.random_span(Duration::ZERO, Duration::from_millis(20))).await;
        let power = cluster.sim.chance(0.6);
        cluster.kill(power);
        cluster.restart();
    }
    if cluster.sim.chance(0.3) && cluster.reopened().await.is_some() && !cluster.damaged {
        cluster.check_names();
    }
}

/// Hides the log device for a while: the pool waits for it, unless its tail is empty.
async fn hide_log(cluster: &mut Cluster) {
    let power = cluster.sim.chance(0.6);
    cluster.kill(power);
    cluster.node.log.set(LogDevice::Absent);
    cluster.restart();
    time::sleep(cluster.sim.random_span(Duration::ZERO, Duration::from_secs(5))).await;
    if cluster.node.pool.borrow().is_none()
        && let Some(refused) = cluster.node.refused.take()
    {
        let is_missing = matches!(refused, PoolError::LogDeviceMissing { .. });
        assert!(is_missing, "without its log device, the pool says: {refused}");
    }
    let power = cluster.sim.chance(0.6);
    cluster.kill(power);
    cluster.node.log.set(LogDevice::Present);
    cluster.restart();
}

/// Replaces the log device by a blank one. The tail is lost, and its volumes are withheld.
async fn lose_log(cluster: &mut Cluster) {
    cluster.stop_loads().await;
    cluster.node.withheld.take();
    cluster.kill(true);
    let bytes = cluster.log_bytes;
    cluster.sim.poke(cluster.server, LOG, 0, &vec![0; bytes as usize]);
    cluster.node.log.set(LogDevice::Lost);
    cluster.restart();
    operator::adopt(cluster).await;
    cluster.node.log.set(LogDevice::Present);
    cluster.start_loads();
}

/// Disks become slow, hang, or are faulty.
pub(super) async fn disturb(cluster: &mut Cluster) {
    let sim = cluster.sim.clone();
    let paths = cluster.paths();
    let path = paths[sim.random_between(0, paths.len() as u64 - 1) as usize];
    let choice =
        if cluster.profile.faulty { sim.random_between(2, 7) } else { sim.random_between(0, 3) };
    match choice {
        0 | 1 => {
            sim.stall(cluster.server, path, sim.random_span(Duration::ZERO, Duration::from_secs(3)))
        }
        2 => {
            let most = sim.random_between(1, 10) * 1000;
            let latency = SimLatency::between_us(most / 2, most);
            cluster.set_latency(latency, latency);
        }
        3 => cluster.heal(),
        4 => {
            let faults = DiskFaults { read_errors: 0.01, ..DiskFaults::default() };
            cluster.set_faults(&faults);
        }
        5 => {
            let faults = DiskFaults { write_errors: 0.01, ..DiskFaults::default() };
            cluster.set_faults(&faults);
        }
        6 => rot(cluster, path),
        _ => lie(cluster).await,
    }
}

/// Flips some bits of a disk, in written blocks, because most of the disk is empty.
fn rot(cluster: &mut Cluster, path: &'static str) {
    let sim = &cluster.sim;
    let block = |number: u64| sim.peek(cluster.server, path, (1 << 20) + number * 4096, 4096);
    let is_written = |number: &u64| block(*number).iter().any(|byte| *byte != 0);
    let written: Vec<u64> = (0..cluster.data_bytes / 4096).filter(is_written).collect();
    let Some(last) = written.len().checked_sub(1) else { return };
    for _ in 0..sim.random_between(1, 20) {
        let number = written[sim.random_between(0, last as u64) as usize];
        let at = (1 << 20) + number * 4096 + sim.random_between(0, 4095);
        let mut byte = sim.peek(cluster.server, path, at, 1);
        byte[0] ^= 1 << sim.random_between(0, 7);
        sim.poke(cluster.server, path, at, &byte);
    }
    cluster.damaged = true;
}

/// Cuts the power after a while in which flushes had no effect.
async fn lie(cluster: &mut Cluster) {
    cluster.set_faults(&DiskFaults { lying_flushes: true, ..DiskFaults::default() });
    time::sleep(cluster.sim.random_span(Duration::ZERO, Duration::from_millis(60))).await;
    cluster.damaged = true;
    cluster.kill(true);
    cluster.heal();
    cluster.restart();
}
