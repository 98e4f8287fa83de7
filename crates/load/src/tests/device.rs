//! Memory device for the tests of this crate, with configurable delays and faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, task};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Completes before the call returns.
    #[default]
    Prompt,
    /// Completes after other tasks have run.
    Late,
    /// Completes after the first number of ms; the first calls, as many as the second number,
    /// complete earlier, evenly spaced.
    Steady(u64, u64),
    Silent,
    /// Fails every n-th call.
    Failing(u64),
    /// Drops every n-th write, and reports success.
    Losing(u64),
    /// Writes half of every n-th write.
    Tearing(u64),
    /// Writes every n-th write one block too far.
    Misplacing(u64),
}

pub(crate) struct TestDevice {
    pub(crate) geometry: Geometry,
    manner: Mutex<Manner>,
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) calls: AtomicU64,
    writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) fua_only: AtomicBool,
    pub(crate) in_flight: Arc<AtomicU64>,
    pub(crate) most_in_flight: AtomicU64,
}

impl TestDevice {
    pub(crate) fn new(geometry: Geometry, manner: Manner) -> Arc<TestDevice> {
        Arc::new(TestDevice {
            geometry,
            manner: Mutex::new(manner),
            bytes: Mutex::new(vec![0; geometry.size_bytes as usize]),
            calls: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            fua_only: AtomicBool::new(true),
            in_flight: Arc::default(),
            most_in_flight: AtomicU64::new(0),
        })
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.manner.lock() = manner;
    }

    fn manner(&self) -> Manner {
        *self.manner.lock()
    }

    fn answer<T: 'static>(&self, value: T, error: IoError) -> IoFuture<T> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Ordering::Relaxed);
        let in_flight = self.in_flight.clone();
        let done = move || in_flight.fetch_sub(1, Ordering::Relaxed);
        match self.manner() {
            Manner::Late => IoFuture::later(async move {
                for _ in 0..=call % 3 {
                    task::yield_now().await;
                }
                done();
                Ok(value)
            }),
            Manner::Steady(ms, depth) => IoFuture::later(async move {
                let us = ms * 1000 * call.min(depth) / depth;
                flagstone_runtime::time::sleep(std::time::Duration::from_micros(us)).await;
                done();
                Ok(value)
            }),
            Manner::Silent => IoFuture::later(std::future::pending()),
            Manner::Failing(every) if call.is_multiple_of(every) => {
                done();
                IoFuture::ready(Err(error))
            }
            _ => {
                done();
                IoFuture::ready(Ok(value))
            }
        }
    }

    fn put(&self, offset: u64, data: &[u8]) {
        let write = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut bytes = self.bytes.lock();
        let (mut at, mut data) = (offset as usize, data);
        match self.manner() {
            Manner::Losing(every) if write.is_multiple_of(every) => return,
            Manner::Tearing(every) if write.is_multiple_of(every) => data = &data[..data.len() / 2],
            Manner::Misplacing(every) if write.is_multiple_of(every) => {
                at = (at + data.len()) % bytes.len();
            }
            _ => {}
        }
        bytes[at..at + data.len()].copy_from_slice(data);
    }
}

impl BlockDevice for TestDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        if let Err(error) = self.geometry.check_transfer(offset, buf.len()) {
            return IoFuture::ready(Err(error));
        }
        let range = offset as usize..offset as usize + buf.len();
        buf.copy_from_slice(&self.bytes.lock()[range]);
        self.answer(buf, IoError::ReadFault)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        if let Err(error) = self.geometry.check_transfer(offset, data.len()) {
            return IoFuture::ready(Err(error));
        }
        if !fua {
            self.fua_only.store(false, Ordering::Relaxed);
        }
        self.put(offset, &data);
        self.answer((), IoError::WriteFault)
    }

    fn flush(&self) -> IoFuture<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.answer((), IoError::WriteFault)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if let Err(error) = self.geometry.check(offset, len) {
            return IoFuture::ready(Err(error));
        }
        self.bytes.lock()[offset as usize..(offset + len) as usize].fill(0);
        self.answer((), IoError::WriteFault)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        self.discard(offset, len)
    }
}
