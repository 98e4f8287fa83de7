//! The ceiling of pooled memory and the queue of those who wait at it, in a process of its own: the
//! ceiling is the process's.
#![allow(missing_docs)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::sync::Notify;
use flagstone_runtime::{Config, buf, cores, random_u64, run, spawn, spawn_detached, task, time};

const MIB: usize = 1 << 20;
const NET: Duration = Duration::from_secs(60);

/// One test at a time has the ceiling, and idle blocks of none are left to the next.
fn alone(memory_bytes: usize, core_count: usize, test: impl AsyncFn() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let run = move || {
        let config = Config { memory_bytes, cores: core_count, ..Config::default() };
        run(&config, async || time::timeout(NET, test()).await.expect("all of it ends")).unwrap();
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(buf::memory_held(), 0, "all memory went back");
}

#[test]
fn memory_has_a_ceiling_and_waiters_get_what_comes_back() {
    alone(4 * MIB, 1, async || {
        let first = buf::try_alloc(2 * MIB).unwrap();
        let second = buf::try_alloc(2 * MIB).unwrap();
        assert!(buf::try_alloc(4096).is_none());
        assert!(buf::memory_held() <= 4 * MIB);
        let waiting = spawn(async { buf::alloc(MIB).await });
        task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap().len(), MIB);
        drop(second);
    });
}

#[test]
fn nobody_overtakes_in_the_queue() {
    alone(8 * MIB, 1, async || {
        let taken = buf::try_alloc(6 << 20).unwrap();
        let order = Rc::new(RefCell::new(Vec::new()));
        // A large one first, then small ones that would fit at once.
        let tasks: Vec<_> = [4 * MIB, 4096, 2 * MIB, 64 << 10, 4096]
            .into_iter()
            .map(|len| {
                let order = order.clone();
                spawn(async move {
                    let got = buf::acquire(len).await.unwrap();
                    order.borrow_mut().push(len);
                    task::yield_now().await;
                    drop(got);
                })
            })
            .collect();
        task::yield_now().await;
        assert!(buf::try_alloc(4096).is_none(), "there is room, but others wait");
        assert!(order.borrow().is_empty());
        drop(taken);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [4 * MIB, 4096, 2 * MIB, 64 << 10, 4096]);
    });
}

#[test]
fn who_stops_waiting_makes_way() {
    alone(4 * MIB, 1, async || {
        let taken = buf::try_alloc(2 * MIB).unwrap();
        let other = buf::try_alloc(MIB).unwrap();
        let given_up = time::timeout(Duration::from_millis(5), buf::acquire(2 * MIB));
        let small = spawn(async {
            time::sleep(Duration::from_millis(1)).await;
            buf::acquire(4096).await
        });
        assert!(given_up.await.is_err());
        small.await.unwrap().unwrap();
        drop(other);
        // Given and not taken: it goes on to the next.
        let second = buf::try_alloc(2 * MIB).unwrap();
        let first = spawn(buf::acquire(2 * MIB)).abort_on_drop();
        let next = spawn(buf::acquire(2 * MIB));
        task::yield_now().await;
        drop(taken);
        drop(first);
        next.await.unwrap().unwrap();
        drop(second);
    });
}

/// What it waits for must have room to be received, and what holds up a receiver must not wait at all.
#[test]
fn what_waits_for_others_has_an_eighth_and_nothing_of_a_reserve() {
    alone(16 * MIB, 1, async || {
        let data: Vec<_> = (0..3).map(|_| buf::try_alloc(MIB).unwrap().freeze()).collect();
        let first = buf::Parked::keep(&data[0]).unwrap();
        let _second = buf::Parked::keep(&data[1]).unwrap();
        assert!(buf::Parked::keep(&data[2]).is_none());
        drop(first);
        let _third = buf::Parked::keep(&data[2]).unwrap();
        assert!(buf::Parked::keep(&data[0]).is_none());
        // This has its bound already.
        let received = buf::Ahead::new(MIB).try_alloc(MIB).unwrap().freeze();
        assert!(buf::Parked::keep(&received).is_some());
        drop((data, received));
        let reserve = buf::Reserve::new(Rc::default());
        drop(buf::acquire_with_reserve(4096, &reserve, 4096).await.unwrap());
        let reserved = reserve.try_alloc(4096).unwrap().freeze();
        assert!(buf::Parked::keep(&reserved).is_none());
        drop(reserved);
        assert!(reserve.try_alloc(4096).is_some(), "it is the owner's still");
    });
}

/// What is held until somebody acts has half of that, so the others have half at least.
#[test]
fn what_is_held_has_a_sixteenth() {
    alone(16 * MIB, 1, async || {
        let data: Vec<_> = (0..3).map(|_| buf::try_alloc(MIB).unwrap().freeze()).collect();
        let held = buf::Parked::hold(&data[0]).unwrap();
        assert!(buf::Parked::hold(&data[1]).is_none());
        let waits = buf::Parked::keep(&data[1]).unwrap();
        assert!(buf::Parked::keep(&data[2]).is_none());
        drop(held);
        let another = buf::Parked::keep(&data[2]).unwrap();
        assert!(buf::Parked::hold(&data[0]).is_none(), "the others have all of it");
        drop(waits);
        assert!(buf::Parked::hold(&data[0]).is_some());
        drop(another);
    });
}

/// Its users take turns, whoever has all other memory and does not give it back; they wait for it in
/// no way that keeps the queue from others.
#[test]
fn a_spare_goes_round_while_there_is_no_other_memory() {
    alone(4 * MIB, 1, async || {
        let all: Vec<_> = std::iter::from_fn(|| buf::try_alloc(MIB)).collect();
        let spare = Rc::new(buf::Spare::new(64 << 10));
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let spare = spare.clone();
                spawn(async move {
                    let got = spare.acquire(50_000).await;
                    assert_eq!(buf::memory_held(), (4 * MIB) + (64 << 10));
                    task::yield_now().await;
                    drop(got);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(all.len(), 4);
    });
}

/// All memory is held by commands that need more: each has it after the other.
#[test]
fn who_holds_memory_and_needs_more_has_it_in_the_end() {
    alone(4 * MIB, 1, async || {
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                spawn(async {
                    let held = buf::try_alloc(MIB).unwrap();
                    task::yield_now().await;
                    let more = buf::acquire_more(MIB - 1).await;
                    assert!(buf::memory_held() <= 5 * MIB, "one buffer beyond the ceiling");
                    time::sleep(Duration::from_millis(1)).await;
                    drop((held, more));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    alone(16 * MIB, 1, async || {
        assert_eq!(buf::acquire(16 * MIB).await.err(), Some(buf::TooLarge));
        assert_eq!(buf::acquire(64 * MIB).await.err(), Some(buf::TooLarge));
        assert!(buf::acquire(8 * MIB).await.is_ok());
        let reserve = buf::Reserve::new(Rc::default());
        let both = buf::acquire_with_reserve(8 * MIB, &reserve, 8 * MIB).await;
        assert_eq!(both.err(), Some(buf::TooLarge));
        assert!(buf::acquire_with_reserve(8 * MIB, &reserve, 2 * MIB).await.is_ok());
    });
}

#[test]
fn a_reserve_comes_back_to_its_owner_alone() {
    alone(5 * MIB, 1, async || {
        let bell = Rc::new(Notify::new());
        let reserve = buf::Reserve::new(bell.clone());
        let data = buf::acquire_with_reserve(2 * MIB, &reserve, MIB).await.unwrap();
        let rest = buf::try_alloc(2 * MIB).unwrap();
        let waiting = spawn(buf::acquire(4096));
        task::yield_now().await;
        let used = reserve.try_alloc(5000).unwrap().freeze();
        let part = used.slice(0..100);
        assert!(reserve.try_alloc(1).is_none(), "it is in use");
        assert!(reserve.try_alloc(2 * MIB).is_none());
        let back = spawn({
            let reserve = Rc::new(reserve);
            let again = reserve.clone();
            async move { (bell.wait_for(|| again.try_alloc(MIB)).await, reserve) }
        });
        drop(used);
        task::yield_now().await;
        assert!(!back.is_finished(), "part of it is in use");
        drop(part);
        let (again, reserve) = back.await.unwrap();
        assert!(!waiting.is_finished(), "others do not get it");
        reserve.give_up();
        drop(again);
        waiting.await.unwrap().unwrap();
        drop((data, rest));
    });
}

#[test]
fn memory_received_ahead_leaves_room_for_the_largest_request() {
    alone(16 * MIB, 2, async || {
        let hog = async || {
            let mut all = Vec::new();
            for _ in 0..100 {
                let ahead = buf::Ahead::new(MIB);
                while let Some(block) = ahead.try_alloc(256 << 10) {
                    all.push(block);
                }
                all.extend(ahead.try_alloc_passing(64 << 10));
            }
            all
        };
        let mine = hog().await;
        let held = Arc::new(AtomicUsize::new(0));
        let theirs = held.clone();
        cores()[1].spawn(move || async move {
            let all = hog().await;
            theirs.store(1, SeqCst);
            while theirs.load(SeqCst) != 2 {
                time::sleep(Duration::from_millis(1)).await;
            }
            drop(all);
            theirs.store(3, SeqCst);
        });
        while held.load(SeqCst) != 1 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(buf::memory_under_ceiling() <= 4 * MIB, "{}", buf::memory_under_ceiling());
        buf::acquire(8 * MIB).await.unwrap();
        drop(mine);
        held.store(2, SeqCst);
        while held.load(SeqCst) != 3 {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_payload_that_is_its_block_is_not_ahead_any_more() {
    alone(16 * MIB, 1, async || {
        let ahead = buf::Ahead::new(MIB);
        let whole = ahead.try_alloc(8192).unwrap().settle();
        assert_eq!(ahead.held_bytes(), 0);
        let mut block = ahead.try_alloc(64 << 10).unwrap();
        let part = block.split_to(4096).settle();
        drop(block);
        assert_eq!(ahead.held_bytes(), 64 << 10, "the part keeps all of it");
        drop((whole, part));
        assert_eq!(ahead.held_bytes(), 0);
    });
}

#[test]
fn another_core_is_woken_and_its_idle_blocks_are_had() {
    alone(8 * MIB, 2, async || {
        let state = Arc::new(AtomicUsize::new(0));
        let theirs = state.clone();
        cores()[1].spawn(move || async move {
            // Idle there from now on.
            drop((0..8).map(|_| buf::try_alloc(64 << 10).unwrap()).collect::<Vec<_>>());
            let held = buf::try_alloc(4 * MIB).unwrap();
            theirs.store(1, SeqCst);
            while theirs.load(SeqCst) == 1 {
                time::sleep(Duration::from_millis(1)).await;
            }
            drop(held);
        });
        while state.load(SeqCst) == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let mine = buf::acquire(4 * MIB).await.unwrap();
        let waiting = spawn(buf::acquire(4 * MIB));
        task::yield_now().await;
        state.store(2, SeqCst);
        waiting.await.unwrap().unwrap();
        drop(mine);
    });
}

/// What the crowd has seen.
#[derive(Default)]
struct Crowd {
    done: Cell<usize>,
    most: Cell<usize>,
    /// Numbers in the order of asking and of being given.
    asked: Cell<u64>,
    given: Cell<u64>,
}

impl Crowd {
    fn look(&self) {
        self.most.set(self.most.get().max(buf::memory_under_ceiling()));
    }
}

fn dice(bound: u64) -> u64 {
    random_u64() % bound
}

/// Asks, holds a while, gives back; many times.
async fn member(crowd: Rc<Crowd>, bell: Rc<Notify>) {
    for _ in 0..20 {
        let len = 1 << (9 + dice(13));
        crowd.look();
        match dice(5) {
            0 => {
                let got = buf::try_alloc(len);
                time::sleep(Duration::from_micros(dice(200))).await;
                drop(got);
            }
            1 => {
                let pause = Duration::from_micros(dice(100));
                drop(time::timeout(pause, buf::acquire(len)).await);
            }
            2 => {
                let reserve = buf::Reserve::new(bell.clone());
                let data = buf::acquire_with_reserve(len, &reserve, 64 << 10).await.unwrap();
                crowd.look();
                let used = reserve.try_alloc(100);
                time::sleep(Duration::from_micros(dice(300))).await;
                drop((data, reserve));
                time::sleep(Duration::from_micros(dice(100))).await;
                drop(used);
            }
            _ => {
                let place = crowd.asked.get();
                crowd.asked.set(place + 1);
                let got = buf::acquire(len).await.unwrap();
                crowd.given.set(crowd.given.get() + 1);
                crowd.look();
                time::sleep(Duration::from_micros(dice(300))).await;
                drop(got);
            }
        }
    }
    crowd.done.set(crowd.done.get() + 1);
}

#[test]
fn a_crowd_of_all_sizes_is_served_to_the_last_within_the_ceiling() {
    const MEMBERS: usize = 200;
    for seed in 1..=20 {
        alone(5 * MIB, 1, async || {
            let crowd = async || {
                let (crowd, bell) = (Rc::new(Crowd::default()), Rc::new(Notify::new()));
                for _ in 0..MEMBERS {
                    spawn_detached(member(crowd.clone(), bell.clone()));
                }
                while crowd.done.get() < MEMBERS {
                    time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(crowd.asked.get(), crowd.given.get());
                assert!(crowd.most.get() <= 5 * MIB, "{}", crowd.most.get());
                assert!(crowd.most.get() > 4 * MIB, "the ceiling was reached");
            };
            if seed == 1 {
                return crowd().await;
            }
            // The ceiling stays as it was set; a simulated world is a core of its own.
            std::thread::scope(|scope| {
                let world = || Simulation::new(seed, sim::Config::default()).block_on(crowd());
                scope.spawn(world).join().expect("the world ends");
            });
        });
    }
}

#[test]
fn crowds_on_two_cores_share_one_ceiling() {
    const MEMBERS: usize = 150;
    alone(5 * MIB, 2, async || {
        let finished = Arc::new(AtomicUsize::new(0));
        for core in cores() {
            let finished = finished.clone();
            core.spawn(move || async move {
                let (crowd, bell) = (Rc::new(Crowd::default()), Rc::new(Notify::new()));
                let members: Vec<_> =
                    (0..MEMBERS).map(|_| spawn(member(crowd.clone(), bell.clone()))).collect();
                for member in members {
                    member.await.unwrap();
                }
                assert!(crowd.most.get() <= 5 * MIB, "{}", crowd.most.get());
                finished.fetch_add(1, SeqCst);
            });
        }
        while finished.load(SeqCst) < 2 {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_large_request_among_many_small_ones_is_served_in_its_turn() {
    alone(8 * MIB, 1, async || {
        let (stop, before) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        // Together they want more than all of it, all the time.
        let small: Vec<_> = (0..1200)
            .map(|_| {
                let (stop, served) = (stop.clone(), before.clone());
                spawn(async move {
                    while !stop.get() {
                        let got = buf::acquire(8192).await.unwrap();
                        served.set(served.get() + 1);
                        task::yield_now().await;
                        drop(got);
                    }
                })
            })
            .collect();
        for _ in 0..10 {
            task::yield_now().await;
        }
        before.set(0);
        drop(buf::acquire(4 * MIB).await.unwrap());
        // Those that were before it in the queue, and those that had theirs.
        assert!(before.get() <= 2400, "{} were served before", before.get());
        stop.set(true);
        for task in small {
            task.await.unwrap();
        }
    });
}
