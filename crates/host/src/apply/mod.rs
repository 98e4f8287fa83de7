//! Changing settings, with a way back.
//!
//! Before each change its file and what it held are in a journal on stable storage; after a crash
//! at any point [`undo`] gives back what was before. Undoing twice, or after a crash of an undo,
//! does no harm: what already is as before is left alone, and so is what somebody else has
//! changed since. A journal is not trusted: it can name the settings that this crate changes,
//! and nothing else.

mod beside;
mod journal;
mod persist;

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::checks::Change;
use crate::facts::is_name;
use crate::parse;
use crate::root::Root;

use journal::{Entry, Journal};

pub use journal::JOURNAL;
pub use persist::{SYSCTL_FILE, UDEV_FILE};

/// Why changes could not be begun, or not be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal cannot be read or written; nothing is changed without it.
    #[error("the journal {JOURNAL}: {0}")]
    Journal(#[from] io::Error),
    /// The journal is not one, or names what is no setting of ours.
    #[error("the journal {JOURNAL}, line {line}: {why}; nothing was changed")]
    Corrupt {
        /// From 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// Another program changes settings now.
    #[error("another flagstone doctor is changing settings")]
    Busy,
}

/// How one change ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum Outcome {
    /// It holds what it should.
    Changed {
        /// The file.
        file: String,
        /// What it held.
        before: String,
        /// What it holds.
        now: String,
    },
    /// It held that already.
    Unchanged {
        /// The file.
        file: String,
        /// What it holds.
        now: String,
    },
    /// Undo alone: somebody else changed it since, and it was left alone.
    ChangedSince {
        /// The file.
        file: String,
        /// What it holds.
        now: String,
        /// What it held before the doctor.
        before: String,
    },
    /// It could not be changed.
    Failed {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
}

impl Outcome {
    /// Whether it could not be changed.
    pub fn is_failure(&self) -> bool {
        matches!(self, Outcome::Failed { .. })
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Changed { file, before, now } if file == UDEV_FILE || file == SYSCTL_FILE => {
                let lines = |text: &String| text.lines().count();
                write!(f, "changed    {file}: {} lines, {} before", lines(now), lines(before))
            }
            Outcome::Changed { file, before, now } => {
                write!(f, "changed    {file}: {before} -> {now}")
            }
            Outcome::Unchanged { file, .. } => write!(f, "unchanged  {file}"),
            Outcome::ChangedSince { file, now, before } => write!(
                f,
                "left       {file}: somebody changed it to {now:?} since; before it was {before:?}"
            ),
            Outcome::Failed { file, why } => write!(f, "failed     {file}: {why}"),
        }
    }
}

/// Writes changes, and a way back for each first. One that fails does not keep the others from
/// being made.
///
/// # Errors
/// That there can be no journal, in which case nothing (more) is changed.
pub fn apply(root: &Root, changes: &[Change], keep: bool) -> Result<Vec<Outcome>, ApplyError> {
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
    change: &Change,
) -> Result<Outcome, ApplyError> {
    let file = change.file.clone();
    if !is_setting(&file) {
        return Ok(Outcome::Failed { file, why: "no setting that is changed here".to_owned() });
    }
    let before = match current(root, &file) {
        Ok(before) => before,
        Err(error) => return Ok(Outcome::Failed { file, why: error.to_string() }),
    };
    if before == change.value {
        return Ok(Outcome::Unchanged { file, now: before });
    }
    beside::note(root, journal, &file)?;
    let entry =
        Entry::Setting { file: file.clone(), before: before.clone(), after: change.value.clone() };
    journal.add(entry)?;
    let written =
        beside::write_keeping(root, &file, &change.value).and_then(|()| current(root, &file));
    beside::note_taken(root, journal, &file)?;
    Ok(match written {
        Err(error) => Outcome::Failed { file, why: format!("the kernel refuses: {error}") },
        Ok(now) if now == change.value => Outcome::Changed { file, before, now },
        Ok(now) => {
            // So that undo knows the kernel's own choice from somebody else's.
            journal.add(Entry::Took { file: file.clone(), value: now.clone() })?;
            Outcome::Failed { file, why: format!("the kernel made {now:?} of {:?}", change.value) }
        }
    })
}

/// Gives back what was before all changes in the journal, the last first, and forgets those that
/// were given back.
///
/// # Errors
/// That the journal cannot be read or understood.
pub fn undo(root: &Root) -> Result<Vec<Outcome>, ApplyError> {
    if !root.exists(JOURNAL) {
        return Ok(Vec::new());
    }
    let mut journal = Journal::open(root)?;
    let entries = journal.entries().to_vec();
    let (mut outcomes, mut remaining) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate().rev() {
        let outcome = match entry {
            Entry::Took { .. } => continue,
            Entry::Setting { file, before, after, .. } => {
                let took = entries[index..].iter().find_map(|later| match later {
                    Entry::Took { file: of, value } if of == file => Some(value),
                    _ => None,
                });
                // What stood beside a change that was cut off is as the kernel made it.
                let is_cut_off = before == after && took.is_none();
                let ours = (!is_cut_off).then_some([Some(after), took]);
                undo_setting(root, file, before, ours)
            }
            Entry::File { file, before, after } => {
                persist::undo(root, file, before.as_deref(), after)
            }
        };
        if outcome.is_failure() {
            remaining.push(entry.clone());
        }
        // Of what only stood beside a change it is told if something had to be given back.
        let is_beside = matches!(entry, Entry::Setting { before, after, .. } if before == after);
        if !is_beside || !matches!(outcome, Outcome::Unchanged { .. }) {
            outcomes.push(outcome);
        }
    }
    remaining.reverse();
    journal.replace(remaining)?;
    journal.close()?;
    Ok(outcomes)
}

/// `ours` is what a setting may hold that is not somebody else's; `None` if it may be anything.
fn undo_setting(
    root: &Root,
    file: &str,
    before: &str,
    ours: Option<[Option<&String>; 2]>,
) -> Outcome {
    let file = file.to_owned();
    let now = match current(root, &file) {
        Ok(now) => now,
        // The disk is gone, and its setting with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Outcome::Unchanged { file, now: "no longer there".to_owned() };
        }
        Err(error) => return Outcome::Failed { file, why: error.to_string() },
    };
    if now == before {
        return Outcome::Unchanged { file, now };
    }
    if ours.is_some_and(|ours| !ours.iter().flatten().any(|our| **our == now)) {
        return Outcome::ChangedSince { file, now, before: before.to_owned() };
    }
    match beside::write_keeping(root, &file, before).and_then(|()| current(root, &file)) {
        Ok(restored) if restored == before => Outcome::Changed { file, before: now, now: restored },
        Ok(other) => Outcome::Failed { file, why: format!("the kernel made {other:?} of it") },
        Err(error) => Outcome::Failed { file, why: format!("the kernel refuses: {error}") },
    }
}

/// What a setting holds, as it would be written.
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
    // In one write: each write to such a file is a setting.
    file.write_all(format!("{value}\n").as_bytes())
}

/// Whether a file is one of the settings that are changed here.
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
