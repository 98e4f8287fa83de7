//! Checks of a chain scenario on the content of the disks, by the simulator itself.

use std::time::Duration;

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::Mode;
use flagstone_mirror::state::status::MirrorState;
use flagstone_runtime::buf;

use super::cluster::Cluster;
use super::history::{BLOCK, SIMULATOR};
use super::operator;

/// Longest time between two looks at the cluster.
const LOOK_PERIOD: Duration = Duration::from_millis(25);
/// Simulated time within which every call of a host ends when nothing fails any more.
const CALL_LIMIT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Lets time pass, and looks at the cluster now and then.
    pub(super) fn pass(&self, span: Duration) {
        let end = self.sim.now() + span;
        while self.sim.now() < end {
            let left = end.since(self.sim.now());
            self.sim.run_for(left.min(LOOK_PERIOD));
            self.stop_fenced();
            self.look();
        }
    }

    /// Checks what must hold at any moment.
    pub(super) fn look(&self) {
        let active = self.active();
        if self.profile.pooled && !self.looks_at_pools() {
            return;
        }
        if let Some(source) = active
            && self.is_quiet(source)
        {
            self.assert_legs_equal();
            self.world.is_past[1 - source].set(true);
            self.world.lost_power[1 - source].set(false);
        }
        for index in 0..2 {
            self.assert_past(index);
        }
    }

    /// Limits checks of pools, because recovering copies of pools takes long: one in 30, and fewer
    /// after 30 of those.
    fn looks_at_pools(&self) -> bool {
        let looks = self.pool_looks.get();
        let looked = self.sim.chance(if looks < 30 { 0.03 } else { 0.003 });
        self.pool_looks.set(looks + u32::from(looked));
        looked
    }

    /// True if the mirror is in sync, and no write is in flight.
    fn is_quiet(&self, source: usize) -> bool {
        let attached = self.mirror(1 - source).is_some_and(|mirror| mirror.has_source());
        if !attached || self.state(source) != Some(MirrorState::Mirroring) {
            return false;
        }
        self.status(source).is_some_and(|status| {
            status.in_flight == 0 && !status.local_device_failed && status.peers[0].lag_writes == 0
        })
    }

    fn assert_legs_equal(&self) {
        let Some(at) = self.first_difference() else { return };
        let legs = [0, 1].map(|index| self.data(index));
        let number = at as usize / BLOCK;
        let shown = legs.each_ref().map(|leg| {
            self.world.history.describe(number, &leg[number * BLOCK..(number + 1) * BLOCK])
        });
        let story = self.world.history.story_of(number);
        self.fail(&format!(
            "in sync, but the disks differ in block {number}: {} on node 0, {} on node 1\n{story}",
            shown[0], shown[1]
        ));
    }

    /// Checks a target that may be promoted: its disk must show one moment of the past.
    fn assert_past(&self, index: usize) {
        if !self.world.is_past[index].get() || self.serves(index) {
            return;
        }
        let Some(mirror) = self.mirror(index) else { return };
        if mirror.is_unverified() || mirror.has_failed() {
            return;
        }
        let (superblock, data) = self.replica(index);
        let Some(superblock) = superblock else { return };
        if superblock.flags.inconsistent || superblock.current.is_none() {
            return;
        }
        if let Err(what) = self.world.history.check_cut(&data) {
            self.fail(&format!("node {index} may be promoted: {what}"));
        }
    }

    /// Holds the hosts' calls until the disks can be compared, for at most a second.
    pub(super) fn lull(&self) {
        self.world.hold.set(true);
        self.pass(Duration::from_secs(1));
        self.world.hold.set(false);
    }
}

/// Stops the hosts, and checks the volume and the disks of a mirror that is in sync.
pub(super) fn at_rest(cluster: &Cluster) {
    let (sim, world) = (&cluster.sim, &cluster.world);
    world.stop.set(true);
    let deadline = sim.now() + CALL_LIMIT;
    while world.history.open_calls() > 0 {
        cluster.pass(Duration::from_millis(100));
        if sim.now() > deadline {
            cluster.fail("a host's call does not end");
        }
    }
    cluster.pass(Duration::from_secs(2));
    operator::recover(cluster);
    let deadline = sim.now() + CALL_LIMIT;
    while !cluster.active().is_some_and(|source| cluster.is_quiet(source)) {
        cluster.pass(Duration::from_millis(100));
        if sim.now() > deadline {
            cluster.fail("in sync, but never quiet");
        }
    }
    let Some(source) = cluster.active() else { cluster.fail("no node serves") };
    cluster.assert_legs_equal();
    let mirror = cluster.mirror(source).expect("it serves");
    let (bytes, checked) = (cluster.data(source).len(), world.clone());
    let checking = sim.spawn_on(cluster.nodes[source], async move {
        mirror.flush().await.expect("a sound mirror");
        let began = checked.history.begin();
        let data = mirror.read(0, buf::alloc(bytes).await).await.expect("a sound mirror");
        checked.history.end_read(SIMULATOR, began, 0, &data);
    });
    sim.block_on(checking).expect("the task is not aborted");
    cluster.assert_legs_equal();
    if world.mode == Mode::Sync {
        assert_target_durable(cluster, 1 - source);
    }
}

/// Checks that a power loss does not change a target whose source has flushed.
fn assert_target_durable(cluster: &Cluster, target: usize) {
    let shown = cluster.data(target);
    cluster.end(target, true);
    let kept = cluster.data(target);
    if let Some(at) = shown.iter().zip(&kept).position(|(a, b)| a != b) {
        cluster.fail(&format!("the target loses byte {at} after a flush"));
    }
}
