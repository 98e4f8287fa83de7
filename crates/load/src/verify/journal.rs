//! Journal of a verified run: an append-only file, written as writes and flushes complete, that
//! outlives the run.
//!
//! A process that is killed loses the records of the last milliseconds. Then less is known, but all
//! of it is correct. The file is not flushed: it survives SIGKILL of this process, not a power loss
//! of this machine.
//!
//! Layout, little-endian. Header of 64 bytes:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | magic `FLAGSVJ1` |
//! | 8..12 | version, 1 |
//! | 12..16 | length of the header, 64 |
//! | 16..24 | run |
//! | 24..32 | place of block 0 on the device, in bytes |
//! | 32..40 | number of blocks |
//! | 40..44 | block, in bytes |
//! | 44..48 | writer |
//! | 48..60 | zero |
//! | 60..64 | CRC32C of bytes 0..60 |
//!
//! Then records of 16 bytes:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | CRC32C of the run, the record's number (8 bytes each) and bytes 4..16 |
//! | 4..8 | kind: 1 completed, 2 durable, 3 flush began, 4 flush completed |
//! | 8..12, 12..16 | kinds 1, 2: block, and its oldest generation possible from now on |
//! | 8..16 | kinds 3, 4: the flush's number |

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use flagstone_runtime::fs::{File, OpenOptions};
use flagstone_runtime::{Buf, LocalBox, buf};

use super::{long, word};
use crate::limits::{
    DEPTH_MAX, JOURNAL_CHUNK_BYTES, JOURNAL_MAX_BYTES, JOURNAL_PENDING_MAX_BYTES, VERIFY_BLOCKS_MAX,
};

const MAGIC: [u8; 8] = *b"FLAGSVJ1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;

/// Reason that a journal cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {0} the state file: {1}")]
    File(&'static str, io::Error),
    /// Not a journal, or a damaged header.
    #[error("not a state file of a verified run: {0}")]
    Header(&'static str),
    /// Damage before the end of the file. (A kill truncates only the end.)
    #[error("record {0} of the state file is damaged, but valid records follow it")]
    Damaged(u64),
    /// The journal does not match the device.
    #[error("the state file does not match the device: {0}")]
    OtherDevice(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub run_id: u64,
    /// Offset of block 0 on the device, in bytes.
    pub offset_bytes: u64,
    pub blocks: u64,
    /// Block size of the device, in bytes.
    pub block_bytes: u32,
    pub writer: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.run_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.writer.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Header, JournalError> {
        let Some(bytes) = bytes.get(..HEADER_BYTES).filter(|bytes| bytes[..8] == MAGIC) else {
            return Err(JournalError::Header("its first bytes are not a journal's"));
        };
        if crc_fast::crc32_iscsi(&bytes[..60]) != word(bytes, 60) {
            return Err(JournalError::Header("the header's checksum is wrong"));
        }
        if word(bytes, 8) != VERSION || word(bytes, 12) != HEADER_BYTES as u32 {
            return Err(JournalError::Header("it is of another version"));
        }
        let header = Header {
            run_id: long(bytes, 16),
            offset_bytes: long(bytes, 24),
            blocks: long(bytes, 32),
            block_bytes: word(bytes, 40),
            writer: word(bytes, 44),
        };
        let block = header.block_bytes;
        let sane = (1..=VERIFY_BLOCKS_MAX).contains(&header.blocks)
            && block.is_power_of_two()
            && (512..=65536).contains(&block)
            && header.offset_bytes.is_multiple_of(u64::from(block))
            && header.offset_bytes.checked_add(header.blocks * u64::from(block)).is_some();
        if sane {
            Ok(header)
        } else {
            Err(JournalError::Header("its block numbers are impossible"))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalRecord {
    /// A write completed: `block` holds `oldest` or newer.
    Completed {
        block: u32,
        oldest: u32,
    },
    /// The same, and durable.
    Durable {
        block: u32,
        oldest: u32,
    },
    FlushBegan(u64),
    /// All writes that completed before the start of this flush are durable.
    FlushDone(u64),
}

impl JournalRecord {
    fn encode(self, run_id: u64, number: u64) -> [u8; RECORD_BYTES] {
        let (kind, payload) = match self {
            JournalRecord::Completed { block, oldest } => (1, pair(block, oldest)),
            JournalRecord::Durable { block, oldest } => (2, pair(block, oldest)),
            JournalRecord::FlushBegan(id) => (3, id),
            JournalRecord::FlushDone(id) => (4, id),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[4..8].copy_from_slice(&u32::to_le_bytes(kind));
        bytes[8..].copy_from_slice(&payload.to_le_bytes());
        let crc = record_crc(run_id, number, &bytes);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], run_id: u64, number: u64) -> Option<JournalRecord> {
        if record_crc(run_id, number, bytes) != word(bytes, 0) {
            return None;
        }
        let (block, oldest) = (word(bytes, 8), word(bytes, 12));
        match word(bytes, 4) {
            1 => Some(JournalRecord::Completed { block, oldest }),
            2 => Some(JournalRecord::Durable { block, oldest }),
            3 => Some(JournalRecord::FlushBegan(long(bytes, 8))),
            4 => Some(JournalRecord::FlushDone(long(bytes, 8))),
            _ => None,
        }
    }
}

/// The run id and the record number invalidate records that an earlier file left in the same place.
fn record_crc(run_id: u64, number: u64, record: &[u8]) -> u32 {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&run_id.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&record[4..RECORD_BYTES]);
    crc_fast::crc32_iscsi(&bytes)
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Appends to a journal concurrently with the I/Os.
pub(crate) struct JournalWriter {
    file: Rc<File>,
    at: u64,
    run_id: u64,
    number: u64,
    pending: Vec<u8>,
    writing: Option<LocalBox<io::Result<()>>>,
    failure: Option<io::Error>,
}

impl JournalWriter {
    /// Creates a journal at `path`, replacing an existing one.
    pub(crate) async fn create(
        path: &Path,
        header: &Header,
    ) -> Result<JournalWriter, JournalError> {
        let options = OpenOptions {
            direct: false,
            create_bytes: Some(HEADER_BYTES as u64),
            ..OpenOptions::default()
        };
        let file = File::open(path, &options).map_err(|e| JournalError::File("create", e))?;
        let bytes = Buf::copy_of(&header.encode())
            .ok_or_else(|| JournalError::File("write", io::ErrorKind::OutOfMemory.into()))?;
        file.write_at(bytes, 0, false).await.map_err(|e| JournalError::File("write", e))?;
        Ok(JournalWriter {
            file: Rc::new(file),
            at: HEADER_BYTES as u64,
            run_id: header.run_id,
            number: 0,
            pending: Vec::new(),
            writing: None,
            failure: None,
        })
    }

    pub(crate) fn append(&mut self, record: JournalRecord) {
        if self.failure.is_none() {
            self.pending.extend_from_slice(&record.encode(self.run_id, self.number));
            self.number += 1;
        }
    }

    /// True if no more I/O may start before records are written.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= JOURNAL_PENDING_MAX_BYTES
    }

    /// True after a failure of the file; see [`JournalWriter::into_result`].
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Ready when everything is written, or writing has failed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(writing) = &mut self.writing {
                let result = ready!(Pin::new(writing).poll(cx));
                self.writing = None;
                if let Err(error) = result {
                    self.failure = Some(error);
                    self.pending = Vec::new();
                }
            }
            if self.pending.is_empty() {
                return Poll::Ready(());
            }
            let count = self.pending.len().min(JOURNAL_CHUNK_BYTES);
            let Some(chunk) = Buf::copy_of(&self.pending[..count]) else {
                self.failure = Some(io::ErrorKind::OutOfMemory.into());
                self.pending = Vec::new();
                continue;
            };
            self.pending.drain(..count);
            let (file, at) = (self.file.clone(), self.at);
            self.at += count as u64;
            self.writing =
                Some(LocalBox::new(async move { file.write_at(chunk, at, false).await }));
        }
    }

    pub(crate) fn into_result(self) -> Result<(), JournalError> {
        self.failure.map_or(Ok(()), |error| Err(JournalError::File("write", error)))
    }
}

/// State of each block according to a journal.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) header: Header,
    /// Oldest possible generations if only the writing process died.
    pub(crate) completed: Vec<u32>,
    /// Oldest possible generations after a power loss.
    pub(crate) durable: Vec<u32>,
    /// Blocks completed since the start of the last flush, possibly repeated.
    dirty: Vec<u32>,
    flushes: BTreeMap<u64, Vec<(u32, u32)>>,
    number: u64,
    bad: Option<u64>,
}

impl Recorded {
    fn new(header: Header) -> Recorded {
        let blocks = header.blocks as usize;
        Recorded {
            header,
            completed: vec![0; blocks],
            durable: vec![0; blocks],
            dirty: Vec::new(),
            flushes: BTreeMap::new(),
            number: 0,
            bad: None,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        for bytes in bytes.chunks_exact(RECORD_BYTES) {
            let record = JournalRecord::decode(bytes, self.header.run_id, self.number)
                .filter(|record| self.is_sane(record));
            match (record, self.bad) {
                (Some(_), Some(bad)) => return Err(JournalError::Damaged(bad)),
                (Some(record), None) => self.apply(record),
                (None, bad) => self.bad = bad.or(Some(self.number)),
            }
            self.number += 1;
        }
        Ok(())
    }

    fn is_sane(&self, record: &JournalRecord) -> bool {
        match record {
            JournalRecord::Completed { block, .. } | JournalRecord::Durable { block, .. } => {
                u64::from(*block) < self.header.blocks
            }
            JournalRecord::FlushBegan(_) | JournalRecord::FlushDone(_) => true,
        }
    }

    fn apply(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Completed { block, oldest } => {
                let completed = &mut self.completed[block as usize];
                *completed = (*completed).max(oldest);
                self.dirty.push(block);
                if self.dirty.len() > 2 * self.completed.len() {
                    self.dirty.sort_unstable();
                    self.dirty.dedup();
                }
            }
            JournalRecord::Durable { block, oldest } => raise(&mut self.durable, block, oldest),
            JournalRecord::FlushBegan(id) => {
                let mut dirty = std::mem::take(&mut self.dirty);
                dirty.sort_unstable();
                dirty.dedup();
                let floors = dirty.into_iter().map(|block| (block, self.completed[block as usize]));
                self.flushes.insert(id, floors.collect());
                // More cannot have been in flight; a flush without an end has failed.
                if self.flushes.len() > DEPTH_MAX {
                    self.fail_oldest_flush();
                }
            }
            JournalRecord::FlushDone(id) => {
                for (block, floor) in self.flushes.remove(&id).unwrap_or_default() {
                    raise(&mut self.durable, block, floor);
                }
            }
        }
    }

    fn fail_oldest_flush(&mut self) {
        if let Some((_, floors)) = self.flushes.pop_first() {
            self.dirty.extend(floors.iter().map(|(block, _)| *block));
        }
    }
}

fn raise(floors: &mut [u32], block: u32, to: u32) {
    let floor = &mut floors[block as usize];
    *floor = (*floor).max(to);
}

/// Reads the journal at `path`.
pub(crate) async fn load(path: &Path) -> Result<Recorded, JournalError> {
    let failed = |error| JournalError::File("read", error);
    let options =
        OpenOptions { read_only: true, direct: false, create_bytes: None, exclusive: false };
    let file = File::open(path, &options).map_err(failed)?;
    if file.info().size_bytes > JOURNAL_MAX_BYTES {
        return Err(JournalError::Header("it is too large"));
    }
    let (result, head) = file.read_at(buf::alloc(HEADER_BYTES).await, 0).await;
    let count = result.map_err(failed)?;
    let mut recorded = Recorded::new(Header::decode(&head[..count.min(head.len())])?);
    let mut at = HEADER_BYTES as u64;
    let mut chunk = buf::alloc(JOURNAL_CHUNK_BYTES).await;
    loop {
        let (result, back) = file.read_at(chunk, at).await;
        chunk = back;
        // Ignore the rest of a truncated record.
        let count = result.map_err(failed)?.min(chunk.len()) / RECORD_BYTES * RECORD_BYTES;
        if count == 0 {
            return Ok(recorded);
        }
        recorded.take(&chunk[..count])?;
        at += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use flagstone_runtime::block_on;

    use super::*;

    const HEADER: Header =
        Header { run_id: 77, offset_bytes: 4096, blocks: 10, block_bytes: 512, writer: 0 };

    fn records(records: &[JournalRecord]) -> Vec<u8> {
        let numbered = records.iter().zip(0..);
        numbered.flat_map(|(record, number)| record.encode(HEADER.run_id, number)).collect()
    }

    const STORY: [JournalRecord; 6] = [
        JournalRecord::Completed { block: 1, oldest: 1 },
        JournalRecord::FlushBegan(1),
        JournalRecord::Completed { block: 1, oldest: 2 },
        JournalRecord::FlushDone(1),
        JournalRecord::Durable { block: 2, oldest: 5 },
        JournalRecord::Completed { block: 9, oldest: 3 },
    ];

    fn check(recorded: &Recorded) {
        assert_eq!((recorded.completed[1], recorded.durable[1]), (2, 1));
        assert_eq!((recorded.completed[2], recorded.durable[2]), (0, 5));
        assert_eq!((recorded.completed[9], recorded.durable[9]), (3, 0));
    }

    #[test]
    fn journal_replays_over_older_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        block_on(async {
            for (run_id, story) in [(76, STORY.repeat(9)), (77, STORY.to_vec())] {
                let header = Header { run_id, ..HEADER };
                let mut writer = JournalWriter::create(&path, &header).await.unwrap();
                story.into_iter().for_each(|record| writer.append(record));
                poll_fn(|cx| writer.poll(cx)).await;
                writer.into_result().unwrap();
            }
            let recorded = load(&path).await.unwrap();
            assert_eq!(recorded.header, HEADER);
            check(&recorded);
        })
        .unwrap();
    }

    #[test]
    fn journal_accepts_torn_tail_and_refuses_damage() {
        let mut bytes = records(&STORY);
        let mut recorded = Recorded::new(HEADER);
        recorded.take(&bytes[..bytes.len() - 7]).unwrap();
        assert_eq!(recorded.completed[9], 0);
        bytes[20] ^= 1;
        let error = Recorded::new(HEADER).take(&bytes).unwrap_err();
        assert!(matches!(error, JournalError::Damaged(1)), "{error}");
        let at_the_end = bytes.len() - 3;
        let mut bytes = records(&STORY);
        bytes[at_the_end] ^= 1;
        let mut recorded = Recorded::new(HEADER);
        recorded.take(&bytes).unwrap();
        assert_eq!((recorded.completed[9], recorded.durable[2]), (0, 5));
    }

    #[test]
    fn hostile_headers_and_records_are_refused() {
        assert_eq!(Header::decode(&HEADER.encode()).unwrap(), HEADER);
        for header in [
            Header { blocks: 0, ..HEADER },
            Header { blocks: u64::MAX, ..HEADER },
            Header { block_bytes: 513, ..HEADER },
            Header { block_bytes: 0, ..HEADER },
            Header { offset_bytes: u64::MAX - 511, ..HEADER },
            Header { offset_bytes: 5, ..HEADER },
        ] {
            assert!(Header::decode(&header.encode()).is_err(), "{header:?}");
        }
        assert!(Header::decode(b"FLAGSVJ1").is_err());
        let mut flipped = HEADER.encode();
        flipped[33] ^= 4;
        assert!(Header::decode(&flipped).is_err());
        let mut recorded = Recorded::new(HEADER);
        recorded.take(&records(&[JournalRecord::Completed { block: 10, oldest: 1 }])).unwrap();
        assert_eq!(recorded.bad, Some(0));
    }
}
