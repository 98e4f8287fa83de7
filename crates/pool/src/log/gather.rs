//! Gathering: the writes of a core join its open chunk while earlier chunks are in flight.
//!
//! Invariants: a task of its own writes each chunk, so a dropped call does not interrupt the write;
//! payload is kept by reference until the chunk is written, and then copied once, and encrypted
//! there; the steady state allocates nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::sync::Notify;
use flagstone_runtime::task::yield_now;
use flagstone_runtime::{Buf, spawn_detached, time};

use super::append::chunk_memory;
use super::pace::LogPace;
use crate::crypt::VolumeCipher;
use crate::limits::{BLOCK_BYTES, RECYCLED_MAX};
use crate::manage::shared::Shared;
use crate::ondisk::chunk::{ChunkRecord, RECORD_SPACE_BYTES};

/// Payload of a record.
pub(crate) enum ChunkPayload {
    /// Blocks as they are stored.
    Stored(Buf),
    /// Consecutive blocks of an encrypted volume, not encrypted so far.
    Encrypted {
        bytes: Buf,
        /// The first block, in the volume.
        block: u64,
        cipher: Arc<VolumeCipher>,
    },
}

impl ChunkPayload {
    fn bytes(&self) -> &Buf {
        match self {
            ChunkPayload::Stored(bytes) | ChunkPayload::Encrypted { bytes, .. } => bytes,
        }
    }
}

/// Content of an open chunk.
#[derive(Default)]
struct Parts {
    records: Vec<ChunkRecord>,
    payload: Vec<ChunkPayload>,
    blocks: usize,
    header_bytes: usize,
}

/// A chunk that gathers writes, or is being written.
pub(crate) struct GatheredChunk {
    parts: RefCell<Parts>,
    outcome: Cell<Option<Result<(), IoError>>>,
    done: Notify,
}

impl GatheredChunk {
    /// Waits until the chunk took effect.
    pub(crate) async fn outcome(&self) -> Result<(), IoError> {
        self.done.wait_for(|| self.outcome.get()).await
    }
}

/// Open chunk of a core.
#[derive(Default)]
pub(crate) struct Gatherer {
    open: RefCell<Option<Rc<GatheredChunk>>>,
    in_flight: Cell<usize>,
    pace: Cell<LogPace>,
    idle: Notify,
    /// Chunks for reuse.
    kept: RefCell<Vec<Rc<GatheredChunk>>>,
}

impl Gatherer {
    /// Adds a record with its payload to the open chunk of this core.
    pub(crate) fn add(
        self: &Rc<Self>,
        shared: &Arc<Shared>,
        record: ChunkRecord,
        payload: Option<ChunkPayload>,
    ) -> Rc<GatheredChunk> {
        let (blocks, bytes) = (record.payload_blocks(), record.header_bytes());
        let open = self.open.borrow().clone().filter(|open| {
            let parts = open.parts.borrow();
            parts.blocks + blocks <= shared.chunk_blocks()
                && parts.header_bytes + bytes <= RECORD_SPACE_BYTES
        });
        let chunk = open.unwrap_or_else(|| self.begin(shared));
        let mut parts = chunk.parts.borrow_mut();
        parts.records.push(record);
        parts.payload.extend(payload);
        parts.blocks += blocks;
        parts.header_bytes += bytes;
        drop(parts);
        chunk
    }

    fn begin(self: &Rc<Self>, shared: &Arc<Shared>) -> Rc<GatheredChunk> {
        let chunk = self.unused();
        *self.open.borrow_mut() = Some(chunk.clone());
        let (this, shared, task) = (self.clone(), shared.clone(), chunk.clone());
        spawn_detached(async move {
            // The writes of one turn belong to one chunk.
            yield_now().await;
            let take = || {
                let free = this.in_flight.get() < this.pace.get().most();
                free.then(|| this.in_flight.set(this.in_flight.get() + 1))
            };
            this.idle.wait_for(take).await;
            this.close(&task);
            let begun = time::now();
            let outcome = task.write(&shared).await;
            // With a log device, chunks wait for its throttle, so their time does not measure its
            // queue.
            if shared.storage.log.is_none() {
                let mut pace = this.pace.get();
                pace.completed(time::now() - begun);
                this.pace.set(pace);
            }
            this.in_flight.set(this.in_flight.get() - 1);
            this.idle.notify();
            task.outcome.set(Some(outcome));
            task.done.notify();
        });
        chunk
    }

    /// A chunk to which no task refers.
    fn unused(&self) -> Rc<GatheredChunk> {
        let mut kept = self.kept.borrow_mut();
        if let Some(chunk) = kept.iter().find(|chunk| Rc::strong_count(chunk) == 1) {
            chunk.outcome.set(None);
            return chunk.clone();
        }
        let chunk = Rc::new(GatheredChunk {
            parts: RefCell::default(),
            outcome: Cell::new(None),
            done: Notify::new(),
        });
        if kept.len() < RECYCLED_MAX {
            kept.push(chunk.clone());
        }
        chunk
    }

    fn close(&self, chunk: &Rc<GatheredChunk>) {
        let mut open = self.open.borrow_mut();
        if open.as_ref().is_some_and(|open| Rc::ptr_eq(open, chunk)) {
            *open = None;
        }
    }
}

impl GatheredChunk {
    async fn write(&self, shared: &Shared) -> Result<(), IoError> {
        let blocks = self.parts.borrow().blocks;
        let mut memory = chunk_memory(blocks).await;
        let records = self.take_parts(shared, &mut memory[BLOCK_BYTES..]);
        shared.append(records, memory).await.map(drop)
    }

    /// Copies the payload to the end of the chunk, encrypts it there, and empties the lists.
    fn take_parts(&self, shared: &Shared, mut rest: &mut [u8]) -> Vec<ChunkRecord> {
        let mut parts = self.parts.borrow_mut();
        for payload in parts.payload.drain(..) {
            let (part, after) = rest.split_at_mut(payload.bytes().len());
            part.copy_from_slice(payload.bytes());
            if let ChunkPayload::Encrypted { block, cipher, .. } = &payload {
                cipher.encrypt_blocks(*block, part);
            }
            rest = after;
        }
        (parts.blocks, parts.header_bytes) = (0, 0);
        let spare = shared.state.lock().recycled.records.pop();
        std::mem::replace(&mut parts.records, spare.unwrap_or_default())
    }
}
