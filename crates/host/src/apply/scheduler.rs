//! Side effects of scheduler changes: a kernel that switches the I/O scheduler also chooses a new
//! number of requests for the queue (`nr_requests`).
//!
//! This module writes the old number again after each scheduler change, both in apply and in undo.
//! The kernel may refuse it, because a queue without a scheduler has at most as many requests as
//! the disk has tags. The journal therefore records the old number before the scheduler's own
//! entry, as an entry of `nr_requests` that changes nothing, and the kernel's number after the
//! change. Without the latter, a crash interrupted the change and the number found is the kernel's.

use std::io;

use crate::root::Root;

use super::journal::{Journal, JournalEntry};
use super::{ApplyError, current, write_setting};

pub(super) fn note(root: &Root, journal: &mut Journal, file: &str) -> Result<(), ApplyError> {
    if let Some((beside, value)) = read(root, file) {
        journal.add(JournalEntry::Setting { file: beside, before: value.clone(), after: value })?;
    }
    Ok(())
}

pub(super) fn note_taken(root: &Root, journal: &mut Journal, file: &str) -> Result<(), ApplyError> {
    if let Some((beside, value)) = read(root, file) {
        journal.add(JournalEntry::Took { file: beside, value })?;
    }
    Ok(())
}

/// Writes a setting, and the old value of the affected one if the kernel accepts it.
pub(super) fn write_keeping(root: &Root, file: &str, value: &str) -> io::Result<()> {
    let kept = read(root, file);
    write_setting(root, file, value)?;
    if let Some((beside, before)) = kept
        && read(root, file).is_some_and(|(_, now)| now != before)
    {
        // The next read shows a refusal.
        let _ = write_setting(root, &beside, &before);
    }
    Ok(())
}

/// The setting that a change of `file` affects, and its value.
fn read(root: &Root, file: &str) -> Option<(String, String)> {
    let beside = format!("{}/nr_requests", file.strip_suffix("/scheduler")?);
    let value = current(root, &beside).ok()?;
    Some((beside, value))
}
