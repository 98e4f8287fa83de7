//! Memory limit and its queue of waiters. In a process of its own, because the limit is global.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::sync::Notify;
use flagstone_runtime::{
    RuntimeConfig, buf, cores, random_u64, run, spawn, spawn_detached, task, time,
};
use parking_lot::Mutex;

const MIB: usize = 1 << 20;
const NET: Duration = Duration::from_secs(60);

/// Serializes the tests, and leaves no idle blocks to the next one.
fn alone(memory_bytes: usize, core_count: usize, test: impl AsyncFn() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let run = move || {
        let config = RuntimeConfig {
            buffer_memory_bytes: memory_bytes,
            cores: core_count,
            ..RuntimeConfig::default()
        };
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
fn memory_limit_holds_and_waiters_get_freed_memory() {
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
fn memory_queue_is_first_come_first_served() {
    alone(8 * MIB, 1, async || {
        let taken = buf::try_alloc(6 << 20).unwrap();
        let order = Rc::new(RefCell::new(Vec::new()));
        // A large request first, then small ones that would fit at once.
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
fn cancelled_waiter_leaves_the_queue() {
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
        // Granted and not taken: it goes to the next waiter.
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

/// A waiting command must leave memory to receive the commands it waits for, and a command that
/// blocks its receiver must not wait with its memory.
#[test]
fn waiting_memory_is_bounded_and_excludes_reserves() {
    alone(16 * MIB, 1, async || {
        let data: Vec<_> = (0..3).map(|_| buf::try_alloc(MIB).unwrap().freeze()).collect();
        let first = buf::WaitingMemory::keep(&data[0]).unwrap();
        let _second = buf::WaitingMemory::keep(&data[1]).unwrap();
        assert!(buf::WaitingMemory::keep(&data[2]).is_none());
        drop(first);
        let _third = buf::WaitingMemory::keep(&data[2]).unwrap();
        assert!(buf::WaitingMemory::keep(&data[0]).is_none());
        // This is already counted against another budget.
        let received = buf::ReceiveBudget::new(MIB).try_alloc(MIB).unwrap().freeze();
        assert!(buf::WaitingMemory::keep(&received).is_some());
        drop((data, received));
        let reserve = buf::Reserve::new(Rc::default());
        drop(buf::acquire_with_reserve(4096, &reserve, 4096).await.unwrap());
        let reserved = reserve.try_alloc(4096).unwrap().freeze();
        assert!(buf::WaitingMemory::keep(&reserved).is_none());
        drop(reserved);
        assert!(reserve.try_alloc(4096).is_some(), "it is the owner's still");
    });
}

/// Held commands get at most half of the bound, so the others have at least half.
#[test]
fn held_memory_is_bounded() {
    alone(16 * MIB, 1, async || {
        let data: Vec<_> = (0..3).map(|_| buf::try_alloc(MIB).unwrap().freeze()).collect();
        let held = buf::WaitingMemory::hold(&data[0]).unwrap();
        assert!(buf::WaitingMemory::hold(&data[1]).is_none());
        let waits = buf::WaitingMemory::keep(&data[1]).unwrap();
        assert!(buf::WaitingMemory::keep(&data[2]).is_none());
        drop(held);
        let another = buf::WaitingMemory::keep(&data[2]).unwrap();
        assert!(buf::WaitingMemory::hold(&data[0]).is_none(), "the others have all of it");
        drop(waits);
        assert!(buf::WaitingMemory::hold(&data[0]).is_some());
        drop(another);
    });
}

/// The users of a shared reserve take turns while all other memory is in use and not returned, and
/// do not block the queue for others.
#[test]
fn shared_reserve_is_taken_in_turn() {
    alone(4 * MIB, 1, async || {
        let all: Vec<_> = std::iter::from_fn(|| buf::try_alloc(MIB)).collect();
        let spare = Rc::new(buf::SharedReserve::new(64 << 10));
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

/// All memory is held by commands that need more: each gets it in turn.
#[test]
fn acquire_more_cannot_deadlock() {
    alone(4 * MIB, 1, async || {
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                spawn(async {
                    let held = buf::try_alloc(MIB).unwrap();
                    task::yield_now().await;
                    let more = buf::acquire_more(MIB - 1).await;
                    assert!(buf::memory_held() <= 5 * MIB, "one buffer beyond the limit");
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
fn request_beyond_limit_is_refused_at_once() {
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
fn reserve_returns_to_its_owner() {
    alone(5 * MIB, 1, async || {
        let notify = Rc::new(Notify::new());
        let reserve = buf::Reserve::new(notify.clone());
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
            async move { (notify.wait_for(|| again.try_alloc(MIB)).await, reserve) }
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
fn receive_budget_leaves_room_for_largest_request() {
    alone(16 * MIB, 2, async || {
        let hog = async || {
            let mut all = Vec::new();
            for _ in 0..100 {
                let ahead = buf::ReceiveBudget::new(MIB);
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
        assert!(buf::memory_under_limit() <= 4 * MIB, "{}", buf::memory_under_limit());
        buf::acquire(8 * MIB).await.unwrap();
        drop(mine);
        held.store(2, SeqCst);
        while held.load(SeqCst) != 3 {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn settled_payload_leaves_receive_budget() {
    alone(16 * MIB, 1, async || {
        let ahead = buf::ReceiveBudget::new(MIB);
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
fn idle_blocks_of_other_core_are_used() {
    alone(8 * MIB, 2, async || {
        let state = Arc::new(AtomicUsize::new(0));
        let theirs = state.clone();
        cores()[1].spawn(move || async move {
            // These stay idle on that core.
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

/// Observations of the crowd.
#[derive(Default)]
struct Crowd {
    done: Cell<usize>,
    most: Cell<usize>,
    /// Sequence numbers of requests and grants.
    asked: Cell<u64>,
    given: Cell<u64>,
}

impl Crowd {
    fn look(&self) {
        self.most.set(self.most.get().max(buf::memory_under_limit()));
    }
}

fn dice(bound: u64) -> u64 {
    random_u64() % bound
}

/// Requests, holds for a while, returns; many times.
async fn member(crowd: Rc<Crowd>, notify: Rc<Notify>) {
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
                let reserve = buf::Reserve::new(notify.clone());
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
fn mixed_sizes_are_all_served_within_limit() {
    const MEMBERS: usize = 200;
    for seed in 1..=20 {
        alone(5 * MIB, 1, async || {
            let crowd = async || {
                let (crowd, notify) = (Rc::new(Crowd::default()), Rc::new(Notify::new()));
                for _ in 0..MEMBERS {
                    spawn_detached(member(crowd.clone(), notify.clone()));
                }
                while crowd.done.get() < MEMBERS {
                    time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(crowd.asked.get(), crowd.given.get());
                assert!(crowd.most.get() <= 5 * MIB, "{}", crowd.most.get());
                assert!(crowd.most.get() > 4 * MIB, "the limit was reached");
            };
            if seed == 1 {
                return crowd().await;
            }
            // The limit stays as it was set; a simulated world is a core of its own.
            std::thread::scope(|scope| {
                let world = || Simulation::new(seed, sim::SimConfig::default()).block_on(crowd());
                scope.spawn(world).join().expect("the world ends");
            });
        });
    }
}

#[test]
fn two_cores_share_one_memory_limit() {
    const MEMBERS: usize = 150;
    alone(5 * MIB, 2, async || {
        let finished = Arc::new(AtomicUsize::new(0));
        for core in cores() {
            let finished = finished.clone();
            core.spawn(move || async move {
                let (crowd, notify) = (Rc::new(Crowd::default()), Rc::new(Notify::new()));
                let members: Vec<_> =
                    (0..MEMBERS).map(|_| spawn(member(crowd.clone(), notify.clone()))).collect();
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
fn large_request_is_not_starved_by_small_ones() {
    alone(8 * MIB, 1, async || {
        let (stop, before) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        // Together they always want more than the limit.
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
        // Requests that were before it in the queue, and requests that were already granted.
        assert!(before.get() <= 2400, "{} were served before", before.get());
        stop.set(true);
        for task in small {
            task.await.unwrap();
        }
    });
}
