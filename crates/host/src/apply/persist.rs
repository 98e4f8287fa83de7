//! Persistence across restarts: one udev rule file and one sysctl file that belong to the doctor.

use std::collections::BTreeMap;
use std::io;

use crate::checks::sysctl_name;
use crate::root::Root;

use super::journal::{Journal, JournalEntry, parent, replace_file, sync_directory};
use super::{ApplyError, ChangeOutcome, ChangeResult, current, is_setting};

/// Rules for disks and CPUs.
pub const UDEV_FILE: &str = "/etc/udev/rules.d/99-flagstone-doctor.rules";
/// Kernel settings.
pub const SYSCTL_FILE: &str = "/etc/sysctl.d/99-flagstone-doctor.conf";

const HEADER: &str =
    "# Written by flagstone doctor --persist; flagstone doctor --undo takes it back.\n";

/// File, line prefix and line that persist a setting.
fn line(setting: &str, value: &str) -> Option<(&'static str, String, String)> {
    if let Some(name) = sysctl_name(setting) {
        let line = format!("{name} = {value}");
        return Some((SYSCTL_FILE, name, line));
    }
    let (matches, attribute) = match setting.strip_prefix("/sys/block/") {
        Some(rest) => {
            let (disk, attribute) = rest.split_once('/')?;
            (format!(r#"SUBSYSTEM=="block", ENV{{DEVTYPE}}=="disk", KERNEL=="{disk}""#), attribute)
        }
        None => (r#"SUBSYSTEM=="cpu""#.to_owned(), "cpufreq/scaling_governor"),
    };
    let key = format!(r#"ACTION=="add|change", {matches}, ATTR{{{attribute}}}"#);
    let line = format!(r#"{key}="{value}""#);
    Some((UDEV_FILE, key, line))
}

/// Whether each line of `text` is a line that the doctor writes to `file`. A rule of udev can run a
/// program, so undo restores no other line.
pub(super) fn is_ours(file: &str, text: &str) -> bool {
    text.lines().all(|line| line == HEADER.trim_end() || is_our_line(file, line))
}

fn is_our_line(file: &str, text: &str) -> bool {
    let parts = match file {
        SYSCTL_FILE => text
            .split_once(" = ")
            .map(|(name, value)| (format!("/proc/sys/{}", name.replace('.', "/")), value)),
        _ => udev_setting(text),
    };
    let Some((setting, value)) = parts else { return false };
    // No character that ends a value, or that udev replaces.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-. ".contains(&byte);
    let is_value = !value.is_empty() && value.bytes().all(is_plain);
    // The line of the setting must be the same text: parts that were not looked at are not in it.
    is_value
        && is_setting(&setting)
        && line(&setting, value).is_some_and(|(of_file, _, line)| of_file == file && line == text)
}

/// Setting and value of a udev rule. Any CPU's governor has the rule of all CPUs.
fn udev_setting(text: &str) -> Option<(String, &str)> {
    let (matches, assignment) = text.rsplit_once("ATTR{")?;
    let (attribute, value) = assignment.strip_suffix('"')?.split_once("}=\"")?;
    let setting = match matches.split_once("KERNEL==\"") {
        Some((_, rest)) => format!("/sys/block/{}/{attribute}", rest.split_once('"')?.0),
        None => "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor".to_owned(),
    };
    Some((setting, value))
}

/// New content of the files for the `settings` (file and value): of each file its lines, by their
/// prefixes.
fn lines<'a>(
    settings: impl Iterator<Item = (&'a str, &'a str)>,
) -> impl Iterator<Item = (&'static str, BTreeMap<String, String>)> {
    let (mut udev, mut sysctl) = (BTreeMap::new(), BTreeMap::new());
    for (file, value) in settings {
        match line(file, value) {
            Some((UDEV_FILE, key, line)) => udev.insert(key, line),
            Some((_, key, line)) => sysctl.insert(key, line),
            None => None,
        };
    }
    [(UDEV_FILE, udev), (SYSCTL_FILE, sysctl)].into_iter().filter(|(_, lines)| !lines.is_empty())
}

/// The recorded changes that are in force. Side effects of changes are not persisted.
fn in_force<'a>(
    root: &Root,
    entries: &'a [JournalEntry],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    entries.iter().filter_map(move |entry| match entry {
        JournalEntry::Setting { file, before, after } if before != after => {
            let now = current(root, file).ok();
            (now.as_ref() == Some(after)).then_some((file.as_str(), after.as_str()))
        }
        _ => None,
    })
}

/// Writes lines for all changes in force that the journal records, of earlier runs too.
pub(super) fn write(root: &Root, journal: &mut Journal) -> Result<Vec<ChangeOutcome>, ApplyError> {
    let all: Vec<_> = lines(in_force(root, journal.entries())).collect();
    let mut outcomes = Vec::new();
    for (file, lines) in all {
        outcomes.push(write_file(root, journal, file, &lines)?.of(file));
    }
    Ok(outcomes)
}

/// Preview of [`write()`] after the `planned` changes.
pub(super) fn preview(
    root: &Root,
    entries: &[JournalEntry],
    planned: &[ChangeOutcome],
) -> Vec<ChangeOutcome> {
    let new = planned.iter().filter_map(|outcome| match &outcome.result {
        ChangeResult::WouldChange { now, .. } => Some((outcome.file.as_str(), now.as_str())),
        _ => None,
    });
    let outcome = |(file, lines)| match texts(root, file, &lines) {
        Ok((before, now)) if before.as_ref() == Some(&now) => {
            ChangeResult::Unchanged { now }.of(file)
        }
        Ok((before, now)) => {
            ChangeResult::WouldChange { before: before.unwrap_or_default(), now }.of(file)
        }
        Err(error) => ChangeResult::failed(error).of(file),
    };
    lines(in_force(root, entries).chain(new)).map(outcome).collect()
}

/// Text of a file before, if it exists, and with `lines`. A text that undo would not restore is an
/// error.
fn texts(
    root: &Root,
    file: &str,
    lines: &BTreeMap<String, String>,
) -> io::Result<(Option<String>, String)> {
    let before = read(root, file)?;
    if before.as_ref().is_some_and(|before| !is_ours(file, before)) {
        return Err(io::Error::other(
            "it has lines that the doctor did not write: move them to another file",
        ));
    }
    let after = merge(before.as_deref().unwrap_or(HEADER), lines);
    Ok((before, after))
}

fn write_file(
    root: &Root,
    journal: &mut Journal,
    file: &str,
    lines: &BTreeMap<String, String>,
) -> Result<ChangeResult, ApplyError> {
    let (before, after) = match texts(root, file, lines) {
        Ok((before, now)) if before.as_ref() == Some(&now) => {
            return Ok(ChangeResult::Unchanged { now });
        }
        Ok(texts) => texts,
        Err(error) => return Ok(ChangeResult::failed(error)),
    };
    let (name, old, new) = (file.to_owned(), before.clone(), after.clone());
    journal.add(JournalEntry::File { file: name, before: old, after: new })?;
    let path = root.locate(file);
    let written =
        parent(&path).and_then(std::fs::create_dir_all).and_then(|()| replace_file(&path, &after));
    Ok(match written {
        Ok(()) => ChangeResult::Changed { before: before.unwrap_or_default(), now: after },
        Err(error) => ChangeResult::failed(error),
    })
}

/// The old lines that no new line replaces, followed by the new ones.
fn merge(old: &str, lines: &BTreeMap<String, String>) -> String {
    let is_replaced = |line: &&str| {
        lines.keys().any(|key| {
            line.strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with('='))
        })
    };
    let kept = old.lines().filter(|line| !is_replaced(line));
    let mut all: Vec<&str> = kept.chain(lines.values().map(String::as_str)).collect();
    // A new scheduler resets `nr_requests`, so rules for the latter come after it.
    all.sort_by_key(|line| match line {
        line if line.starts_with('#') => 0,
        line if line.contains("ATTR{queue/scheduler}") => 1,
        _ => 2,
    });
    all.into_iter().fold(String::new(), |text, line| text + line + "\n")
}

/// The file's text; `None` if it is missing. A file that could not be restored is an error.
fn read(root: &Root, file: &str) -> io::Result<Option<String>> {
    if !root.exists(file) {
        return Ok(None);
    }
    let metadata = std::fs::symlink_metadata(root.locate(file))?;
    if !metadata.is_file() || metadata.len() > crate::limits::FILE_BYTES_MAX {
        return Err(io::Error::other("it is no file of ours"));
    }
    std::fs::read_to_string(root.locate(file)).map(Some)
}

pub(super) fn undo(
    root: &Root,
    file: &str,
    before: Option<&str>,
    after: &str,
) -> io::Result<ChangeResult> {
    let now = read(root, file)?;
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    if now.as_deref() == before {
        return Ok(ChangeResult::Unchanged { now: text(before) });
    }
    if now.as_deref() != Some(after) {
        return Ok(ChangeResult::ChangedSince { now: text(now.as_deref()), before: text(before) });
    }
    let path = root.locate(file);
    match before {
        Some(before) => replace_file(&path, before)?,
        None => std::fs::remove_file(&path).and_then(|()| sync_directory(parent(&path)?))?,
    }
    Ok(ChangeResult::Changed { before: after.to_owned(), now: text(before) })
}
