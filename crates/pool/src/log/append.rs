//! Append: writes one chunk, and applies it after its predecessors.

use flagstone_blockdev::IoError;
use flagstone_runtime::{BufMut, buf};

use super::device::LogDevice;
use super::position::ChunkContent;
use super::tail::TailLoad;
use crate::limits::BLOCK_BYTES;
use crate::manage::shared::{Shared, WriteOut, entries_of};
use crate::manage::superblock::changed;
use crate::ondisk::chunk::{ChunkHeader, ChunkRecord, is_upkeep};
use crate::ondisk::superblock::LogStart;
use crate::ondisk::{Block, checksum};

/// An applied chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) sequence: u64,
    /// First block of the payload.
    pub(crate) payload: u64,
}

/// Place of a chunk in the log.
struct ChunkPlace {
    start: LogStart,
    /// Number of the log.
    log: u64,
    /// Every chunk before this sequence is durable.
    durable: u64,
}

/// Memory for a chunk of this payload: the header, then the payload.
pub(crate) async fn chunk_memory(payload_blocks: usize) -> BufMut {
    buf::acquire_more((1 + payload_blocks) * BLOCK_BYTES).await
}

/// What a chunk takes of the log device, and of the table of recent changes for hosts.
fn load_of(records: &[ChunkRecord], payload: usize) -> TailLoad {
    let entries = match is_upkeep(records) {
        true => 0,
        false => records.iter().map(|record| entries_of(record).0).sum(),
    };
    TailLoad { blocks: 1 + payload as u64, entries: entries as u64 }
}

/// A chunk with a reserved place. Later chunks take effect only after this one, so dropping it
/// unwritten fails the pool.
struct Reserved<'a> {
    shared: &'a Shared,
    sequence: u64,
    written: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.written {
            tracing::error!(
                pool = self.shared.name,
                sequence = self.sequence,
                "a chunk was abandoned"
            );
            self.shared.state.lock().fail(IoError::WriteFault);
            self.shared.progress.notify();
        }
    }
}

impl Shared {
    /// Writes a chunk. `memory` has the payload after space for the header. Returns after the chunk
    /// took effect. The caller must run in a task that is not dropped.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] without effect. A failed write fails the pool, because a replay would
    /// end at this chunk.
    pub(crate) async fn append(
        &self,
        records: Vec<ChunkRecord>,
        mut memory: BufMut,
    ) -> Result<Appended, IoError> {
        let spare = self.state.lock().recycled.checksums.pop();
        let mut checksums = spare.unwrap_or_default();
        checksums.extend(memory[BLOCK_BYTES..].chunks(BLOCK_BYTES).map(checksum));
        let ChunkPlace { start, log, durable } = match &self.storage.log {
            // Boxed, so that the future of a chunk stays small without a log device.
            Some(log) => Box::pin(self.reserve_on(log, &records, checksums.len())).await?,
            None => {
                let reserved = self.try_reserve(&records, checksums.len());
                reserved.expect("no slot to wait for")?.expect("no marks to wait for")
            }
        };
        let mut reserved = Reserved { shared: self, sequence: start.sequence, written: false };
        let header = ChunkHeader {
            log,
            sequence: start.sequence,
            durable,
            block: start.block,
            following: start.following,
            records,
            checksums,
        };
        let block: &mut Block =
            (&mut memory[..BLOCK_BYTES]).try_into().expect("a header is a block");
        header.encode(block);
        let written = self.storage.write_chunk(&start, memory.freeze()).await;
        reserved.written = true;
        let ChunkHeader { records, checksums, .. } = header;
        self.complete(start.sequence, ChunkContent { records, checksums }, written);
        let done = || {
            let state = self.state.lock();
            let done = state.position.applied() > start.sequence;
            if done { Some(Ok(())) } else { state.check().err().map(Err) }
        };
        self.progress.wait_for(done).await?;
        Ok(Appended { sequence: start.sequence, payload: start.block + 1 })
    }

    /// Reserves the place of a chunk on the log device: waits for the throttle of hosts, for a
    /// slot, and for the marks of its volumes.
    async fn reserve_on(
        &self,
        log: &LogDevice,
        records: &[ChunkRecord],
        payload: usize,
    ) -> Result<ChunkPlace, IoError> {
        if !is_upkeep(records) {
            log.pace(load_of(records, payload)).await;
        }
        loop {
            match self.progress.wait_for(|| self.try_reserve(records, payload)).await? {
                Some(reserved) => return Ok(reserved),
                None => self.mark(records).await?,
            }
        }
    }

    /// Reserves the place of a chunk. `None` without a free slot on the log device; `Ok(None)` if
    /// the superblock must mark volumes first.
    fn try_reserve(
        &self,
        records: &[ChunkRecord],
        payload: usize,
    ) -> Option<Result<Option<ChunkPlace>, IoError>> {
        let mut state = self.state.lock();
        if let Err(error) = state.check() {
            return Some(Err(error));
        }
        let mut head = self.storage.log.as_ref().map(|log| (log, log.head()));
        if let Some((_, head)) = &head {
            if head.tail.is_full() {
                let is_over = state.write_out != WriteOut::Runs;
                return is_over.then_some(Err(IoError::Unreachable));
            }
            if !state.is_marked(records) {
                return Some(Ok(None));
            }
        }
        let start = match state.reserve(payload) {
            Ok(start) => start,
            Err(error) => {
                state.withdraw(records);
                drop(state);
                self.progress.notify();
                return Some(Err(error));
            }
        };
        if let Some((log, head)) = &mut head {
            let (segment, first) = log.split(start.block);
            let volumes = records.iter().flat_map(changed).copied();
            let load = load_of(records, payload);
            head.tail.reserve((segment, start.slot), first, load, volumes);
        }
        let position = &state.position;
        // Without volatile caches, completed writes are durable.
        let durable = match self.storage.has_volatile_cache() {
            true => position.durable,
            false => position.applied(),
        };
        Some(Ok(Some(ChunkPlace { start, log: position.log, durable })))
    }

    /// Records the end of a chunk's device write.
    fn complete(&self, sequence: u64, content: ChunkContent, written: Result<(), IoError>) {
        let mut state = self.state.lock();
        match written {
            Ok(()) if state.check().is_ok() => {
                state.position.written(sequence, content);
                state.apply_written(self.storage.log.as_deref());
            }
            Ok(()) => {}
            Err(error) => {
                tracing::error!(pool = self.name, sequence, %error, "a chunk was not written");
                state.fail(IoError::WriteFault);
            }
        }
        drop(state);
        self.progress.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use flagstone_blockdev::{DelayConfig, DelayLayer, DelayTime, MemoryDevice};
    use flagstone_runtime::sim::{SimConfig, Simulation};
    use flagstone_runtime::time;

    use super::*;
    use crate::{CreateOptions, NamedDevice, Pool};

    /// Regression: every later chunk waited for ever for the abandoned one.
    #[test]
    fn abandoned_chunk_fails_the_pool() {
        let sim = Simulation::new(1, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, async {
            let memory = Arc::new(MemoryDevice::new(16 << 20, 512).unwrap());
            let write = DelayTime::fixed(Duration::from_secs(1));
            let slow = DelayLayer::new(memory, DelayConfig { write, ..DelayConfig::default() });
            let device = Arc::new(slow.unwrap());
            let devices = vec![NamedDevice { name: "/dev/slow".to_owned(), device }];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let append = pool.shared().append(Vec::new(), chunk_memory(0).await);
            assert!(time::timeout(Duration::from_millis(500), append).await.is_err());
            assert_eq!(pool.checkpoint().await, Err(IoError::WriteFault));
        });
        sim.block_on(async { done.await.unwrap() });
    }
}
