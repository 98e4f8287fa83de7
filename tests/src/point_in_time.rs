//! Check that a replica shows one moment of the past of hosts whose writes depend on each other.
//!
//! A host that writes one block after the other (`flagstone load --depth 1 --verify-state FILE`)
//! makes each write depend on all earlier ones. A replica is a moment of its past if a number of
//! its first writes explains every block. The check reads the load's state file and the stamps of
//! the blocks by their documented layout, without Flagstone's own code.
//!
//! Left out: dependencies between several hosts.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::load::{STATE_HEADER_BYTES, STATE_RECORD_BYTES};

/// Bytes of one write of the hosts: one stamp.
pub const BLOCK_BYTES: u64 = 512;

/// A write reported to a host as complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    block: u64,
    generation: u32,
}

/// Completed writes of one host, in order.
#[derive(Debug)]
struct Journal {
    run: u64,
    first_byte: u64,
    blocks: u64,
    writes: Vec<Write>,
}

impl Journal {
    fn read(path: &Path) -> Journal {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (header, records) = bytes.split_at(STATE_HEADER_BYTES as usize);
        let block_bytes = u64::from(word(header, 40));
        assert_eq!(block_bytes, BLOCK_BYTES, "one write is one block");
        let completed = |record: &&[u8]| matches!(word(record, 4), 1 | 2);
        let writes = records.chunks_exact(STATE_RECORD_BYTES as usize).filter(completed);
        let writes = writes
            .map(|record| Write { block: word(record, 8).into(), generation: word(record, 12) });
        Journal {
            run: long(header, 16),
            first_byte: long(header, 24),
            blocks: long(header, 32),
            writes: writes.collect(),
        }
    }

    /// Length of the prefix of writes that the content shows. `before` is the content before the
    /// first write.
    fn moment_of(&self, content: &[u8], before: &[u8]) -> Result<usize, String> {
        let mut newest = None;
        let mut oldest_missing: Option<(usize, u64)> = None;
        for block in 0..self.blocks {
            let range = ((block * BLOCK_BYTES) as usize)..(((block + 1) * BLOCK_BYTES) as usize);
            let (bytes, before) = (&content[range.clone()], &before[range]);
            let shown = self.generation_of(block, bytes)?;
            if shown.is_none() && bytes != before {
                return Err(format!("block {block} has neither this host's data nor the earlier"));
            }
            let own = || self.writes.iter().enumerate().filter(|(_, write)| write.block == block);
            let missing = own().find(|(_, write)| Some(write.generation) > shown);
            // A write that was not yet recorded comes after all recorded ones.
            let shown_at = own().find(|(_, write)| Some(write.generation) == shown);
            let shown_at = shown.map(|_| (shown_at.map_or(self.writes.len(), |(at, _)| at), block));
            newest = newest.max(shown_at);
            oldest_missing = match (oldest_missing, missing) {
                (Some(old), Some((at, _))) => Some(old.min((at, block))),
                (old, new) => old.or(new.map(|(at, _)| (at, block))),
            };
        }
        match (newest, oldest_missing) {
            (Some(newest), Some(missing)) if missing.0 < newest.0 => Err(format!(
                "no moment of the past: block {} shows write {}, but block {} lacks the earlier \
                 write {} of {}",
                newest.1,
                newest.0,
                missing.1,
                missing.0,
                self.writes.len()
            )),
            (newest, _) => Ok(newest.map_or(0, |(at, _)| at + 1)),
        }
    }

    /// Generation of this host's data in a block; `None` for other data.
    fn generation_of(&self, block: u64, bytes: &[u8]) -> Result<Option<u32>, String> {
        if bytes[..4] != *b"FSV1" || long(bytes, 16) != self.run {
            return Ok(None);
        }
        let generation = word(bytes, 24);
        let belongs_at = self.first_byte + block * BLOCK_BYTES;
        match long(bytes, 8) == belongs_at && word(bytes, 508) == generation {
            true => Ok(Some(generation)),
            false => Err(format!("block {block} is torn or misplaced")),
        }
    }
}

/// Content of the range that a host writes.
///
/// # Panics
///
/// If the file cannot be read.
pub fn content(disk: &Path, first_byte: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    let file = fs::File::open(disk).expect("the disk exists");
    file.read_exact_at(&mut content, first_byte).expect("the host's range is on the disk");
    content
}

/// Checks that a host's range shows one moment of its past: the first of the writes in the state
/// file `journal`, up to one of them, and perhaps a write in flight. Returns the number of its
/// writes that are present, and of completed writes.
///
/// # Panics
///
/// If it does not.
#[track_caller]
pub fn assert_moment(what: &str, journal: &Path, content: &[u8], before: &[u8]) -> (usize, usize) {
    let journal = Journal::read(journal);
    match journal.moment_of(content, before) {
        Ok(present) => (present, journal.writes.len()),
        Err(why) => panic!("{what}: {why}"),
    }
}

/// The little-endian 32 bits at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// The little-endian 64 bits at `at`.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 7;

    fn journal(writes: &[(u64, u32)]) -> Journal {
        let writes = writes
            .iter()
            .map(|(block, generation)| Write { block: *block, generation: *generation });
        Journal { run: RUN, first_byte: 0, blocks: 3, writes: writes.collect() }
    }

    fn blocks(generations: [u32; 3]) -> Vec<u8> {
        let mut bytes = vec![0; 3 * BLOCK_BYTES as usize];
        for (number, sector) in bytes.chunks_exact_mut(512).enumerate() {
            let generation = generations[number];
            if generation > 0 {
                sector[..4].copy_from_slice(b"FSV1");
                sector[8..16].copy_from_slice(&(number as u64 * 512).to_le_bytes());
                sector[16..24].copy_from_slice(&RUN.to_le_bytes());
                sector[24..28].copy_from_slice(&generation.to_le_bytes());
                sector[508..].copy_from_slice(&generation.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn missing_earlier_write_is_found() {
        let journal = journal(&[(0, 1), (1, 1), (0, 2), (2, 1)]);
        let moment = |generations| journal.moment_of(&blocks(generations), &blocks([0; 3]));
        assert_eq!(moment([0, 0, 0]), Ok(0));
        assert_eq!(moment([1, 0, 0]), Ok(1));
        assert_eq!(moment([2, 1, 0]), Ok(3));
        assert_eq!(moment([2, 1, 1]), Ok(4));
        // In flight when the journal ended.
        assert_eq!(moment([2, 2, 1]), Ok(5));
        for lacking in [[0, 1, 0], [2, 0, 0], [1, 1, 1], [2, 2, 0]] {
            assert!(moment(lacking).unwrap_err().contains("lacks"), "{lacking:?}");
        }
    }

    #[test]
    fn torn_and_foreign_blocks_are_found() {
        let journal = journal(&[(0, 1)]);
        let mut torn = blocks([1, 0, 0]);
        torn[508] = 2;
        assert!(journal.moment_of(&torn, &blocks([0; 3])).unwrap_err().contains("torn"));
        let mut foreign = blocks([1, 0, 0]);
        foreign[BLOCK_BYTES as usize + 5] = 1;
        assert!(journal.moment_of(&foreign, &blocks([0; 3])).unwrap_err().contains("neither"));
    }
}
