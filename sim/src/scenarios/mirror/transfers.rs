//! Disks that hang while a volume grows or its peers change: on either node, at any moment, no host
//! call waits for longer than half a minute, and the order fails.
//!
//! Not covered, besides what [`super::pair`] leaves out: a disk that hangs after the change, before
//! the target has caught up, because no other copy exists then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::Mirror;
use flagstone_mirror::PeerChange;
use flagstone_mirror::ondisk::member::{Member, MemberChange};
use flagstone_mirror::state::status::MirrorState;
use flagstone_runtime::{buf, time};

use super::growth::{GROWN, NEW};
use super::pair::{BLOCK, BLOCKS, Change, DATA, Group, NAMES, Pair, Trio, fill};

/// 5 s and 20 s of a transfer, or a quarter more than the 20 s after which a local leg fails.
const LIMIT: Duration = Duration::from_secs(26);

/// Host calls: start of each call in progress, and the acknowledged values.
struct Hosts {
    open: RefCell<Vec<Option<time::Instant>>>,
    acknowledged: Cell<u8>,
    calls: Cell<u64>,
}

type Current = Rc<dyn Fn() -> Option<Arc<Mirror>>>;

async fn call(mirror: &Mirror, round: u8, reads: bool) -> bool {
    match reads {
        true => {
            let memory = buf::alloc(BLOCK as usize).await;
            mirror.read(7 * BLOCK, memory).await.is_ok()
        }
        false => fill(mirror, 5, round).await.is_ok(),
    }
}

/// A writer, and a reader of another block, which use the serving node.
fn start_hosts<const N: usize>(group: &Group<N>) -> Rc<Hosts> {
    let hosts = Rc::new(Hosts {
        open: RefCell::new(vec![None; 2]),
        acknowledged: Cell::new(0),
        calls: Cell::new(0),
    });
    for reads in [false, true] {
        let nodes: Vec<Current> =
            (0..N).map(|index| Rc::new(group.current_mirror(index)) as Current).collect();
        let hosts = hosts.clone();
        group.sim.spawn_on(group.nodes[0], async move {
            let mut round = 0;
            loop {
                let serving = nodes.iter().filter_map(|current| current());
                let Some(mirror) = serving.into_iter().find(|mirror| mirror.is_serving()) else {
                    time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                round = round % 250 + 1;
                hosts.open.borrow_mut()[usize::from(reads)] = Some(time::now());
                let done = call(&mirror, round, reads).await;
                hosts.open.borrow_mut()[usize::from(reads)] = None;
                hosts.calls.set(hosts.calls.get() + u64::from(done));
                if done && !reads {
                    hosts.acknowledged.set(round);
                }
                time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    hosts
}

/// Runs, and fails when a host call takes too long.
fn run<const N: usize>(group: &Group<N>, hosts: &Hosts, span: Duration, about: &str) {
    let until = group.sim.now() + span;
    while group.sim.now() < until {
        group.sim.run_for(Duration::from_millis(10));
        assert!(group.active().len() < 2, "{about}: two nodes serve");
        for begun in hosts.open.borrow().iter().flatten() {
            let waits = group.sim.now().since(*begun);
            assert!(waits < LIMIT, "{about}: a host has waited for {waits:?}");
        }
    }
}

type Done = Rc<RefCell<Option<Result<(), String>>>>;

fn begin<const N: usize>(group: &Group<N>, change: &Change) -> Done {
    let (mirror, resizing, change) = (group.mirror(0), group.resizing(0), change.clone());
    let done = Done::default();
    let result = done.clone();
    group.sim.spawn_on(group.nodes[0], async move {
        if let Change::Size(bytes) = change
            && let Err(error) = mirror.zero_new_space(bytes).await
        {
            *result.borrow_mut() = Some(Err(error.to_string()));
            return;
        }
        resizing.change_or_reopen(&mirror, change, &result).await;
    });
    done
}

/// Numbers of outcomes, by the reaction of the source.
#[derive(Debug, Default)]
struct Outcomes {
    went_on: u32,
    refused: u32,
    unaffected: u32,
}

/// The source's disk hangs `after` the order. Hosts continue at one of the nodes.
fn hang_at_source<const N: usize>(
    group: &Group<N>,
    change: &Change,
    after: Duration,
    outcomes: &mut Outcomes,
) {
    let about = format!("{after:?}");
    let hosts = start_hosts(group);
    run(group, &hosts, Duration::from_millis(50), &about);
    let done = begin(group, change);
    run(group, &hosts, after, &about);
    if done.borrow().is_some() {
        outcomes.unaffected += 1;
        return;
    }
    group.sim.stall(group.nodes[0], DATA, Duration::from_secs(60));
    run(group, &hosts, Duration::from_secs(40), &about);
    let ended = done.borrow().clone();
    let error = ended.unwrap_or_else(|| panic!("{about}: the order has not ended"));
    error.expect_err("the disk hangs");
    let before = hosts.calls.get();
    match group.active()[..] {
        [] => {
            outcomes.refused += 1;
            let forced = group.on(1, |mirror| async move { mirror.failover().await });
            forced.unwrap_or_else(|error| panic!("{about}: {error}"));
        }
        _ => outcomes.went_on += 1,
    }
    run(group, &hosts, Duration::from_secs(5), &about);
    assert!(hosts.calls.get() > before + 100, "{about}: hosts do not go on");
    run(group, &hosts, Duration::from_secs(50), &about);
    let serves = match group.active()[..] {
        [serves] => serves,
        _ => panic!("{about}: {:?} serve", group.active()),
    };
    let acknowledged = hosts.acknowledged.get();
    let read = group.read(serves, 5);
    // The next write may be in progress.
    let next = [acknowledged % 250 + 1, (acknowledged + 1) % 250 + 1];
    assert!(
        read == acknowledged || next.contains(&read) || hosts.acknowledged.get() != acknowledged,
        "{about}: {read} and not {acknowledged}"
    );
    let state = group.mirror(serves).state(Group::<N>::leg_to(serves, 1 - serves));
    let settled = [MirrorState::Mirroring, MirrorState::SplitBrain, MirrorState::Resynchronizing];
    assert!(settled.contains(&state), "{about}: {state}");
}

fn grown_pair(seed: u64) -> Pair {
    let pair = Pair::new(seed, |_| {});
    for node in pair.nodes {
        pair.sim.grow_disk(node, DATA, NEW);
    }
    pair.sim.run_for(Duration::from_secs(3));
    let (mirror, resizing) = (pair.mirror(1), pair.resizing(1));
    pair.sim.spawn_on(pair.nodes[1], resizing.follow_source(mirror));
    pair
}

const GROWTH: Change = Change::Size((BLOCKS + GROWN) * BLOCK);

fn removal() -> Change {
    let members = vec![Member { name: NAMES[2].into(), change: MemberChange::Removed }];
    Change::Peers(PeerChange { legs: vec![Some(0)], members })
}

/// How long a change takes, in steps.
fn steps<const N: usize>(group: &Group<N>, change: &Change) -> Duration {
    let hosts = start_hosts(group);
    run(group, &hosts, Duration::from_millis(50), "sound");
    let begun = group.sim.now();
    let done = begin(group, change);
    while done.borrow().is_none() {
        group.sim.run_for(Duration::from_micros(50));
    }
    assert_eq!(*done.borrow(), Some(Ok(())));
    group.sim.now().since(begun)
}

/// Makes calls at every moment of a change to the mirror that the node has then. None fails.
fn call_during<const N: usize>(group: &Group<N>, change: &Change) {
    let ended: Rc<RefCell<Vec<bool>>> = Rc::default();
    let done = begin(group, change);
    let mut calls = 0;
    while done.borrow().is_none() {
        let (mirror, ended, kind) = (group.mirror(0), ended.clone(), calls % 3);
        group.sim.spawn_on(group.nodes[0], async move {
            let done = match kind {
                0 => mirror.flush().await.is_ok(),
                kind => call(&mirror, 1, kind == 1).await,
            };
            ended.borrow_mut().push(done);
        });
        calls += 1;
        group.sim.run_for(Duration::from_micros(50));
    }
    assert_eq!(*done.borrow(), Some(Ok(())));
    group.sim.run_for(Duration::from_secs(1));
    let failed = ended.borrow().iter().filter(|done| !**done).count();
    assert_eq!((failed, ended.borrow().len()), (0, calls));
}

/// Regression: calls that reached the replacement before it served failed.
#[test]
fn no_call_fails_while_volume_grows_or_peer_is_removed() {
    for seed in 0..4 {
        let pair = grown_pair(seed);
        call_during(&pair, &GROWTH);
        pair.clear();
        let trio = Trio::new(seed, |_| {});
        trio.isolate(2);
        trio.sim.run_for(Duration::from_secs(3));
        call_during(&trio, &removal());
        trio.clear();
    }
}

const MOMENTS: u32 = 24;

#[test]
fn hung_disk_of_source_during_growth_bounds_host_calls() {
    let span = steps(&grown_pair(100), &GROWTH);
    let mut outcomes = Outcomes::default();
    for moment in 0..MOMENTS {
        let pair = grown_pair(u64::from(moment));
        hang_at_source(&pair, &GROWTH, span * moment / MOMENTS, &mut outcomes);
        pair.clear();
    }
    assert!(outcomes.went_on > 2 && outcomes.refused > 2, "{outcomes:?}");
}

#[test]
fn hung_disk_during_removal_of_peer_bounds_host_calls() {
    let trio = |seed: u64| {
        let trio = Trio::new(seed, |_| {});
        trio.isolate(2);
        trio.sim.run_for(Duration::from_secs(3));
        trio
    };
    let span = steps(&trio(100), &removal());
    let mut outcomes = Outcomes::default();
    for moment in 0..MOMENTS {
        let trio = trio(u64::from(moment));
        hang_at_source(&trio, &removal(), span * moment / MOMENTS, &mut outcomes);
        trio.clear();
    }
    assert!(outcomes.went_on > 0 && outcomes.refused > 2, "{outcomes:?}");
}

/// The target's disk hangs. Hosts continue at the source.
#[test]
fn hung_disk_of_target_during_growth_stalls_no_host() {
    let span = steps(&grown_pair(100), &GROWTH);
    for moment in 0..MOMENTS / 3 {
        let pair = grown_pair(u64::from(moment));
        let about = format!("{moment}");
        let hosts = start_hosts(&pair);
        run(&pair, &hosts, Duration::from_millis(50), &about);
        let done = begin(&pair, &GROWTH);
        run(&pair, &hosts, span * 6 * moment / MOMENTS, &about);
        pair.sim.stall(pair.nodes[1], DATA, Duration::from_secs(60));
        // A command to a peer has a time limit, which the simulated link does not have.
        run(&pair, &hosts, Duration::from_secs(5), &about);
        pair.cut();
        run(&pair, &hosts, Duration::from_secs(1), &about);
        pair.network().heal();
        let before = hosts.calls.get();
        run(&pair, &hosts, Duration::from_secs(40), &about);
        assert!(done.borrow().is_some(), "{moment}: the order has not ended");
        assert_eq!(pair.active(), [0], "{moment}");
        assert!(hosts.calls.get() > before + 100, "{moment}: hosts do not go on");
        run(&pair, &hosts, Duration::from_secs(40), &about);
        pair.until(0, MirrorState::Mirroring);
        pair.clear();
    }
}

/// Neither node has other calls, so only the order notices the hung disk.
#[test]
fn hung_disk_during_zeroing_ends_the_order() {
    for index in [0, 1] {
        let pair = grown_pair(7);
        let done = begin(&pair, &GROWTH);
        pair.sim.run_for(Duration::from_micros(500));
        assert!(done.borrow().is_none());
        pair.sim.stall(pair.nodes[index], DATA, Duration::from_secs(600));
        pair.sim.run_for(LIMIT);
        let ended = done.borrow().clone().expect("the order has ended");
        ended.expect_err("the disk hangs");
        pair.clear();
    }
}
