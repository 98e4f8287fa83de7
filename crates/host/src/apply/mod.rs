//! Setting changes with an undo journal.
//!
//! Before each change, a journal on stable storage records the file and its value. After a crash at
//! any point, [`undo`] restores the old values. A repeated or interrupted undo is harmless: it
//! skips settings that have their old value and settings that another program has changed since.
//! The journal is untrusted input: it can name only the settings that this crate changes, and
//! restore only lines that this crate writes.

mod journal;
mod persist;
mod scheduler;

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::checks::SettingChange;
use crate::facts::is_name;
use crate::parse;
use crate::root::Root;

use journal::{Journal, JournalEntry};

pub use journal::JOURNAL;
pub use persist::{SYSCTL_FILE, UDEV_FILE};

/// Reason that changes could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal cannot be read or written; nothing is changed without it.
    #[error("the journal {JOURNAL}: {0}")]
    Journal(#[from] io::Error),
    /// The journal is malformed, or names a file that is not one of the settings.
    #[error("the journal {JOURNAL}, line {line}: {why}; nothing was changed")]
    Corrupt { line: usize, why: String },
    /// Another program changes settings now.
    #[error("another flagstone doctor is changing settings")]
    Busy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeOutcome {
    pub file: String,
    #[serde(flatten)]
    pub result: ChangeResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum ChangeResult {
    Changed {
        before: String,
        now: String,
    },
    /// Only for a dry run: the setting would get the new value.
    WouldChange {
        before: String,
        now: String,
    },
    /// The setting already had the value.
    Unchanged {
        now: String,
    },
    /// Only for undo: another program has changed the setting since, so undo skipped it.
    ChangedSince {
        now: String,
        /// Value before the doctor's change.
        before: String,
    },
    Failed {
        why: String,
    },
}

impl ChangeResult {
    fn failed(why: impl ToString) -> ChangeResult {
        ChangeResult::Failed { why: why.to_string() }
    }

    fn of(self, file: &str) -> ChangeOutcome {
        ChangeOutcome { file: file.to_owned(), result: self }
    }
}

impl ChangeOutcome {
    pub fn is_failure(&self) -> bool {
        matches!(self.result, ChangeResult::Failed { .. })
    }
}

impl std::fmt::Display for ChangeOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = &self.file;
        match &self.result {
            ChangeResult::Changed { before, now } | ChangeResult::WouldChange { before, now } => {
                let is_done = matches!(self.result, ChangeResult::Changed { .. });
                let what = if is_done { "changed   " } else { "would change" };
                if file != UDEV_FILE && file != SYSCTL_FILE {
                    return write!(f, "{what} {file}: {before} -> {now}");
                }
                let lines = |text: &String| text.lines().count();
                write!(f, "{what} {file}: {} lines, {} before", lines(now), lines(before))
            }
            ChangeResult::Unchanged { .. } => write!(f, "unchanged  {file}"),
            ChangeResult::ChangedSince { now, before } => write!(
                f,
                "left       {file}: another program changed it to {now:?}; before it was {before:?}"
            ),
            ChangeResult::Failed { why } => write!(f, "failed     {file}: {why}"),
        }
    }
}

/// Applies changes, each recorded in the journal first. A failed change does not stop the others.
///
/// # Errors
/// The journal failed; no further change was made.
pub fn apply(
    root: &Root,
    changes: &[SettingChange],
    keep: bool,
) -> Result<Vec<ChangeOutcome>, ApplyError> {
    let mut journal = Journal::open(root)?;
    let mut outcomes = Vec::new();
    for change in changes {
        outcomes.push(change_setting(root, &mut journal, change)?.of(&change.file));
    }
    if keep {
        outcomes.extend(persist::write(root, &mut journal)?);
    }
    journal.close()?;
    Ok(outcomes)
}

/// Preview of [`apply`]. Changes nothing.
///
/// # Errors
/// The journal of earlier changes is unreadable or malformed.
pub fn preview(
    root: &Root,
    changes: &[SettingChange],
    keep: bool,
) -> Result<Vec<ChangeOutcome>, ApplyError> {
    let planned = changes.iter().map(|change| {
        let result = match value_before(root, change) {
            Ok(before) => ChangeResult::WouldChange { before, now: change.value.clone() },
            Err(result) => result,
        };
        result.of(&change.file)
    });
    let mut outcomes: Vec<_> = planned.collect();
    if keep {
        outcomes.extend(persist::preview(root, &Journal::peek(root)?, &outcomes));
    }
    Ok(outcomes)
}

/// The value that a change replaces. The error is the result of a change with nothing to do.
fn value_before(root: &Root, change: &SettingChange) -> Result<String, ChangeResult> {
    if !is_setting(&change.file) {
        return Err(ChangeResult::failed("no setting that is changed here"));
    }
    match current(root, &change.file) {
        Ok(now) if now == change.value => Err(ChangeResult::Unchanged { now }),
        before => before.map_err(ChangeResult::failed),
    }
}

fn change_setting(
    root: &Root,
    journal: &mut Journal,
    change: &SettingChange,
) -> Result<ChangeResult, ApplyError> {
    let before = match value_before(root, change) {
        Ok(before) => before,
        Err(result) => return Ok(result),
    };
    let SettingChange { file, value, .. } = change;
    scheduler::note(root, journal, file)?;
    let (name, after) = (file.clone(), value.clone());
    journal.add(JournalEntry::Setting { file: name, before: before.clone(), after })?;
    let written = scheduler::write_keeping(root, file, value).and_then(|()| current(root, file));
    scheduler::note_taken(root, journal, file)?;
    Ok(match written {
        Err(error) => ChangeResult::failed(format!("the kernel refuses: {error}")),
        Ok(now) if now == *value => ChangeResult::Changed { before, now },
        Ok(now) => {
            // Undo must distinguish the kernel's choice from another program's.
            journal.add(JournalEntry::Took { file: file.clone(), value: now.clone() })?;
            ChangeResult::failed(format!("the kernel made {now:?} of {value:?}"))
        }
    })
}

/// Undoes all changes in the journal, the last first, and removes the undone entries.
pub fn undo(root: &Root) -> Result<Vec<ChangeOutcome>, ApplyError> {
    if !Journal::is_there(root)? {
        return Ok(Vec::new());
    }
    let mut journal = Journal::open(root)?;
    let entries = journal.entries().to_vec();
    let (mut outcomes, mut remaining) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate().rev() {
        let (file, result) = match entry {
            JournalEntry::Took { .. } => continue,
            JournalEntry::Setting { file, before, after } => {
                let took = entries[index..].iter().find_map(|later| match later {
                    JournalEntry::Took { file: of, value } if of == file => Some(value),
                    _ => None,
                });
                // An interrupted change's side effects have the kernel's values.
                let is_cut_off = before == after && took.is_none();
                let ours = (!is_cut_off).then_some([Some(after), took]);
                (file, undo_setting(root, file, before, ours))
            }
            JournalEntry::File { file, before, after } => {
                (file, persist::undo(root, file, before.as_deref(), after))
            }
        };
        let outcome = result.unwrap_or_else(ChangeResult::failed).of(file);
        if outcome.is_failure() {
            remaining.push(entry.clone());
        }
        // Side effects are reported only if something had to be restored.
        let is_beside =
            matches!(entry, JournalEntry::Setting { before, after, .. } if before == after);
        if !is_beside || !matches!(outcome.result, ChangeResult::Unchanged { .. }) {
            outcomes.push(outcome);
        }
    }
    remaining.reverse();
    journal.replace(remaining)?;
    journal.close()?;
    Ok(outcomes)
}

/// `ours` lists the values that this crate or the kernel set; `None` accepts any value.
fn undo_setting(
    root: &Root,
    file: &str,
    before: &str,
    ours: Option<[Option<&String>; 2]>,
) -> io::Result<ChangeResult> {
    let now = match current(root, file) {
        // The disk is gone, and its setting with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(ChangeResult::Unchanged { now: "no longer there".to_owned() });
        }
        now => now?,
    };
    if now == before {
        return Ok(ChangeResult::Unchanged { now });
    }
    if ours.is_some_and(|ours| !ours.iter().flatten().any(|our| **our == now)) {
        return Ok(ChangeResult::ChangedSince { now, before: before.to_owned() });
    }
    let restored = scheduler::write_keeping(root, file, before).and_then(|()| current(root, file));
    Ok(match restored {
        Ok(restored) if restored == before => ChangeResult::Changed { before: now, now: restored },
        Ok(other) => ChangeResult::failed(format!("the kernel made {other:?} of it")),
        Err(error) => ChangeResult::failed(format!("the kernel refuses: {error}")),
    })
}

/// The value of a setting in the form in which it is written.
fn current(root: &Root, file: &str) -> io::Result<String> {
    let text = root.read(file)?;
    if file.ends_with("/scheduler") {
        let chosen = parse::chosen(&text).ok_or(io::ErrorKind::InvalidData)?;
        return Ok(chosen.to_owned());
    }
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn write_setting(root: &Root, file: &str, value: &str) -> io::Result<()> {
    let flags =
        OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = File::from(rustix::fs::open(root.locate(file), flags, Mode::empty())?);
    // One write call: each write to such a file sets the value.
    file.write_all(format!("{value}\n").as_bytes())
}

/// Whether a file is one of the settings that this crate changes.
fn is_setting(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    let is_plain = |part: &&str| is_name(part);
    match parts.split_first() {
        Some((&"", parts)) if parts.iter().all(is_plain) => match parts[..] {
            ["sys", "block", _, "queue", name] => {
                matches!(name, "scheduler" | "read_ahead_kb" | "nr_requests")
            }
            ["sys", "block", _, "device", "queue_depth"] => true,
            ["sys", "devices", "system", "cpu", "cpufreq", _, "scaling_governor"] => true,
            ["proc", "sys", "net", "core" | "ipv4", _] => true,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests;
