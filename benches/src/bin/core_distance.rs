//! Distance of two CPUs: how long a written cache line takes from one to the other.
//!
//! `core_distance CPU CPU` prints the median of five measurements, in ns. CPUs that share a cache
//! take 20 to 60 ns, others 100 to 300 ns. The host of a virtual machine may move its CPUs at any
//! time, and everything that two of them exchange over loopback becomes faster or slower by half.
#![allow(clippy::disallowed_methods, reason = "a program's edge: its two threads wait actively")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};

const ROUND_TRIPS: u32 = 20_000;
const MEASUREMENTS: usize = 5;

/// Counter in a cache line of its own. Even values are for the first CPU, odd ones for the second.
#[repr(align(128))]
struct Line(AtomicU32);

impl Line {
    fn pass(&self, from: u32) {
        while self.0.load(Ordering::Acquire) != from {
            std::hint::spin_loop();
        }
        self.0.store(from + 1, Ordering::Release);
    }
}

fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("CPU {cpu}: {error}"))
}

fn one_way_ns(first: usize, second: usize) -> Result<u128, String> {
    // Before the other thread waits for it.
    pin(first)?;
    let line = &Line(AtomicU32::new(0));
    std::thread::scope(|scope| {
        let (ready, started) = std::sync::mpsc::channel();
        let answering = scope.spawn(move || {
            let pinned = pin(second);
            if pinned.is_ok() && ready.send(()).is_ok() {
                (0..ROUND_TRIPS).for_each(|trip| line.pass(2 * trip + 1));
            }
            pinned
        });
        let begin = started.recv().ok().map(|()| Instant::now());
        if begin.is_some() {
            (0..ROUND_TRIPS).for_each(|trip| line.pass(2 * trip));
        }
        let took = begin.map_or(0, |begin| begin.elapsed().as_nanos());
        answering.join().map_err(|_| "a thread panicked".to_owned())??;
        Ok(took / u128::from(2 * ROUND_TRIPS))
    })
}

fn main() -> Result<(), String> {
    let cpus: Vec<usize> = std::env::args().skip(1).filter_map(|cpu| cpu.parse().ok()).collect();
    let [first, second] = cpus[..] else { return Err("core_distance CPU CPU".to_owned()) };
    if first == second || first.max(second) >= CpuSet::MAX_CPU {
        return Err("two different CPUs are needed".to_owned());
    }
    let all = (0..MEASUREMENTS).map(|_| one_way_ns(first, second));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable();
    println!("{}", all[MEASUREMENTS / 2]);
    Ok(())
}
