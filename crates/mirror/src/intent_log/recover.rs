//! Log recovery: whether a log that was found can be trusted, and its replacement if not.
//!
//! Guarantees: a log that is not certainly the replica's own and latest is never taken as proof
//! that replicas are equal. It is replaced by a log with a new name and all bits set, which is
//! complete and durable before the superblock names it. Until then, another attempt finds the old
//! log, intact or damaged, and does the same. An unreachable device says nothing about its log,
//! which may be intact: the replica stays closed until the device can be read. A log of another
//! replica is left unchanged, and so is anything but a log ([`crate::intent_log::log_device`]).

use flagstone_blockdev::IoError;

use crate::id::MirrorId;
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::log_area::LogArea;
use crate::intent_log::pages::{Pages, SET};
use crate::intent_log::writer::LogWriterStart;
use crate::limits::{PAGE_WRITES_MAX, PAGES_PER_WRITE};
use crate::ondisk::counter;
use crate::ondisk::log_header::{LogHeader, LogTrust};
use crate::ondisk::superblock::{LogProgress, Superblock};
use crate::ondisk::{FormatError, newest};

/// Why a log was not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogLost {
    /// There is no log, or both copies of its header are damaged.
    #[error("there is no log, or its header is damaged: {0}")]
    Header(FormatError),
    /// The log is of this replica, but was replaced.
    #[error("the log was replaced by a newer one")]
    Foreign,
    /// The log is of this replica, but does not fit the superblock: one of them, or a part of the
    /// log, was restored from a backup.
    #[error("the log and the superblock are from different times: one was restored from a backup")]
    Stale,
    /// Both copies of its activity record are damaged.
    #[error("the log's activity record is damaged: {0}")]
    Record(FormatError),
    /// The header or activity record could not be read. The unreadable copy may be the latest.
    #[error("the log cannot be read: {0}")]
    Unreadable(IoError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnusableLog {
    Lost(LogLost),
    /// It is unknown whether the log can be trusted.
    Unknown(IoError),
    /// The log belongs to another replica, which may still need it.
    Foreign(MirrorId),
    /// This replica's log was moved from here to another place.
    Moved,
}

impl From<IoError> for UnusableLog {
    fn from(error: IoError) -> UnusableLog {
        if is_inconclusive(error) {
            UnusableLog::Unknown(error)
        } else {
            UnusableLog::Lost(LogLost::Unreadable(error))
        }
    }
}

/// True of an error that says nothing about the contents of a device.
pub(crate) fn is_inconclusive(error: IoError) -> bool {
    matches!(error, IoError::Unreachable | IoError::NoMemory)
}

pub(crate) struct RecoveredLog {
    pub(crate) start: LogWriterStart,
    pub(crate) header_sequence: u64,
}

/// Reads the log that the superblock names. Regions that were active and damaged pages have all
/// their bits set.
pub(crate) async fn recover(
    area: &LogArea,
    superblock: &Superblock,
) -> Result<RecoveredLog, UnusableLog> {
    let slots = area.headers().await?;
    let is_whole = slots.iter().all(Result::is_ok);
    let newest_header = newest(slots, |header| header.sequence);
    let (_, mut header) =
        newest_header.map_err(|error| UnusableLog::Lost(LogLost::Header(error)))?;
    let Superblock { log, replica, incarnation, geometry, .. } = superblock;
    if header.replica != *replica {
        return Err(UnusableLog::Foreign(header.replica));
    }
    if header.log != *log && !superblock.log_place.is_empty() {
        return Err(UnusableLog::Moved);
    }
    match header.trust(*log, *replica, *incarnation, geometry) {
        LogTrust::Own => {}
        LogTrust::Stale => return Err(UnusableLog::Lost(LogLost::Stale)),
        LogTrust::Foreign => return Err(UnusableLog::Lost(LogLost::Foreign)),
    }
    let slots = area.records(*log).await?;
    let newest_record = newest(slots, |record| record.sequence);
    let (_, record) = newest_record.map_err(|error| UnusableLog::Lost(LogLost::Record(error)))?;
    let bits = Bitmap::new(geometry.bits(), geometry.bit_bytes);
    let pages = Pages::new(geometry.pages());
    let before = superblock.log_progress;
    if let Some(damaged) = area.read_pages(*log, &bits, &pages).await? {
        // All blocks of the damaged page are marked. Its lost count is the missing progress.
        let missing = before.page_writes.saturating_sub(pages.all_writes());
        pages.found(damaged, missing.min(PAGE_WRITES_MAX));
    }
    let found = LogProgress { record_sequence: record.sequence, page_writes: pages.all_writes() };
    if !found.has_reached(before) {
        return Err(UnusableLog::Lost(LogLost::Stale));
    }
    let region_bits = u64::from(geometry.region_bits());
    for region in record.regions {
        let first = u64::from(region) * region_bits;
        bits.set(first..first + region_bits);
        pages.raise(&(first..first + region_bits), SET);
    }
    // A copy that has rotted is written again: without the other one, everything would be copied.
    if !is_whole {
        let again = LogHeader { sequence: counter::next(header.sequence)?, ..header.clone() };
        let written = area.write_header(&again).await;
        tracing::warn!(%replica, "one copy of the log's header was damaged; written again: {written:?}");
        if written.is_ok() {
            header = again;
        }
    }
    let start = LogWriterStart { name: *log, bits, pages, sequence: record.sequence };
    Ok(RecoveredLog { start, header_sequence: header.sequence })
}

/// Begins the creation of a log: a power failure leaves something recognizable as an unfinished
/// log. Takes the room for its records, and returns its name.
pub(crate) async fn begin(area: &LogArea) -> Result<MirrorId, IoError> {
    area.begin().await?;
    area.take_room_for_records().await?;
    Ok(MirrorId::random())
}

/// Completes the creation of a log with its header, and with the next sequence number in the other
/// slot: the header of an earlier log there may have any.
pub(crate) async fn complete(area: &LogArea, header: LogHeader) -> Result<(), IoError> {
    let next = LogHeader { sequence: counter::next(header.sequence)?, ..header };
    area.write_header(&header).await?;
    area.write_header(&next).await
}

/// Creates a log with all bits set or all clear.
pub(crate) async fn make(
    area: &LogArea,
    replica: MirrorId,
    incarnation: u64,
    dirty: bool,
) -> Result<RecoveredLog, IoError> {
    let geometry = *area.geometry();
    let name = begin(area).await?;
    let bits = Bitmap::new(geometry.bits(), geometry.bit_bytes);
    if dirty {
        bits.set(bits.all());
    }
    let mut first = 0;
    while first < geometry.pages() {
        let end = geometry.pages().min(first + PAGES_PER_WRITE);
        area.write_pages(name, first..end, &bits, |_| Ok(0)).await?;
        first = end;
    }
    area.write_record(0, name, &[]).await?;
    complete(area, LogHeader { sequence: 0, log: name, replica, incarnation, geometry }).await?;
    let pages = Pages::new(geometry.pages());
    Ok(RecoveredLog {
        start: LogWriterStart { name, bits, pages, sequence: 0 },
        header_sequence: 1,
    })
}
