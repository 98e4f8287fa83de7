//! What a change of one setting does to another: a kernel that is given an I/O scheduler also
//! chooses how many requests the disk's queue has (`nr_requests`), whatever it was.
//!
//! So that is written again after each change of a scheduler, here and when it is undone. Where the
//! kernel takes it no more (without a scheduler a queue has no more requests than the disk has
//! tags), the journal has what it was: an entry of `nr_requests` that changes nothing, before the
//! scheduler's own, and after the change what the kernel made of it. Without the latter the change
//! was cut off by a crash, and what is found is the kernel's.

use std::io;

use crate::root::Root;

use super::journal::{Entry, Journal};
use super::{ApplyError, current, write_setting};

/// The setting that a change of a file also changes.
fn of(file: &str) -> Option<String> {
    Some(format!("{}/nr_requests", file.strip_suffix("/scheduler")?))
}

/// Notes what stands beside, before a change.
pub(super) fn note(root: &Root, journal: &mut Journal, file: &str) -> Result<(), ApplyError> {
    if let Some((beside, value)) = read(root, file) {
        journal.add(Entry::Setting { file: beside, before: value.clone(), after: value })?;
    }
    Ok(())
}

/// Notes what became of it, after the change.
pub(super) fn note_taken(root: &Root, journal: &mut Journal, file: &str) -> Result<(), ApplyError> {
    if let Some((beside, value)) = read(root, file) {
        journal.add(Entry::Took { file: beside, value })?;
    }
    Ok(())
}

/// Writes a setting, and again what stands beside it, as far as the kernel takes that.
pub(super) fn write_keeping(root: &Root, file: &str, value: &str) -> io::Result<()> {
    let kept = read(root, file);
    write_setting(root, file, value)?;
    if let Some((beside, before)) = kept
        && read(root, file).is_some_and(|(_, now)| now != before)
    {
        // A refusal is seen where it is read next.
        let _ = write_setting(root, &beside, &before);
    }
    Ok(())
}

fn read(root: &Root, file: &str) -> Option<(String, String)> {
    let beside = of(file)?;
    let value = current(root, &beside).ok()?;
    Some((beside, value))
}
