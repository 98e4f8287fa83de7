//! Crash disk: records every write and flush, so that a test can rebuild the disk after a power
//! loss at any moment: all durable data, and any part of the rest, torn at sectors.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part")]

pub mod units;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_pool::NamedDevice;
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, BufMut, random_u64, time};
use parking_lot::Mutex;

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// Content of a disk by pages; missing pages are zeroes. Clones share pages.
#[derive(Clone, Default)]
pub struct Image(BTreeMap<u64, Arc<[u8]>>);

impl Image {
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (part, page) in out.chunks_mut(PAGE as usize).zip(offset / PAGE..) {
            match self.0.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[..part.len()]),
                None => part.fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (part, page) in data.chunks(PAGE as usize).zip(offset / PAGE..) {
            self.0.insert(page, part.into());
        }
    }

    /// Changes bytes of one page.
    pub fn edit(&mut self, offset: u64, change: impl FnOnce(&mut [u8])) {
        let mut page = vec![0; PAGE as usize];
        let start = offset / PAGE * PAGE;
        self.read(start, &mut page);
        change(&mut page[(offset - start) as usize..]);
        self.write(start, &page);
    }

    /// Offsets of the pages that hold data.
    pub fn pages(&self) -> Vec<u64> {
        self.0.keys().map(|page| page * PAGE).collect()
    }

    /// Writes some sectors of `data`, or leaves garbage in them.
    fn write_some(&mut self, offset: u64, data: &[u8], rng: &mut Rng) {
        let sectors = (data.len() / SECTOR) as u64;
        let kind = rng.below(5);
        let cut = rng.below(sectors + 1);
        for (part, at) in data.chunks(PAGE as usize).zip((offset..).step_by(PAGE as usize)) {
            let mut page = vec![0; part.len()];
            self.read(at, &mut page);
            for (index, (new, old)) in part.chunks(SECTOR).zip(page.chunks_mut(SECTOR)).enumerate()
            {
                let sector = (at - offset) / SECTOR as u64 + index as u64;
                let lands = match kind {
                    0 => false,
                    1 => true,
                    2 => sector < cut,
                    _ => rng.chance(0.5),
                };
                match lands {
                    true if kind == 4 => old.fill_with(|| rng.next_u64() as u8),
                    true => old.copy_from_slice(new),
                    false => {}
                }
            }
            self.write(at, &page);
        }
    }
}

/// A write; writes are recorded in the order in which they begin.
struct Write {
    disk: usize,
    offset: u64,
    data: Arc<[u8]>,
    fua: bool,
}

#[derive(Clone, Copy)]
enum Event {
    Begin(usize),
    End(usize),
    FlushBegin { disk: usize, id: usize },
    FlushEnd { disk: usize, id: usize },
}

/// Record of the calls of all disks of one machine.
#[derive(Default)]
pub struct Trace {
    start: Vec<Image>,
    writes: Vec<Write>,
    events: Vec<Event>,
    flushes: usize,
}

/// Trace shared by the disks of a machine.
pub type SharedTrace = Arc<Mutex<Trace>>;

impl Trace {
    /// Number of events so far, which is the time of the history.
    pub fn now(&self) -> usize {
        self.events.len()
    }

    /// Calls `check` with the disks after a power loss, for each event in `at`.
    pub async fn at_each_event(
        &self,
        at: impl Fn(usize) -> bool,
        rng: &mut Rng,
        mut check: impl AsyncFnMut(usize, Vec<Image>),
    ) {
        let mut stable = self.start.clone();
        // Writes that are not durable; true if they have completed.
        let mut open: BTreeMap<usize, bool> = BTreeMap::new();
        let mut covered: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let land = |stable: &mut Vec<Image>, id: usize| {
            let write = &self.writes[id];
            stable[write.disk].write(write.offset, &write.data);
        };
        for time in 0..=self.events.len() {
            if at(time) {
                let mut images = stable.clone();
                for id in open.keys() {
                    let write = &self.writes[*id];
                    images[write.disk].write_some(write.offset, &write.data, rng);
                }
                check(time, images).await;
            }
            match self.events.get(time).copied() {
                Some(Event::Begin(id)) => {
                    open.insert(id, false);
                }
                Some(Event::End(id)) if self.writes[id].fua => {
                    open.remove(&id);
                    land(&mut stable, id);
                }
                Some(Event::End(id)) => {
                    open.insert(id, true);
                }
                Some(Event::FlushBegin { disk, id }) => {
                    let mine = |(write, ended): (&usize, &bool)| {
                        (*ended && self.writes[*write].disk == disk).then_some(*write)
                    };
                    covered.insert(id, open.iter().filter_map(mine).collect());
                }
                Some(Event::FlushEnd { id, .. }) => {
                    for write in covered.remove(&id).unwrap_or_default() {
                        if open.remove(&write).is_some() {
                            land(&mut stable, write);
                        }
                    }
                }
                None => {}
            }
        }
    }
}

/// A disk that records its calls, which take random times.
pub struct CrashDisk {
    index: usize,
    size_bytes: u64,
    /// Longest time of a call, in µs; `None` for calls that take no time.
    max_us: u64,
    /// True for a disk whose writes are durable only after a flush.
    volatile_cache: bool,
    current: Arc<Mutex<Image>>,
    trace: SharedTrace,
}

/// Disks with this content and a volatile cache, and their trace.
pub fn disks(images: Vec<Image>, size_bytes: u64, max_us: u64) -> (Vec<NamedDevice>, SharedTrace) {
    disks_with(images, size_bytes, max_us, true)
}

/// Disks with this content, and their trace.
pub fn disks_with(
    images: Vec<Image>,
    size_bytes: u64,
    max_us: u64,
    volatile_cache: bool,
) -> (Vec<NamedDevice>, SharedTrace) {
    let sizes = vec![size_bytes; images.len()];
    disks_of(images, &sizes, max_us, volatile_cache)
}

/// Disks with this content and these sizes, and their trace.
pub fn disks_of(
    images: Vec<Image>,
    sizes_bytes: &[u64],
    max_us: u64,
    volatile_cache: bool,
) -> (Vec<NamedDevice>, SharedTrace) {
    let trace = Trace { start: images.clone(), ..Trace::default() };
    let trace = Arc::new(Mutex::new(trace));
    let devices = images.into_iter().enumerate().map(|(index, image)| {
        let current = Arc::new(Mutex::new(image));
        let (trace, size_bytes) = (trace.clone(), sizes_bytes[index]);
        let disk = CrashDisk { index, size_bytes, max_us, volatile_cache, current, trace };
        NamedDevice { name: format!("/dev/disk{index}"), device: Arc::new(disk) as SharedDevice }
    });
    (devices.collect(), trace)
}

impl CrashDisk {
    fn pause(&self) -> impl Future<Output = ()> + use<> {
        let max_us = self.max_us;
        async move {
            if max_us > 0 {
                time::sleep(Duration::from_micros(1 + random_u64() % max_us)).await;
            }
        }
    }
}

impl BlockDevice for CrashDisk {
    fn geometry(&self) -> Geometry {
        let volatile_cache = self.volatile_cache;
        Geometry { volatile_cache, ..Geometry::new(self.size_bytes, SECTOR as u32) }
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.geometry().check_transfer(offset, buf.len());
        let (pause, current) = (self.pause(), self.current.clone());
        IoFuture::checked(checked, || {
            IoFuture::later(async move {
                pause.await;
                current.lock().read(offset, &mut buf);
                Ok(buf)
            })
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let checked = self.geometry().check_transfer(offset, data.len());
        let (disk, pause) = (self.index, self.pause());
        let fua = fua || !self.volatile_cache;
        let (current, trace) = (self.current.clone(), self.trace.clone());
        IoFuture::checked(checked, || {
            IoFuture::later(async move {
                let id = {
                    let mut trace = trace.lock();
                    let id = trace.writes.len();
                    trace.writes.push(Write { disk, offset, data: data[..].into(), fua });
                    trace.events.push(Event::Begin(id));
                    id
                };
                pause.await;
                current.lock().write(offset, &data);
                trace.lock().events.push(Event::End(id));
                Ok(())
            })
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (disk, pause, trace) = (self.index, self.pause(), self.trace.clone());
        IoFuture::later(async move {
            let id = {
                let mut trace = trace.lock();
                trace.flushes += 1;
                let id = trace.flushes;
                trace.events.push(Event::FlushBegin { disk, id });
                id
            };
            pause.await;
            trace.lock().events.push(Event::FlushEnd { disk, id });
            Ok(())
        })
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}

/// Content of the disks when every write has landed.
pub fn durable(trace: &SharedTrace) -> Vec<Image> {
    let trace = trace.lock();
    let mut images = trace.start.clone();
    for write in &trace.writes {
        images[write.disk].write(write.offset, &write.data);
    }
    images
}

/// True if any write since the beginning had these bytes.
pub fn is_ever_written(trace: &SharedTrace, bytes: &[u8]) -> bool {
    let trace = trace.lock();
    trace.writes.iter().any(|write| write.data.windows(bytes.len()).any(|part| part == bytes))
}
