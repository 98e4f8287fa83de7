//! Log area: where a write-intent log is stored, and reading and writing its parts.
//!
//! Guarantees: written data is durable when the call returns; a part that cannot be read (an error)
//! is distinguished from a readable but invalid part; no call waits for memory
//! ([`crate::io::memory`]), because host writes that wait for the log hold memory themselves.

use std::ops::Range;

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::{BufMut, buf};

use crate::id::MirrorId;
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::pages::{Pages, SET, bits_of};
use crate::intent_log::recover::is_inconclusive;
use crate::io::memory::at_most;
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE};
use crate::ondisk::activity_log::{self, ActivityRecord};
use crate::ondisk::bitmap_page::{self, PageContents, WORDS};
use crate::ondisk::layout::{LogLayout, ReplicaGeometry, log_layout};
use crate::ondisk::log_header::LogHeader;
use crate::ondisk::{FormatError, Page};

const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Clone)]
pub(crate) struct LogArea {
    device: SharedDevice,
    at: u64,
    layout: LogLayout,
    geometry: ReplicaGeometry,
}

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

impl LogArea {
    /// The log area at `at` for this geometry; `None` when the device is too small.
    pub(crate) fn new(
        device: SharedDevice,
        at: u64,
        geometry: &ReplicaGeometry,
    ) -> Option<LogArea> {
        let layout = log_layout(geometry);
        let end = at.checked_add(layout.total_bytes)?;
        let fits = end <= device.geometry().size_bytes;
        fits.then_some(LogArea { device, at, layout, geometry: *geometry })
    }

    pub(crate) fn geometry(&self) -> &ReplicaGeometry {
        &self.geometry
    }

    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        self.device.flush().await
    }

    pub(crate) async fn headers(&self) -> Result<[Result<LogHeader, FormatError>; 2], IoError> {
        let [first, second] = self.layout.headers.map(|at| self.at + at);
        let first = LogHeader::decode(&read_page(&self.device, first).await?);
        Ok([first, LogHeader::decode(&read_page(&self.device, second).await?)])
    }

    pub(crate) async fn write_header(&self, header: &LogHeader) -> Result<(), IoError> {
        let at = self.at + self.layout.headers[(header.sequence & 1) as usize];
        write_page(&self.device, at, &header.encode()).await
    }

    /// Marks both header slots: a log is being created here.
    pub(crate) async fn begin(&self) -> Result<(), IoError> {
        for at in self.layout.headers {
            write_page(&self.device, self.at + at, &LogHeader::begun()).await?;
        }
        Ok(())
    }

    /// Zeroes both header slots: there is no log here any more.
    pub(crate) async fn forget(&self) -> Result<(), IoError> {
        for at in self.layout.headers {
            write_page(&self.device, self.at + at, &[0; PAGE_BYTES]).await?;
        }
        Ok(())
    }

    pub(crate) async fn records(
        &self,
        log: MirrorId,
    ) -> Result<[Result<ActivityRecord, FormatError>; 2], IoError> {
        let [first, second] = self.layout.records;
        Ok([self.record(first, log).await?, self.record(second, log).await?])
    }

    async fn record(
        &self,
        at: u64,
        log: MirrorId,
    ) -> Result<Result<ActivityRecord, FormatError>, IoError> {
        let len = self.layout.record_bytes as usize;
        let mut record = Vec::with_capacity(len);
        while record.len() < len {
            let at = self.at + at + record.len() as u64;
            let part = self.device.read(at, at_most(len - record.len())).await?;
            record.extend_from_slice(&part);
        }
        Ok(ActivityRecord::decode(&record, log, self.geometry.regions()))
    }

    /// Writes a record of `regions`, in ascending order, to its slot; page by page if memory is
    /// short. A power failure may tear it, which makes it invalid.
    pub(crate) async fn write_record(
        &self,
        sequence: u64,
        log: MirrorId,
        regions: &[u32],
    ) -> Result<(), IoError> {
        let at = self.at + self.layout.records[(sequence & 1) as usize];
        let len = activity_log::record_bytes(regions.len());
        let mut memory = at_most(len);
        if memory.len() == len {
            activity_log::encode_into(sequence, log, regions, &mut memory);
            return self.device.write(at, memory.freeze(), true).await;
        }
        drop(memory);
        let mut record = vec![0; len];
        activity_log::encode_into(sequence, log, regions, &mut record);
        for (page, at) in record.as_chunks().0.iter().zip((at..).step_by(PAGE_BYTES)) {
            write_page(&self.device, at, page).await?;
        }
        Ok(())
    }

    /// Writes the full space of both records, leaving no valid record. A thin device allocates the
    /// space now, so the log cannot fail later because the device is full.
    pub(crate) async fn take_room_for_records(&self) -> Result<(), IoError> {
        let len = activity_log::record_bytes(self.geometry.active_regions_max as usize);
        for at in self.layout.records {
            let len = len as u64;
            self.device.write_zeroes(self.at + at, len, ZeroFlags::default()).await?;
        }
        Ok(())
    }

    /// Writes up to [`PAGES_PER_WRITE`] pages with the current bits. `count` returns the write
    /// count to store in a page. On failure, any of the pages may have been written.
    pub(crate) async fn write_pages(
        &self,
        log: MirrorId,
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
                let contents = PageContents { writes: count(next)?, words };
                place.copy_from_slice(&bitmap_page::encode(log, next, &contents));
                next += 1;
            }
            self.device.write(at, memory.freeze(), true).await?;
        }
        Ok(())
    }

    /// Sets the bits of the pages on disk, and all bits of pages that cannot be read. Records how
    /// often each page was written. Returns the number of a damaged page, if there is one.
    ///
    /// # Errors
    /// When a device error leaves a page's contents unknown.
    pub(crate) async fn read_pages(
        &self,
        log: MirrorId,
        bits: &Bitmap,
        pages: &Pages,
    ) -> Result<Option<u64>, IoError> {
        let (all, mut damaged) = (self.geometry.pages(), None);
        let mut first = 0;
        while first < all {
            let end = all.min(first + PAGES_PER_WRITE);
            if let Some(read) = self.read_run(first..end).await {
                for (page, bytes) in (first..end).zip(read.chunks_exact(PAGE_BYTES)) {
                    damaged = damaged.or(take_page(bytes, log, page, bits, pages));
                }
            } else {
                // One by one, to get every readable page.
                for page in first..end {
                    let at = self.at + self.layout.pages + page * PAGE;
                    let read = read_page(&self.device, at).await;
                    if let Err(error) = read
                        && is_inconclusive(error)
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

    /// Reads several pages with one call, if possible.
    async fn read_run(&self, pages: Range<u64>) -> Option<BufMut> {
        let memory = buf::try_alloc((pages.end - pages.start) as usize * PAGE_BYTES)?;
        self.device.read(self.at + self.layout.pages + pages.start * PAGE, memory).await.ok()
    }
}

/// Loads a page. Returns its number if it is invalid.
fn take_page(
    bytes: &[u8],
    log: MirrorId,
    number: u64,
    bits: &Bitmap,
    pages: &Pages,
) -> Option<u64> {
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
