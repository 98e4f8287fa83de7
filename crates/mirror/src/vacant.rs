//! Whether a log may be made on a device of its own, where the replica finds none that it can use.
//!
//! Promises: a log is written over zeroes alone, and over what is recognisably a log. Anything else is
//! somebody's: the name of the device was mistyped, or two were exchanged. That is so whatever a power
//! loss has left of a log that was being made, for the first that is written of one are headers
//! ([`LogHeader::begun`](crate::format::log_header::LogHeader::begun)).

use flagstone_blockdev::{IoError, SharedDevice};

use crate::area::read_page;
use crate::format::is_log;
use crate::limits::{LOG_LOOK_BYTES, PAGE_BYTES};
use crate::locate::end_of;
use crate::recover::is_silent;

/// True where a log may be made at the beginning of this device. What lies there and cannot be read
/// says nothing: the rest of the first [`LOG_LOOK_BYTES`] decides.
///
/// # Errors
/// Of a device that says nothing of what is on it.
pub(crate) async fn is_vacant(device: &SharedDevice) -> Result<bool, IoError> {
    let end = end_of(device).min(LOG_LOOK_BYTES);
    let mut beginning = vec![0; end as usize];
    for (place, at) in beginning.chunks_exact_mut(PAGE_BYTES).zip((0..).step_by(PAGE_BYTES)) {
        match read_page(device, at).await {
            Ok(page) => place.copy_from_slice(&page),
            Err(error) if is_silent(error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(may_become_log(&beginning))
}

/// The same of the beginning of a device: its first [`LOG_LOOK_BYTES`], or all of it where that is less.
pub fn may_become_log(beginning: &[u8]) -> bool {
    beginning.iter().all(|byte| *byte == 0) || is_log(beginning)
}
