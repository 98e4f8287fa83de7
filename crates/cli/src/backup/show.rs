//! Text of `flagstone backup`.

use std::fmt::Write as _;

use flagstone_backup::document::{BackupEntry, Head, SnapshotIdentity};
use flagstone_backup::prune::{PrunePlan, Unneeded};
use flagstone_backup::recover::{LeftOut, Recovery};
use flagstone_backup::verify::VerifyReport;
use flagstone_units::columns::{Left, Right, lines};
use flagstone_units::display::size;
use flagstone_units::format_time;

fn time(seconds: u64) -> String {
    format_time(seconds as f64, "%Y-%m-%d %H:%M")
}

pub(super) fn list(head: &Head, url: &str) -> String {
    let columns = [
        ("backup", Left),
        ("taken", Left),
        ("size", Right),
        ("data", Right),
        ("stored", Right),
        ("new", Right),
        ("id", Left),
    ];
    let row = |entry: &BackupEntry| {
        vec![
            entry.snapshot.full_name(),
            time(entry.snapshot.created_seconds),
            size(entry.snapshot.size_bytes),
            size(entry.space.data_bytes),
            size(entry.space.stored_bytes),
            size(entry.space.new_bytes),
            entry.id.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = head.backups.iter().map(row).collect();
    let mut text = match rows.is_empty() {
        true => format!("no backups; next: flagstone volume backup VOLUME@SNAPSHOT {url}\n"),
        false => {
            lines(&columns, &rows).iter().map(|line| format!("{}\n", line.trim_end())).collect()
        }
    };
    for unfinished in &head.unfinished {
        let (name, since) = (unfinished.snapshot.full_name(), time(unfinished.renewed_seconds));
        let _ = writeln!(
            text,
            "{name} is unfinished since {since}: the same flagstone volume backup continues it"
        );
    }
    text
}

/// Name of a backup and time of its snapshot.
pub(super) fn named(entry: &BackupEntry) -> String {
    with_time(&entry.snapshot)
}

/// ID of a backup and time of its snapshot.
pub(super) fn with_id(entry: &BackupEntry) -> String {
    format!("{} ({})", entry.id, time(entry.snapshot.created_seconds))
}

fn with_time(snapshot: &SnapshotIdentity) -> String {
    format!("{} ({})", snapshot.full_name(), time(snapshot.created_seconds))
}

/// Space of a backup.
pub(super) fn space(entry: &BackupEntry) -> String {
    let space = &entry.space;
    let [volume, data, stored, new] =
        [entry.snapshot.size_bytes, space.data_bytes, space.stored_bytes, space.new_bytes]
            .map(size);
    format!("{volume} volume, {data} of data in {stored}, of which {new} are new")
}

/// What a prune removes, one line each.
pub(super) fn plan(plan: &PrunePlan, verb: &str) -> String {
    let mut text = String::new();
    for entry in &plan.remove {
        let _ = writeln!(text, "{verb} {}", named(entry));
    }
    for unfinished in &plan.abandon {
        let _ = writeln!(text, "{verb} the unfinished backup {}", with_time(&unfinished.snapshot));
    }
    text
}

pub(super) fn pruned(prune: &PrunePlan, unneeded: Unneeded, is_dry_run: bool) -> String {
    let Unneeded { objects, bytes } = unneeded;
    let removed = prune.remove.len() + prune.abandon.len();
    match is_dry_run {
        true => format!(
            "{}backups to remove: {removed}; objects to delete: {objects} ({})\n",
            plan(prune, "would remove"),
            size(bytes)
        ),
        false => {
            format!("backups removed: {removed}; objects deleted: {objects} ({})\n", size(bytes))
        }
    }
}

/// A backup that a recovery leaves out, and the reason.
pub(super) fn left_out(left: &LeftOut) -> String {
    format!("backup {}: {}", left.id, left.problem)
}

pub(super) fn recovery(recovery: &Recovery, is_dry_run: bool) -> String {
    let mut text = String::new();
    for left in &recovery.left_out {
        let _ = writeln!(text, "left out: {}", left_out(left));
    }
    let (backups, copies) = (recovery.backups.len(), recovery.copies);
    let _ = match (recovery.is_head_new, is_dry_run) {
        (true, true) => writeln!(text, "the list would be made again; backups: {backups}"),
        (true, false) => writeln!(text, "the list is made again; backups: {backups}"),
        (false, true) => writeln!(text, "the list is sound; copies to store again: {copies}"),
        (false, false) => writeln!(text, "the list is sound; copies stored again: {copies}"),
    };
    text
}

pub(super) fn verification(report: &VerifyReport, is_quick: bool) -> String {
    let mut text = String::new();
    for damage in &report.damage {
        let _ = writeln!(text, "{}; affected: {}", damage.problem, damage.backups.join(", "));
    }
    if report.more_damage > 0 {
        let _ = writeln!(text, "and {} more", report.more_damage);
    }
    let checked = match is_quick {
        true => "all objects listed; pieces were not read".to_owned(),
        false => format!("{} read and compared", size(report.read_bytes)),
    };
    let state = match report.is_sound() {
        true => "no damage".to_owned(),
        false => format!("damage: {}", report.damage.len() as u64 + report.more_damage),
    };
    let _ = writeln!(text, "backups: {}; {state}; {checked}", report.backups);
    text
}
