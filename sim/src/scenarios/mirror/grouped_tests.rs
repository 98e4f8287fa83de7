//! Consistency groups: the scenario, and cases that it does not draw.

use flagstone_mirror::CommandError;
use flagstone_runtime::sim::DiskFaults;

use super::*;

#[test]
fn group_shows_one_moment_and_moves_as_one() {
    super::super::passes(&super::super::GROUP, 0..24);
}

const METADATA: std::ops::Range<u64> = BLOCKS * BLOCK..DEVICE_BYTES;
const SUPERBLOCKS: u64 = 8192;

/// A group that is in sync.
fn in_sync(seed: u64) -> (Cluster, usize, usize) {
    let cluster = Cluster::new(seed);
    let whole = |source: usize| cluster.states(source) == [MirrorState::Mirroring; VOLUMES];
    while !cluster.source().is_some_and(whole) {
        cluster.run_for(Duration::from_millis(10));
    }
    let source = cluster.source().expect("it serves");
    (cluster, source, 1 - source)
}

/// The log of a volume's replica cannot be written any more.
fn break_log(cluster: &Cluster, index: usize, volume: usize) {
    let log = METADATA.start..METADATA.end - SUPERBLOCKS;
    let faults = DiskFaults::default().unwritable_at(log);
    cluster.sim.set_faults(cluster.nodes[index], DISKS[volume], faults);
}

/// The device of a volume, while another handle of the same process has it.
async fn open_again(volume: usize) -> SharedDevice {
    let options = FileOptions { exclusive: false, ..FileOptions::default() };
    FileDevice::open(DISKS[volume], &options).expect("a sound disk")
}

/// The replacement of a member that moves to another mirror serves at once, without the peer.
#[test]
fn transfer_of_a_member_ends_the_group_session() {
    let (cluster, source, _) = in_sync(3);
    let mirror = cluster.mirror(source, 1);
    let begun = cluster.sim.spawn_on(cluster.nodes[source], async move {
        mirror.begin_transfer().await.map(std::mem::forget)
    });
    cluster.sim.block_on(begun).expect("the task is not aborted").expect("a sound disk");
    for volume in [0, 2] {
        assert_ne!(cluster.mirror(source, volume).state(0), MirrorState::Mirroring);
    }
}

/// A writer of one volume. Returns the start of its call in progress, and the number of calls.
type Progress = Rc<Cell<(Option<time::Instant>, u64)>>;

fn start_writer(cluster: &Cluster, index: usize, volume: usize) -> Progress {
    let (mirrors, progress) = (cluster.mirrors.clone(), Progress::default());
    let shown = progress.clone();
    cluster.sim.spawn_on(cluster.nodes[index], async move {
        loop {
            time::sleep(Duration::from_millis(10)).await;
            let mirror = mirrors.borrow()[index][volume].clone().expect("it runs");
            let calls = progress.get().1;
            progress.set((Some(time::now()), calls));
            let memory = buf::alloc(BLOCK as usize).await;
            let done = mirror.read(0, memory).await.is_ok() && mirror.flush().await.is_ok();
            progress.set((None, calls + u64::from(done)));
        }
    });
    shown
}

/// One member moves to another mirror, and its disk hangs at any moment of the move.
#[test]
fn hung_disk_of_moving_member_stalls_no_other() {
    for moment in 0..12 {
        let (cluster, source, _) = in_sync(moment);
        cluster.stop.set(true);
        let writers = [0, 1, 2].map(|volume| start_writer(&cluster, source, volume));
        let mirror = cluster.mirror(source, 1);
        cluster.sim.spawn_on(cluster.nodes[source], async move {
            if let Ok(transfer) = mirror.begin_transfer().await {
                let device = open_again(1).await;
                let _ = transfer.resize(&device, None, BLOCKS * BLOCK).await;
            }
        });
        cluster.sim.run_for(Duration::from_micros(500 * moment));
        cluster.sim.stall(cluster.nodes[source], DISKS[1], Duration::from_secs(600));
        for _ in 0..3000 {
            cluster.sim.run_for(Duration::from_millis(10));
            for (volume, writer) in writers.iter().enumerate() {
                let limit = Duration::from_secs(if volume == 1 { 26 } else { 2 });
                let waits = writer.get().0.map(|begun| cluster.sim.now().since(begun));
                assert!(waits.is_none_or(|waits| waits < limit), "{moment}: {volume} {waits:?}");
            }
        }
        for volume in [0, 2] {
            let calls = writers[volume].get().1;
            assert!(calls > 1000, "{moment}: {volume} {calls}");
        }
    }
}

#[test]
fn leaving_member_ends_the_group_session() {
    let (cluster, source, _) = in_sync(3);
    let mirror = cluster.mirror(source, 1);
    let left =
        cluster.sim.spawn_on(cluster.nodes[source], async move { mirror.leave_group_sessions() });
    cluster.sim.block_on(left).expect("the task is not aborted");
    assert_ne!(cluster.mirror(source, 2).state(0), MirrorState::Mirroring);
}

/// The log of a target is idle, so a failure of its device shows only when the target must serve.
#[test]
fn failover_with_a_dead_log_serves_no_volume() {
    for (volume, name) in NAMES.into_iter().enumerate() {
        let (cluster, source, target) = in_sync(3);
        cluster.end(source, false);
        break_log(&cluster, target, volume);
        let mirror = cluster.mirror(target, 0);
        let done =
            cluster.sim.spawn_on(cluster.nodes[target], async move { mirror.failover().await });
        let done = cluster.sim.block_on(done).expect("the task is not aborted");
        assert!(done.is_err(), "{}: {done:?}", name);
        assert_eq!(cluster.serving(target), [false; VOLUMES], "{}", name);
    }
}

#[test]
fn switchover_to_a_dead_log_moves_no_volume() {
    for (volume, name) in NAMES.into_iter().enumerate() {
        let (cluster, source, target) = in_sync(3);
        break_log(&cluster, target, volume);
        let mirror = cluster.mirror(source, 0);
        let done =
            cluster.sim.spawn_on(cluster.nodes[source], async move { mirror.switchover(0).await });
        let done = cluster.sim.block_on(done).expect("the task is not aborted");
        assert!(done.is_err(), "{}: {done:?}", name);
        assert_eq!(cluster.serving(source), [true; VOLUMES], "{}", name);
    }
}

/// The source cannot record that the leader was handed over.
#[test]
fn failed_disk_during_switchover_strands_no_member() {
    let (cluster, source, target) = in_sync(3);
    cluster.network.network().set_slow(Duration::from_millis(5));
    let mirror = cluster.mirror(source, 0);
    cluster.sim.spawn_on(cluster.nodes[source], async move {
        let _ = mirror.switchover(0).await;
    });
    while !cluster.mirror(target, 0).is_serving() {
        cluster.sim.run_for(Duration::from_micros(100));
    }
    let faults = DiskFaults::default().unwritable_at(METADATA);
    cluster.sim.set_faults(cluster.nodes[source], DISKS[0], faults);
    cluster.sim.run_for(Duration::from_secs(20));
    assert_eq!(cluster.serving(target), [true; VOLUMES], "{}", cluster.describe());
}

/// A write that waits at the target for writes that are still queued here would time out.
#[test]
fn group_sends_in_order_within_one_window() {
    // The window is two blocks, and some writes have four.
    let (cluster, ..) = in_sync(1);
    cluster.network.network().set_slow(Duration::from_millis(5));
    let before = cluster.network.network().ordered.get().early;
    cluster.sim.run_for(Duration::from_secs(2));
    let ordered = cluster.network.network().ordered.get();
    assert_eq!(ordered.early - before, 0);
    assert!(ordered.most_in_flight <= LONGEST * BLOCK, "{}", ordered.most_in_flight);
}

/// Regression: a member that could not deliver its queue recorded alone that the peer is out of
/// date. After a forced failover, the other members followed the peer, and this one was a split
/// brain.
#[test]
fn undelivered_member_of_stopping_group_concerns_all() {
    for demotes in [false, true] {
        let (cluster, source, target) = in_sync(0);
        cluster.stop.set(true);
        cluster.sim.run_for(Duration::from_secs(2));
        cluster.sim.stall(cluster.nodes[target], DISKS[1], Duration::from_secs(600));
        let mirror = cluster.mirror(source, 1);
        let written = cluster.sim.spawn_on(cluster.nodes[source], async move {
            mirror.write(0, buf::alloc(BLOCK as usize).await.freeze(), false).await
        });
        cluster.sim.block_on(written).expect("the task is not aborted").expect("asynchronous");
        // A demotion concerns all members, and a server stops each of them.
        let ordered = if demotes { 0..1 } else { 0..VOLUMES };
        let orders: Vec<_> = ordered
            .map(|volume| {
                let mirror = cluster.mirror(source, volume);
                cluster.sim.spawn_on(cluster.nodes[source], async move {
                    match demotes {
                        true => mirror.demote().await.map(|()| 0),
                        false => mirror.stop_with_group().await.map(|lacks| lacks.len()),
                    }
                })
            })
            .collect();
        let ended = orders.into_iter().map(|order| cluster.sim.block_on(order));
        let undelivered: Vec<_> =
            ended.map(|one| one.expect("it is not aborted").expect("a sound disk")).collect();
        assert!(demotes || undelivered == [0, 1, 0], "{undelivered:?}");
        assert_eq!(cluster.serving(source), [false; VOLUMES]);
        let is_outdated = |volume| {
            let found: Superblock = cluster.superblock(source, volume);
            found.peers.iter().any(|peer| !peer.bases.is_empty())
        };
        assert_eq!([0, 1, 2].map(is_outdated), [true; VOLUMES], "demotes: {demotes}");
    }
}

/// Each node of a split brain has served all volumes.
#[test]
fn serving_group_member_is_not_discarded() {
    let (cluster, source, target) = in_sync(3);
    cluster.network.network().cut(cluster.nodes[0], cluster.nodes[1]);
    cluster.network.network().cut(cluster.nodes[1], cluster.nodes[0]);
    cluster.sim.run_for(Duration::from_millis(200));
    let mirror = cluster.mirror(target, 0);
    let forced =
        cluster.sim.spawn_on(cluster.nodes[target], async move { mirror.failover().await });
    cluster.sim.block_on(forced).expect("the task is not aborted").expect("sound data");
    cluster.sim.run_for(Duration::from_millis(200));
    cluster.network.network().heal();
    let split = |index: usize| cluster.states(index) == [MirrorState::SplitBrain; VOLUMES];
    let deadline = cluster.sim.now() + RECOVERY_LIMIT;
    while !split(target) && !split(source) {
        cluster.sim.run_for(Duration::from_millis(10));
        assert!(cluster.sim.now() < deadline, "{}", cluster.describe());
    }
    let serves = (0..2).find(|index| cluster.serving(*index) == [true; VOLUMES]);
    let serves = serves.expect("one node serves");
    let mirror = cluster.mirror(serves, 1);
    let kept = cluster.sim.spawn_on(cluster.nodes[serves], async move {
        (mirror.check_resolve(0, false).await, mirror.resolve_keep_peers(0).await)
    });
    let (checked, kept) = cluster.sim.block_on(kept).expect("the task is not aborted");
    assert_eq!((checked, kept), (Err(CommandError::GroupServes), Err(CommandError::GroupServes)));
    assert_eq!(cluster.serving(serves), [true; VOLUMES]);
}

/// A write to one volume depends on a completed one to another.
#[test]
fn missing_dependency_across_volumes_is_found() {
    let history = History::default();
    let first = history.begin(0, 1);
    history.complete(first);
    let second = history.begin(BLOCKS, 1);
    let shows = |blocks: &[(u64, u64)]| {
        let mut found = vec![0; ALL_BLOCKS as usize];
        blocks.iter().for_each(|(block, number)| found[*block as usize] = *number);
        history.check(&found).is_ok()
    };
    assert!(shows(&[]) && shows(&[(0, first)]) && shows(&[(0, first), (BLOCKS, second)]));
    assert!(!shows(&[(BLOCKS, second)]));
    let mut found = vec![0; ALL_BLOCKS as usize];
    history.lose(&found);
    found[BLOCKS as usize] = second;
    assert!(history.check(&found).is_ok(), "the first write was lost before");
}
