//! Crash ledger: which contents of single blocks a server that loses its memory may leave, for
//! tests of remote devices.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_runtime::{Buf, buf, random_u64, spawn};

/// Size of a block.
pub const BLOCK_BYTES: u64 = 512;
/// Size of the device, in blocks.
pub const BLOCKS: u64 = 64;
/// Tasks that write, each to its own blocks.
const TASKS: u64 = 8;

/// Writes a block of equal bytes.
///
/// # Errors
/// Errors of the device.
pub async fn write<D: BlockDevice>(
    device: &Arc<D>,
    block: u64,
    value: u8,
    fua: bool,
) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK_BYTES as usize]).expect("memory is free");
    device.write(block * BLOCK_BYTES, data, fua).await
}

/// Reads a block of equal bytes.
///
/// # Errors
/// Errors of the device.
///
/// # Panics
/// If the bytes differ.
pub async fn read<D: BlockDevice>(device: &Arc<D>, block: u64) -> Result<u8, IoError> {
    let buf = buf::alloc(BLOCK_BYTES as usize).await;
    let buf = device.read(block * BLOCK_BYTES, buf).await?;
    assert!(buf.iter().all(|byte| *byte == buf[0]), "block {block} is torn");
    Ok(buf[0])
}

/// Allowed contents of a block: the last durable version, or anything written since.
#[derive(Clone, Default)]
struct Block {
    durable: u8,
    newest: u8,
    since: Vec<u8>,
}

/// Allowed contents of all blocks. Clones share them.
#[derive(Clone)]
pub struct CrashLedger(Rc<RefCell<Vec<Block>>>);

impl Default for CrashLedger {
    fn default() -> CrashLedger {
        CrashLedger(Rc::new(RefCell::new(vec![Block::default(); BLOCKS as usize])))
    }
}

impl CrashLedger {
    /// Writes and flushes with several tasks until the device fails every call.
    ///
    /// # Panics
    /// If a call fails with another error than [`IoError::Poisoned`].
    pub async fn write_until_poisoned(&self, device: &Arc<impl BlockDevice>, seed: u64) {
        let tasks = (0..TASKS).map(|task| {
            let (ledger, device) = (self.clone(), device.clone());
            spawn(async move { ledger.write_until_failed(&device, task).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            let failed = task.await.expect("it runs to its end");
            assert_eq!(failed, IoError::Poisoned, "seed {seed}");
        }
    }

    async fn write_until_failed(&self, device: &Arc<impl BlockDevice>, task: u64) -> IoError {
        let mine = (task * BLOCKS / TASKS) as usize..((task + 1) * BLOCKS / TASKS) as usize;
        for step in 1_u64.. {
            let block = mine.start + (random_u64() % mine.len() as u64) as usize;
            let value = (step % 255 + 1) as u8;
            let fua = random_u64().is_multiple_of(6);
            let result = if random_u64().is_multiple_of(5) {
                let result = device.flush().await;
                if result.is_ok() {
                    self.0.borrow_mut()[mine.clone()].iter_mut().for_each(Block::make_durable);
                }
                result
            } else {
                self.0.borrow_mut()[block].since.push(value);
                let result = write(device, block as u64, value, fua).await;
                if result.is_ok() {
                    let block = &mut self.0.borrow_mut()[block];
                    block.newest = value;
                    if fua {
                        block.make_durable();
                    }
                }
                result
            };
            if let Err(error) = result {
                return error;
            }
        }
        unreachable!("it runs until a call fails")
    }

    /// Reads every block.
    ///
    /// # Panics
    /// If durable data is missing.
    pub async fn check(&self, device: &Arc<impl BlockDevice>, seed: u64) {
        for (number, block) in self.0.take().iter().enumerate() {
            let value = read(device, number as u64).await.expect("the device is usable");
            let known = value == block.durable || block.since.contains(&value);
            assert!(known, "seed {seed}: block {number} has {value}, not {}", block.durable);
        }
    }
}

impl Block {
    fn make_durable(&mut self) {
        self.durable = self.newest;
        self.since.clear();
    }
}
