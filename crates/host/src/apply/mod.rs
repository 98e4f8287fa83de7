//! Setting changes with an undo journal.
//!
//! Before each change, a journal on stable storage records the file and its value. After a crash at
//! any point, [`undo`] restores the old values. A repeated or interrupted undo is harmless: it
//! skips settings that have their old value and settings that another program has changed since.
//! The journal is untrusted input and can name only the settings that this crate changes.

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
    Corrupt {
        /// From 1.
        line: usize,
        /// The mistake.
        why: String,
    },
    /// Another program changes settings now.
    #[error("another flagstone doctor is changing settings")]
    Busy,
}

/// Result of one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum ChangeOutcome {
    /// The setting has the new value.
    Changed {
        /// The file.
        file: String,
        /// Old value.
        before: String,
        /// New value.
        now: String,
    },
    /// The setting already had the value.
    Unchanged {
        /// The file.
        file: String,
        /// Current value.
        now: String,
    },
    /// Only for undo: another program has changed the setting since, so undo skipped it.
    ChangedSince {
        /// The file.
        file: String,
        /// Current value.
        now: String,
        /// Value before the doctor's change.
        before: String,
    },
    /// The change failed.
    Failed {
        /// The file.
        file: String,
        /// Reason.
        why: String,
    },
}

impl ChangeOutcome {
    /// Whether the change failed.
    pub fn is_failure(&self) -> bool {
        matches!(self, ChangeOutcome::Failed { .. })
    }
}

impl std::fmt::Display for ChangeOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChangeOutcome::Changed { file, before, now }
                if file == UDEV_FILE || file == SYSCTL_FILE =>
            {
                let lines = |text: &String| text.lines().count();
                write!(f, "changed    {file}: {} lines, {} before", lines(now), lines(before))
            }
            ChangeOutcome::Changed { file, before, now } => {
                write!(f, "changed    {file}: {before} -> {now}")
            }
            ChangeOutcome::Unchanged { file, .. } => write!(f, "unchanged  {file}"),
            ChangeOutcome::ChangedSince { file, now, before } => write!(
                f,
                "left       {file}: somebody changed it to {now:?} since; before it was {before:?}"
            ),
            ChangeOutcome::Failed { file, why } => write!(f, "failed     {file}: {why}"),
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
        outcomes.push(change_setting(root, &mut journal, change)?);
    }
    if keep {
        outcomes.extend(persist::write(root, &mut journal)?);
    }
    journal.close()?;
    Ok(outcomes)
}

fn change_setting(
    root: &Root,
    journal: &mut Journal,
    change: &SettingChange,
) -> Result<ChangeOutcome, ApplyError> {
    let file = change.file.clone();
    if !is_setting(&file) {
        return Ok(ChangeOutcome::Failed {
            file,
            why: "no setting that is changed here".to_owned(),
        });
    }
    let before = match current(root, &file) {
        Ok(before) => before,
        Err(error) => return Ok(ChangeOutcome::Failed { file, why: error.to_string() }),
    };
    if before == change.value {
        return Ok(ChangeOutcome::Unchanged { file, now: before });
    }
    scheduler::note(root, journal, &file)?;
    let entry = JournalEntry::Setting {
        file: file.clone(),
        before: before.clone(),
        after: change.value.clone(),
    };
    journal.add(entry)?;
    let written =
        scheduler::write_keeping(root, &file, &change.value).and_then(|()| current(root, &file));
    scheduler::note_taken(root, journal, &file)?;
    Ok(match written {
        Err(error) => ChangeOutcome::Failed { file, why: format!("the kernel refuses: {error}") },
        Ok(now) if now == change.value => ChangeOutcome::Changed { file, before, now },
        Ok(now) => {
            // Undo must distinguish the kernel's choice from another program's.
            journal.add(JournalEntry::Took { file: file.clone(), value: now.clone() })?;
            ChangeOutcome::Failed {
                file,
                why: format!("the kernel made {now:?} of {:?}", change.value),
            }
        }
    })
}

/// Undoes all changes in the journal, the last first, and removes the undone entries.
///
/// # Errors
/// The journal is unreadable or malformed.
pub fn undo(root: &Root) -> Result<Vec<ChangeOutcome>, ApplyError> {
    if !root.exists(JOURNAL) {
        return Ok(Vec::new());
    }
    let mut journal = Journal::open(root)?;
    let entries = journal.entries().to_vec();
    let (mut outcomes, mut remaining) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate().rev() {
        let outcome = match entry {
            JournalEntry::Took { .. } => continue,
            JournalEntry::Setting { file, before, after, .. } => {
                let took = entries[index..].iter().find_map(|later| match later {
                    JournalEntry::Took { file: of, value } if of == file => Some(value),
                    _ => None,
                });
                // An interrupted change's side effects have the kernel's values.
                let is_cut_off = before == after && took.is_none();
                let ours = (!is_cut_off).then_some([Some(after), took]);
                undo_setting(root, file, before, ours)
            }
            JournalEntry::File { file, before, after } => {
                persist::undo(root, file, before.as_deref(), after)
            }
        };
        if outcome.is_failure() {
            remaining.push(entry.clone());
        }
        // Side effects are reported only if something had to be restored.
        let is_beside =
            matches!(entry, JournalEntry::Setting { before, after, .. } if before == after);
        if !is_beside || !matches!(outcome, ChangeOutcome::Unchanged { .. }) {
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
) -> ChangeOutcome {
    let file = file.to_owned();
    let now = match current(root, &file) {
        Ok(now) => now,
        // The disk is gone, and its setting with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return ChangeOutcome::Unchanged { file, now: "no longer there".to_owned() };
        }
        Err(error) => return ChangeOutcome::Failed { file, why: error.to_string() },
    };
    if now == before {
        return ChangeOutcome::Unchanged { file, now };
    }
    if ours.is_some_and(|ours| !ours.iter().flatten().any(|our| **our == now)) {
        return ChangeOutcome::ChangedSince { file, now, before: before.to_owned() };
    }
    match scheduler::write_keeping(root, &file, before).and_then(|()| current(root, &file)) {
        Ok(restored) if restored == before => {
            ChangeOutcome::Changed { file, before: now, now: restored }
        }
        Ok(other) => {
            ChangeOutcome::Failed { file, why: format!("the kernel made {other:?} of it") }
        }
        Err(error) => ChangeOutcome::Failed { file, why: format!("the kernel refuses: {error}") },
    }
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
