//! The place where a log lies, and reading and writing its parts there.
//!
//! Promises: what is written is durable when the call returns; a part that cannot be read is told
//! from one that reads and makes no sense, by an error; nothing waits for memory ([`crate::memory`]),
//! for hosts' writes wait for this with theirs.

use std::ops::Range;

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::{BufMut, buf};

use crate::bitmap::Bitmap;
use crate::format::bitmap_page::{self, Contents, WORDS};
use crate::format::hot_record::{self, HotRecord};
use crate::format::log_header::LogHeader;
use crate::format::{FormatError, Page};
use crate::id::Uuid;
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE};
use crate::memory::at_most;
use crate::pages::{Pages, SET, bits_of};
use crate::recover::is_silent;
use crate::shape::{LogLayout, Shape, log_layout};

const PAGE: u64 = PAGE_BYTES as u64;

/// See the module.
#[derive(Clone)]
pub(crate) struct Area {
    device: SharedDevice,
    at: u64,
    layout: LogLayout,
    shape: Shape,
}

/// Reads a page of any device.
pub(crate) async fn read_page(device: &SharedDevice, at: u64) -> Result<Page, IoError> {
    let read = device.read(at, buf::alloc_small(PAGE_BYTES)).await?;
    let mut page = [0; PAGE_BYTES];
    page.copy_from_slice(&read);
    Ok(page)
}

/// Writes a page of any device, durably.
pub(crate) async fn write_page(device: &SharedDevice, at: u64, page: &Page) -> Result<(), IoError> {
    let mut memory = buf::alloc_small(PAGE_BYTES);
    memory.copy_from_slice(page);
    device.write(at, memory.freeze(), true).await
}

impl Area {
    /// A log for a volume of this shape, from `at` on; `None` when the device is too small.
    pub(crate) fn new(device: SharedDevice, at: u64, shape: &Shape) -> Option<Area> {
        let layout = log_layout(shape);
        let end = at.checked_add(layout.total_bytes)?;
        let fits = end <= device.geometry().size_bytes;
        fits.then_some(Area { device, at, layout, shape: *shape })
    }

    /// Size and granularities of the volume.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Reads both slots of the header.
    pub(crate) async fn headers(&self) -> Result<[Result<LogHeader, FormatError>; 2], IoError> {
        let [first, second] = self.layout.headers.map(|at| self.at + at);
        let first = LogHeader::decode(&read_page(&self.device, first).await?);
        Ok([first, LogHeader::decode(&read_page(&self.device, second).await?)])
    }

    /// Writes a header to its slot.
    pub(crate) async fn write_header(&self, header: &LogHeader) -> Result<(), IoError> {
        let at = self.at + self.layout.headers[(header.sequence & 1) as usize];
        write_page(&self.device, at, &header.encode()).await
    }

    /// Says in both slots of the header that a log is being made here.
    pub(crate) async fn begin(&self) -> Result<(), IoError> {
        for at in self.layout.headers {
            write_page(&self.device, self.at + at, &LogHeader::begun()).await?;
        }
        Ok(())
    }

    /// Zeroes both slots of the header: there is no log here any more.
    pub(crate) async fn forget(&self) -> Result<(), IoError> {
        for at in self.layout.headers {
            write_page(&self.device, self.at + at, &[0; PAGE_BYTES]).await?;
        }
        Ok(())
    }

    /// Reads both slots of the hot record.
    pub(crate) async fn records(
        &self,
        log: Uuid,
    ) -> Result<[Result<HotRecord, FormatError>; 2], IoError> {
        let [first, second] = self.layout.records;
        Ok([self.record(first, log).await?, self.record(second, log).await?])
    }

    async fn record(&self, at: u64, log: Uuid) -> Result<Result<HotRecord, FormatError>, IoError> {
        let len = self.layout.record_bytes as usize;
        let mut record = Vec::with_capacity(len);
        while record.len() < len {
            let at = self.at + at + record.len() as u64;
            let part = self.device.read(at, at_most(len - record.len())).await?;
            record.extend_from_slice(&part);
        }
        Ok(HotRecord::decode(&record, log, self.shape.regions()))
    }

    /// Writes a record of regions, ascending, to its slot. One that goes page by page for want of
    /// memory may be torn by a power loss as any other, and is no record then.
    pub(crate) async fn write_record(
        &self,
        sequence: u64,
        log: Uuid,
        regions: &[u32],
    ) -> Result<(), IoError> {
        let at = self.at + self.layout.records[(sequence & 1) as usize];
        let len = hot_record::record_bytes(regions.len());
        let mut memory = at_most(len);
        if memory.len() == len {
            hot_record::encode_into(sequence, log, regions, &mut memory);
            return self.device.write(at, memory.freeze(), true).await;
        }
        drop(memory);
        let mut record = vec![0; len];
        hot_record::encode_into(sequence, log, regions, &mut record);
        for (page, at) in record.as_chunks().0.iter().zip((at..).step_by(PAGE_BYTES)) {
            write_page(&self.device, at, page).await?;
        }
        Ok(())
    }

    /// Writes both records' places whole, with no record in them: on a thin device the log has all
    /// its room from then on, and a device that is full later does not fail it.
    pub(crate) async fn take_room_for_records(&self) -> Result<(), IoError> {
        let len = hot_record::record_bytes(self.shape.hot_regions as usize);
        for at in self.layout.records {
            let len = len as u64;
            self.device.write_zeroes(self.at + at, len, ZeroFlags::default()).await?;
        }
        Ok(())
    }

    /// Writes pages as the bits are now: at most [`PAGES_PER_WRITE`]. `count` is what each says of
    /// how often it was written. When this fails any of them may have been written.
    pub(crate) async fn write_pages(
        &self,
        log: Uuid,
        pages: Range<u64>,
        bits: &Bitmap,
        count: impl Fn(u64) -> Result<u64, IoError>,
    ) -> Result<(), IoError> {
        let mut next = pages.start;
        while next < pages.end {
            let at = self.at + self.layout.pages + next * PAGE;
            let mut memory = at_most((pages.end - next) as usize * PAGE_BYTES);
            for place in memory.chunks_exact_mut(PAGE_BYTES) {
                let first = next * WORDS as u64;
                let words = std::array::from_fn(|index| bits.word(first + index as u64));
                let contents = Contents { writes: count(next)?, words };
                place.copy_from_slice(&bitmap_page::encode(log, next, &contents));
                next += 1;
            }
            self.device.write(at, memory.freeze(), true).await?;
        }
        Ok(())
    }

    /// Sets what the pages on disk name, and all that pages stand for which cannot be read; notes how
    /// often each was written. Gives the number of one that could not be read, if there is any.
    ///
    /// # Errors
    /// When the device says nothing of a page.
    pub(crate) async fn read_pages(
        &self,
        log: Uuid,
        bits: &Bitmap,
        pages: &Pages,
    ) -> Result<Option<u64>, IoError> {
        let (all, mut damaged) = (self.shape.pages(), None);
        let mut first = 0;
        while first < all {
            let end = all.min(first + PAGES_PER_WRITE);
            if let Some(read) = self.read_run(first..end).await {
                for (page, bytes) in (first..end).zip(read.chunks_exact(PAGE_BYTES)) {
                    damaged = damaged.or(take_page(bytes, log, page, bits, pages));
                }
            } else {
                // One by one: a page that can be read is worth more than none.
                for page in first..end {
                    let at = self.at + self.layout.pages + page * PAGE;
                    let read = read_page(&self.device, at).await;
                    if let Err(error) = read
                        && is_silent(error)
                    {
                        return Err(error);
                    }
                    let bytes = read.as_ref().map_or(&[][..], |read| &read[..]);
                    damaged = damaged.or(take_page(bytes, log, page, bits, pages));
                }
            }
            first = end;
        }
        Ok(damaged)
    }

    /// Reads pages in one call, if that can be done.
    async fn read_run(&self, pages: Range<u64>) -> Option<BufMut> {
        let memory = buf::try_alloc((pages.end - pages.start) as usize * PAGE_BYTES)?;
        self.device.read(self.at + self.layout.pages + pages.start * PAGE, memory).await.ok()
    }
}

/// Gives the number of a page that is none.
fn take_page(bytes: &[u8], log: Uuid, number: u64, bits: &Bitmap, pages: &Pages) -> Option<u64> {
    let page = <&Page>::try_from(bytes).ok();
    let Some(contents) = page.and_then(|page| bitmap_page::decode(page, log, number).ok()) else {
        let range = bits_of(number);
        bits.set(range.clone());
        pages.raise(&range, SET);
        return Some(number);
    };
    pages.found(number, contents.writes);
    for (index, word) in (number * WORDS as u64..).zip(contents.words) {
        bits.merge(index, word);
    }
    None
}
