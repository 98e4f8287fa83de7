//! What a log that is found is worth, and what is done when it is worth nothing.
//!
//! Promises: a log that is not certainly the replica's own and latest never means that replicas are
//! equal. It is answered by a new one, with a new name and all bits set, which is whole and durable
//! before the superblock names it; until then the next attempt finds the old one as it was, or
//! worse, and does the same. A device that cannot be reached says nothing of the log on it, which may
//! be whole: that is no answer, and the replica stays closed until there is one. Nor is a log that is
//! another replica's: it is left as it is, and so is what is no log at all ([`crate::vacant`]).

use flagstone_blockdev::IoError;

use crate::area::Area;
use crate::bitmap::Bitmap;
use crate::format::log_header::{LogHeader, Trust};
use crate::format::superblock::{Progress, Superblock};
use crate::format::{FormatError, newest};
use crate::id::Uuid;
use crate::limits::{PAGE_WRITES_MAX, PAGES_PER_WRITE};
use crate::log::Start;
use crate::pages::{Pages, SET};

/// Why a log cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// There is none, or both copies of its header are damaged.
    #[error("there is no log, or its header is damaged: {0}")]
    Header(FormatError),
    /// It was this replica's before a newer.
    #[error("the log is one that was replaced")]
    Foreign,
    /// It is this replica's at another time than the superblock: one of the two came back from a
    /// backup, or a part of the log did.
    #[error("the log is not of the same time as the superblock")]
    Stale,
    /// Both copies of its hot record are damaged.
    #[error("the log's hot record is damaged: {0}")]
    Record(FormatError),
    /// Its header or hot record could not be read: what cannot be read may be the latest.
    #[error("the log cannot be read: {0}")]
    Unreadable(IoError),
}

/// Why nothing can be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLog {
    /// It is worth nothing.
    Lost(Lost),
    /// Nobody knows what it is worth.
    Unknown(IoError),
    /// It is worth nothing here, and may be to another replica, whose it is.
    Others(Uuid),
}

impl From<IoError> for NoLog {
    fn from(error: IoError) -> NoLog {
        if is_silent(error) { NoLog::Unknown(error) } else { NoLog::Lost(Lost::Unreadable(error)) }
    }
}

/// True of a failure that says nothing of what is on a device.
pub(crate) fn is_silent(error: IoError) -> bool {
    matches!(error, IoError::Unreachable | IoError::NoMemory)
}

/// A log that can be gone on with.
pub(crate) struct Recovered {
    pub(crate) start: Start,
    /// Of its header.
    pub(crate) header_sequence: u64,
}

/// Reads the log that the superblock names. Regions that were hot and pages that are damaged are
/// dirty.
///
/// # Errors
/// Why it is worth nothing, or why that is not known.
pub(crate) async fn recover(area: &Area, superblock: &Superblock) -> Result<Recovered, NoLog> {
    let slots = area.headers().await?;
    let newest_header = newest(slots, |header| header.sequence);
    let (_, header) = newest_header.map_err(|error| NoLog::Lost(Lost::Header(error)))?;
    let Superblock { log, replica, incarnation, shape, .. } = superblock;
    if header.replica != *replica {
        return Err(NoLog::Others(header.replica));
    }
    match header.trust(*log, *replica, *incarnation, shape) {
        Trust::Own => {}
        Trust::Stale => return Err(NoLog::Lost(Lost::Stale)),
        Trust::Foreign => return Err(NoLog::Lost(Lost::Foreign)),
    }
    let slots = area.records(*log).await?;
    let newest_record = newest(slots, |record| record.sequence);
    let (_, record) = newest_record.map_err(|error| NoLog::Lost(Lost::Record(error)))?;
    let bits = Bitmap::new(shape.bits(), shape.bit_bytes);
    let pages = Pages::new(shape.pages());
    let before = superblock.log_progress;
    if let Some(damaged) = area.read_pages(*log, &bits, &pages).await? {
        // What it said is lost, and its range is marked: it is counted as what all had come to.
        let missing = before.page_writes.saturating_sub(pages.all_writes());
        pages.found(damaged, missing.min(PAGE_WRITES_MAX));
    }
    let found = Progress { record_sequence: record.sequence, page_writes: pages.all_writes() };
    if !found.has_reached(before) {
        return Err(NoLog::Lost(Lost::Stale));
    }
    let region_bits = u64::from(shape.region_bits());
    for region in record.regions {
        let first = u64::from(region) * region_bits;
        bits.set(first..first + region_bits);
        pages.raise(&(first..first + region_bits), SET);
    }
    let start = Start { name: *log, bits, pages, sequence: record.sequence };
    Ok(Recovered { start, header_sequence: header.sequence })
}

/// Makes a log, all of whose bits are set or clear.
pub(crate) async fn make(
    area: &Area,
    replica: Uuid,
    incarnation: u64,
    dirty: bool,
) -> Result<Recovered, IoError> {
    let (shape, name) = (*area.shape(), Uuid::random());
    // Before anything that a power loss may tear so that nobody knows it for ours.
    area.begin().await?;
    let bits = Bitmap::new(shape.bits(), shape.bit_bytes);
    if dirty {
        bits.set(bits.all());
    }
    let mut first = 0;
    while first < shape.pages() {
        let end = shape.pages().min(first + PAGES_PER_WRITE);
        area.write_pages(name, first..end, &bits, |_| Ok(0)).await?;
        first = end;
    }
    area.take_room_for_records().await?;
    area.write_record(0, name, &[]).await?;
    // Both slots: an earlier log's header may have any sequence.
    for sequence in [0, 1] {
        let header = LogHeader { sequence, log: name, replica, incarnation, shape };
        area.write_header(&header).await?;
    }
    let pages = Pages::new(shape.pages());
    Ok(Recovered { start: Start { name, bits, pages, sequence: 0 }, header_sequence: 1 })
}
