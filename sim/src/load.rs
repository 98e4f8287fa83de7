//! Random workload that checks every answer of a device against a [`model`](crate::model).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{Geometry, IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{buf, random_u64, spawn, time};

use crate::model::{Change, Shared};

/// Parameters of a load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Calls in flight at a time.
    pub depth: usize,
    /// Largest call, in bytes; a multiple of the block size.
    pub max_bytes: u64,
    /// Share of changes with FUA.
    pub fua: f64,
    /// Tolerate failed reads and writes, because the simulated disk injects errors. Otherwise any
    /// failure violates a guarantee.
    pub medium_errors: bool,
    /// A failed change may still take effect when the device is reopened, after reads of the former
    /// content.
    pub late_failures: bool,
    /// Tolerate changes that fail because the device has no space.
    pub may_be_full: bool,
    /// After a crash, the device may be smaller than earlier calls have seen: the load ends, and
    /// must attach again.
    pub may_shrink: bool,
    /// Longest pause after a call; zero for no pause.
    pub pause: Duration,
    /// Stops the load when set, after the calls in flight have completed.
    pub stop: Rc<Cell<bool>>,
}

impl LoadOptions {
    /// Load of `depth` parallel calls of up to 64 KiB that tolerates no errors.
    pub fn new(depth: usize) -> LoadOptions {
        LoadOptions {
            depth,
            max_bytes: 64 << 10,
            fua: 0.2,
            medium_errors: false,
            late_failures: false,
            may_be_full: false,
            may_shrink: false,
            pause: Duration::ZERO,
            stop: Rc::default(),
        }
    }
}

/// Reason why a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The stop flag was set.
    Stopped,
    /// The device failed permanently: a failed flush, or an unreachable device.
    Failed(IoError),
}

/// Loads a device until the stop flag is set or the device fails permanently.
///
/// # Panics
///
/// When the device violates a guarantee.
pub async fn run(device: SharedDevice, model: Shared, options: LoadOptions) -> Ended {
    model.grow(device.geometry().size_bytes);
    let lanes: Vec<_> = (0..options.depth)
        .map(|_| {
            let (device, model, options) = (device.clone(), model.clone(), options.clone());
            spawn(lane(device, model, options)).abort_on_drop()
        })
        .collect();
    let mut ended = Ended::Stopped;
    for mut lane in lanes {
        if let Ok(Ended::Failed(error)) = lane.handle().await {
            ended = Ended::Failed(error);
        }
    }
    ended
}

/// Issues one call after another.
async fn lane(device: SharedDevice, model: Shared, options: LoadOptions) -> Ended {
    let mut rng = Rng::new(random_u64());
    let geometry = device.geometry();
    while !options.stop.get() {
        let result = one_call(&device, &model, &options, &geometry, &mut rng).await;
        match result {
            Ok(()) => {}
            Err(error @ (IoError::Poisoned | IoError::Unreachable)) => return Ended::Failed(error),
            Err(IoError::NoSpace) if options.may_be_full => {}
            Err(error @ IoError::OutOfRange) if options.may_shrink => return Ended::Failed(error),
            Err(error) => assert!(options.medium_errors, "a call failed: {error}"),
        }
        if !options.pause.is_zero() {
            let longest = options.pause.as_micros() as u64;
            time::sleep(Duration::from_micros(rng.between(0, longest))).await;
        } else if rng.chance(0.05) {
            time::sleep(Duration::from_micros(rng.between(1, 2000))).await;
        }
    }
    Ended::Stopped
}

async fn one_call(
    device: &SharedDevice,
    model: &Shared,
    options: &LoadOptions,
    geometry: &Geometry,
    rng: &mut Rng,
) -> Result<(), IoError> {
    let choice = rng.below(100);
    if choice < 6 {
        return flush(device, model, options.medium_errors).await;
    }
    let change = match choice {
        0..40 => None,
        40..92 => Some(Change::Write),
        92..96 => Some(Change::Zero),
        _ => Some(Change::Discard),
    };
    let (offset, len) = pick_range(geometry, options.max_bytes, rng);
    let Some(claim) = model.claim(offset, len as usize, change) else {
        time::sleep(Duration::from_micros(10)).await;
        return Ok(());
    };
    let fua = rng.chance(options.fua);
    let result = match change {
        None => match device.read(offset, buf::alloc(len as usize).await).await {
            Ok(data) => {
                claim.returned(&data);
                return Ok(());
            }
            Err(error) => Err(error),
        },
        Some(Change::Write) => {
            let mut data = buf::alloc(len as usize).await;
            claim.fill(&mut data);
            device.write(offset, data.freeze(), fua).await
        }
        Some(Change::Zero) => {
            let may_deallocate = rng.chance(0.5);
            let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
            device.write_zeroes(offset, len, flags).await
        }
        Some(Change::Discard) => device.discard(offset, len).await,
    };
    match result {
        Ok(()) => claim.acknowledged(fua),
        Err(IoError::Unreachable) => claim.lost_on_the_way(),
        Err(_) if options.late_failures => claim.lost_on_the_way(),
        Err(_) => claim.failed(),
    }
    result
}

/// Picks a range: mostly short, and more often near the start of the device.
fn pick_range(geometry: &Geometry, max_bytes: u64, rng: &mut Rng) -> (u64, u64) {
    let block = u64::from(geometry.block_bytes);
    let blocks = geometry.blocks();
    let longest = (max_bytes / block).min(blocks).max(1);
    let len = rng.between(1, longest).min(rng.between(1, longest)).min(rng.between(1, longest));
    let places = blocks - len;
    let place = rng.between(0, places).min(rng.between(0, places));
    (place * block, len * block)
}

async fn flush(device: &SharedDevice, model: &Shared, medium_errors: bool) -> Result<(), IoError> {
    let under_way = model.begin_flush();
    match device.flush().await {
        Ok(()) => model.flushed(under_way),
        Err(error) => {
            // The call failed on the way. The disk is sound, so no flush failed and no data was
            // harmed.
            if medium_errors {
                model.flush_failed();
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Reads and checks the whole device. Retries unreadable ranges.
///
/// # Errors
///
/// When the device fails permanently.
///
/// # Panics
///
/// When the device violates a guarantee.
pub async fn verify(device: &SharedDevice, model: &Shared) -> Result<(), IoError> {
    const STEP_BYTES: u64 = 32 << 10;
    let mut offset = 0;
    let end = model.bytes().min(device.geometry().size_bytes);
    while offset < end {
        let len = STEP_BYTES.min(end - offset) as usize;
        let Some(claim) = model.claim(offset, len, None) else { panic!("verify runs alone") };
        match device.read(offset, buf::alloc(len).await).await {
            Ok(data) => {
                claim.returned(&data);
                offset += len as u64;
            }
            Err(error @ (IoError::Poisoned | IoError::Unreachable)) => return Err(error),
            Err(_) => time::sleep(Duration::from_millis(1)).await,
        }
    }
    Ok(())
}
