//! Cost of the load generator per I/O: jobs against devices that do no work, immediately or later.
//!
//! `cargo run --release -p flagstone-load --example generator_cost`
//!
//! `at once` completes before the call returns. `later` completes each batch of calls from one
//! task, as a connection does when responses arrive. `tasks` is an alternative generator with one
//! task per I/O in flight, against the same late device, for comparison.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_load::{AccessPattern, LoadJob, Stop, run};
use flagstone_runtime::{Buf, BufMut, CoreLocal, buf, spawn, spawn_detached, task, time};

#[derive(Default)]
struct Batch {
    waiting: RefCell<Vec<(Rc<Cell<bool>>, Waker)>>,
    running: Cell<bool>,
}

struct Idle {
    later: Option<CoreLocal<Batch>>,
}

impl Idle {
    fn answer<T: 'static>(&self, value: T) -> IoFuture<T> {
        let Some(batch) = &self.later else { return IoFuture::ready(Ok(value)) };
        let batch = batch.get_or_init(Batch::default);
        let done = Rc::new(Cell::new(false));
        let mut value = Some(value);
        IoFuture::later(poll_fn(move |cx| {
            if done.get() {
                return Poll::Ready(Ok(value.take().expect("polled after completion")));
            }
            batch.waiting.borrow_mut().push((done.clone(), cx.waker().clone()));
            if !batch.running.replace(true) {
                spawn_detached(complete(batch.clone()));
            }
            Poll::Pending
        }))
    }
}

/// Lets the core collect calls for a turn, then completes all of them.
async fn complete(batch: Rc<Batch>) {
    task::yield_now().await;
    batch.running.set(false);
    let mut waiting = std::mem::take(&mut *batch.waiting.borrow_mut());
    for (done, waker) in waiting.drain(..) {
        done.set(true);
        waker.wake();
    }
    *batch.waiting.borrow_mut() = waiting;
}

impl BlockDevice for Idle {
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 40, 4096)
    }
    fn read(&self, _offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.answer(buf)
    }
    fn write(&self, _offset: u64, _data: Buf, _fua: bool) -> IoFuture<()> {
        self.answer(())
    }
    fn flush(&self) -> IoFuture<()> {
        self.answer(())
    }
    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        self.answer(())
    }
    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        self.answer(())
    }
}

async fn measure(name: &str, device: SharedDevice, pattern: AccessPattern, depth: usize) {
    let job = LoadJob { pattern, depth, time: Some(Duration::from_secs(2)), ..LoadJob::default() };
    match run(device, &job, &Stop::new(), |_| {}).await {
        Ok(results) => {
            let ios = results.total.as_ref().map_or(0.0, |total| total.iops);
            println!("{name:<8} {pattern:<9} depth {depth:>3}: {:>6.0} ns an I/O", 1e9 / ios);
        }
        Err(error) => println!("{name:<8} {pattern:<9} depth {depth:>3}: {error}"),
    }
}

/// The same load from one task per I/O in flight, with a counter as its only statistics.
async fn measure_tasks(device: SharedDevice, depth: usize) {
    let count = Rc::new(Cell::new(0_u64));
    let started = time::now();
    let end = started + Duration::from_secs(2);
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (device, count) = (device.clone(), count.clone());
            spawn(async move {
                let mut buf = buf::alloc(4096).await;
                while time::now() < end {
                    buf = device.read(0, buf).await.expect("the device never fails");
                    count.set(count.get() + 1);
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    let each = started.elapsed().as_nanos() as f64 / count.get() as f64;
    println!("tasks    randread  depth {depth:>3}: {each:>6.0} ns an I/O");
}

fn main() {
    let measured = flagstone_runtime::block_on(async {
        for depth in [1, 32, 128] {
            for pattern in [AccessPattern::RandRead, AccessPattern::RandWrite] {
                measure("at once", Arc::new(Idle { later: None }), pattern, depth).await;
                let later = Some(CoreLocal::new());
                measure("later", Arc::new(Idle { later }), pattern, depth).await;
            }
            measure_tasks(Arc::new(Idle { later: Some(CoreLocal::new()) }), depth).await;
        }
    });
    if let Err(error) = measured {
        eprintln!("{error}");
    }
}
