//! Log device check: whether a log may be created on a device without a usable one.
//!
//! Guarantee: a log overwrites only zeroes or a recognizable log. Anything else belongs to someone:
//! the device name was mistyped, or two devices were swapped. This also holds after a power failure
//! while a log was being created, because its headers are written first
//! ([`LogHeader::begun`](crate::ondisk::log_header::LogHeader::begun)).

use flagstone_blockdev::{IoError, SharedDevice};

use crate::intent_log::log_area::read_page;
use crate::intent_log::recover::is_inconclusive;
use crate::limits::{LOG_PROBE_BYTES, PAGE_BYTES};
use crate::ondisk::is_log;
use crate::ondisk::locate::end_of;

/// True if the readable part of the first [`LOG_PROBE_BYTES`] may be overwritten by a log.
///
/// # Errors
/// When a device error leaves the contents unknown.
pub(crate) async fn is_free_for_log(device: &SharedDevice) -> Result<bool, IoError> {
    let end = end_of(device).min(LOG_PROBE_BYTES);
    let mut beginning = vec![0; end as usize];
    for (place, at) in beginning.chunks_exact_mut(PAGE_BYTES).zip((0..).step_by(PAGE_BYTES)) {
        match read_page(device, at).await {
            Ok(page) => place.copy_from_slice(&page),
            Err(error) if is_inconclusive(error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(may_become_log(&beginning))
}

/// The same check on the first [`LOG_PROBE_BYTES`] of a device, or all of a smaller one.
pub fn may_become_log(beginning: &[u8]) -> bool {
    beginning.iter().all(|byte| *byte == 0) || is_log(beginning)
}
