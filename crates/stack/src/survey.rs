//! Survey of an open device for data, before a command writes over it.
//!
//! The start is read, for signatures. A device that knows its holes is judged by what lies between
//! them, of which at most [`READ_BYTES_MAX`] are read: what was written and not read counts as
//! data. Of any other device samples are read. Invariant: the work is bounded, whatever a remote
//! server answers.

use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_host::guard::{JUDGED_BYTES, SAMPLE_BYTES, SAMPLES, contents, contents_at, samples};
use flagstone_runtime::buf;
use flagstone_runtime::time::{self, Instant};

use crate::open::beginning;

/// Longest part that is read to see whether written parts are zero, in bytes: as much as samples
/// take.
const READ_BYTES_MAX: u64 = 16 << 20;

/// Questions about holes: 64 TiB of them, 4 GiB at a time, or a device in many pieces.
const QUESTIONS_MAX: usize = 16 << 10;

/// Time for all questions: a server may answer each just before its time-out.
const QUESTIONS_TIME: Duration = Duration::from_secs(60);

/// Longest read, in bytes.
const PART_BYTES: u64 = 256 << 10;

/// Result of a search for data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSearch {
    /// Description of the data.
    Found(String),
    /// There is none.
    Empty,
    /// Samples have none. The device does not say what was written, so that there may be some
    /// between them.
    EmptySamples,
}

impl DataSearch {
    /// Description of the data that was found.
    pub fn found(self) -> Option<String> {
        match self {
            DataSearch::Found(what) => Some(what),
            DataSearch::Empty | DataSearch::EmptySamples => None,
        }
    }
}

/// Searches a device for data.
///
/// # Errors
/// Of the device.
pub async fn find_data(device: &SharedDevice) -> Result<DataSearch, IoError> {
    let size_bytes = device.geometry().size_bytes;
    let begin = beginning(device, JUDGED_BYTES).await?;
    if let Some(what) = contents(&begin, size_bytes) {
        return Ok(DataSearch::Found(what));
    }
    let mut survey =
        Survey { device, size_bytes, left_bytes: READ_BYTES_MAX, questions: 0, begun: time::now() };
    let (found, none) = match survey.holes().await? {
        Holes::Known => (survey.between_holes().await?, DataSearch::Empty),
        // Samples cover a small device as a whole.
        Holes::None if size_bytes <= SAMPLES * SAMPLE_BYTES => {
            (survey.sampled().await?, DataSearch::Empty)
        }
        Holes::None => (survey.sampled().await?, DataSearch::EmptySamples),
        Holes::Unclear { from } => (Some(unknown_from(from)), DataSearch::Empty),
    };
    Ok(found.map_or(none, DataSearch::Found))
}

/// What a device says about its holes.
enum Holes {
    Known,
    /// All is data: it does not know holes, or has none.
    None,
    /// It was asked too often, or for too long.
    Unclear {
        from: u64,
    },
}

fn unknown_from(at: u64) -> String {
    format!("what it has from byte {at} on is not known")
}

struct Survey<'a> {
    device: &'a SharedDevice,
    size_bytes: u64,
    left_bytes: u64,
    questions: usize,
    begun: Instant,
}

impl Survey<'_> {
    async fn holes(&mut self) -> Result<Holes, IoError> {
        let mut at = 0;
        while at < self.size_bytes {
            if !self.may_ask() {
                return Ok(Holes::Unclear { from: at });
            }
            for extent in self.device.allocated(at, self.size_bytes - at).await? {
                if extent.is_hole {
                    return Ok(Holes::Known);
                }
                at += extent.len.max(1);
            }
        }
        Ok(Holes::None)
    }

    async fn between_holes(&mut self) -> Result<Option<String>, IoError> {
        let mut at = 0;
        while at < self.size_bytes {
            if !self.may_ask() {
                return Ok(Some(unknown_from(at)));
            }
            for extent in self.device.allocated(at, self.size_bytes - at).await? {
                let end = (at + extent.len.max(1)).min(self.size_bytes);
                if !extent.is_hole
                    && let Some(what) = self.written(at, end).await?
                {
                    return Ok(Some(what));
                }
                at = end;
            }
        }
        Ok(None)
    }

    /// Judges a part that was written.
    async fn written(&mut self, mut at: u64, end: u64) -> Result<Option<String>, IoError> {
        while at < end {
            let len = PART_BYTES.min(end - at);
            if len > self.left_bytes {
                return Ok(Some(format!("check its contents; it was written at byte {at}")));
            }
            self.left_bytes -= len;
            if let Some(what) = self.part(at, len).await? {
                return Ok(Some(what));
            }
            at += len;
        }
        Ok(None)
    }

    async fn sampled(&self) -> Result<Option<String>, IoError> {
        let sample_bytes = SAMPLE_BYTES.max(self.device.geometry().block_bytes.into());
        for offset in samples(self.size_bytes, sample_bytes) {
            let len = sample_bytes.min(self.size_bytes - offset);
            if let Some(what) = self.part(offset, len).await? {
                return Ok(Some(what));
            }
        }
        Ok(None)
    }

    async fn part(&self, offset: u64, len: u64) -> Result<Option<String>, IoError> {
        let data = self.device.read(offset, buf::acquire_more(len as usize).await).await?;
        Ok(contents_at(&data, offset))
    }

    fn may_ask(&mut self) -> bool {
        self.questions += 1;
        self.questions <= QUESTIONS_MAX && self.begun.elapsed() < QUESTIONS_TIME
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_blockdev::{
        BlockDevice, Extent, Geometry, IoFuture, MemoryDevice, NullDevice, ZeroFlags,
    };
    use flagstone_runtime::{Buf, BufMut, block_on};

    use super::*;

    /// A device that does not know its holes, and describes itself in pieces of at most so many
    /// bytes.
    struct Unaware(SharedDevice, u64);

    impl BlockDevice for Unaware {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn allocated(&self, _: u64, len: u64) -> IoFuture<Vec<Extent>> {
            IoFuture::ready(Ok(vec![Extent { len: len.min(self.1), is_hole: false }]))
        }
        fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
            self.0.write(offset, data, fua)
        }
        fn flush(&self) -> IoFuture<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
            self.0.discard(offset, len)
        }
        fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
            self.0.write_zeroes(offset, len, flags)
        }
    }

    fn memory() -> SharedDevice {
        Arc::new(MemoryDevice::new(1 << 30, 512).unwrap())
    }

    async fn write(device: &SharedDevice, offset: u64, byte: u8) {
        let mut data = buf::alloc(4096).await;
        data.fill(byte);
        device.write(offset, data.freeze(), false).await.unwrap();
    }

    #[test]
    fn data_anywhere_is_found_between_holes() {
        block_on(async {
            let device = memory();
            assert_eq!(find_data(&device).await, Ok(DataSearch::Empty));
            write(&device, 700 << 20, 0).await;
            assert_eq!(find_data(&device).await, Ok(DataSearch::Empty), "zeroes are no data");
            write(&device, 500 << 20, 7).await;
            let found = find_data(&device).await.unwrap().found().unwrap();
            assert!(found.ends_with("byte 524288000 is not zero"), "{found}");
            write(&device, 4096, 7).await;
            assert!(
                find_data(&device).await.unwrap().found().unwrap().contains("from byte 4096 on")
            );
        })
        .unwrap();
    }

    #[test]
    fn written_part_too_long_to_read_counts_as_data() {
        block_on(async {
            let device = memory();
            for offset in (0..40 << 20).step_by(64 << 10) {
                write(&device, offset, 0).await;
            }
            let found = find_data(&device).await.unwrap().found().unwrap();
            assert!(found.contains("it was written at byte"), "{found}");
        })
        .unwrap();
    }

    /// A server may describe a large volume in blocks, so that no hole is found.
    #[test]
    fn volume_in_too_many_pieces_is_unknown() {
        block_on(async {
            let device: SharedDevice = Arc::new(Unaware(memory(), 512));
            let found = find_data(&device).await.unwrap().found().unwrap();
            assert_eq!(found, "what it has from byte 8388608 on is not known");
        })
        .unwrap();
    }

    #[test]
    fn device_without_holes_is_sampled() {
        block_on(async {
            let inner = memory();
            let device: SharedDevice = Arc::new(Unaware(inner.clone(), u64::MAX));
            assert_eq!(find_data(&device).await, Ok(DataSearch::EmptySamples));
            write(&inner, (1 << 30) - 4096, 7).await;
            assert!(find_data(&device).await.unwrap().found().is_some());
            let null: SharedDevice = Arc::new(NullDevice::new(1 << 40, 512).unwrap());
            assert_eq!(find_data(&null).await, Ok(DataSearch::Empty));
        })
        .unwrap();
    }
}
