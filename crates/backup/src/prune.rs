//! Prune: removal of backups from the head, and deletion of objects that no backup needs.
//!
//! The folders of writers are listed first. Then the head is replaced, on condition that it is the
//! one that was read, and only listed objects are deleted that this head needs neither for a
//! backup, nor for the base of an unfinished one, nor for its writers. A backup that begins later
//! has a new folder, and uses only objects of backups that this head lists. A backup that was
//! abandoned cannot be committed.
//! So a prune can be interrupted at each request, and can run beside backups and other prunes.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Serialize;

use crate::copies::parse_copy;
use crate::document::{BackupEntry, DataObject, Head, SnapshotIdentity, UnfinishedBackup};
use crate::error::BackupError;
use crate::head::HeadChange;
use crate::id::WriterId;
use crate::limits::{CLOCK_ERROR_S, PRUNE_TRIES_MAX, UPLOADS_MAX};
use crate::repository::{DATA, MANIFESTS, Repository, entry_name};

/// Backups that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Volume whose backups are removed; all if `None`.
    pub volume: Option<String>,
    /// Newest snapshots of each volume of which all backups are kept.
    pub keep: Option<u64>,
    /// Age of snapshots up to which backups are kept, in seconds.
    pub keep_within_s: Option<u64>,
    /// Backups to remove in any case.
    pub remove: Vec<WriterId>,
    /// Age of the last sign of life of an unfinished backup that is abandoned, in seconds.
    pub abandon_after_s: u64,
}

/// Entries of the head that a prune removes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrunePlan {
    /// Backups to remove.
    pub remove: Vec<BackupEntry>,
    /// Unfinished backups to abandon.
    pub abandon: Vec<UnfinishedBackup>,
}

/// Objects that no backup needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unneeded {
    /// Count.
    pub objects: u64,
    /// Length of indexes and packs in all, in bytes.
    pub bytes: u64,
}

/// Time of a snapshot. The clock of its server was wrong if it was backed up before; such a backup
/// would be the newest for ever.
fn taken_seconds(entry: &BackupEntry) -> u64 {
    entry.snapshot.created_seconds.min(entry.completed_seconds)
}

/// Chooses the entries to remove. A backup is kept if one of the rules keeps it.
pub fn plan_prune(head: &Head, retention: &Retention, now: u64) -> PrunePlan {
    let has_rule = retention.keep.is_some() || retention.keep_within_s.is_some();
    let of_volume = |entry: &BackupEntry| {
        retention.volume.as_ref().is_none_or(|volume| *volume == entry.snapshot.volume)
    };
    // Places of snapshots from the newest on, for each volume.
    type Places = BTreeMap<([u8; 16], u64), u64>;
    let mut volumes: BTreeMap<(&str, &str, &str), Places> = BTreeMap::new();
    let mut sorted: Vec<&BackupEntry> = head.backups.iter().collect();
    sorted.sort_by_key(|entry| taken_seconds(entry));
    let mut remove = Vec::new();
    for entry in sorted.into_iter().rev() {
        let SnapshotIdentity { volume, volume_id, pool_id, source, .. } = &entry.snapshot;
        let places = volumes.entry((volume, volume_id, pool_id)).or_default();
        let next = places.len() as u64;
        let is_counted = taken_seconds(entry) <= now.saturating_add(CLOCK_ERROR_S);
        let place = match is_counted {
            true => *places.entry((entry.snapshot.uuid().0, *source)).or_insert(next),
            // It would be the newest, and newer ones would be removed instead.
            false => 0,
        };
        let is_kept_by_count = retention.keep.is_some_and(|keep| place < keep);
        let age = now.saturating_sub(taken_seconds(entry));
        let is_kept_by_age = retention.keep_within_s.is_some_and(|within| age <= within);
        let is_named = retention.remove.contains(&entry.id);
        let is_old = has_rule && of_volume(entry) && !is_kept_by_count && !is_kept_by_age;
        if is_named || is_old {
            remove.push(entry.clone());
        }
    }
    remove.reverse();
    let is_abandoned = |unfinished: &&UnfinishedBackup| {
        now.saturating_sub(unfinished.renewed_seconds) > retention.abandon_after_s
    };
    PrunePlan { remove, abandon: head.unfinished.iter().filter(is_abandoned).cloned().collect() }
}

/// Removes the entries of a plan. An unfinished backup that was continued since stays.
fn apply(head: &mut Head, plan: &PrunePlan) -> bool {
    let before = (head.backups.len(), head.unfinished.len());
    head.backups.retain(|entry| plan.remove.iter().all(|removed| removed.id != entry.id));
    head.unfinished.retain(|unfinished| !plan.abandon.contains(unfinished));
    before != (head.backups.len(), head.unfinished.len())
}

/// Adds unfinished backups that can never continue: the manifest of their base is damaged, and the
/// base is not listed, or is removed by the plan. Nothing else shows which objects they need.
///
/// # Errors
/// The store fails.
pub async fn abandon_unusable(
    repository: &Repository,
    head: &Head,
    mut plan: PrunePlan,
) -> Result<PrunePlan, BackupError> {
    let mut left = head.clone();
    apply(&mut left, &plan);
    for unfinished in &left.unfinished {
        let Some(base) = &unfinished.base else { continue };
        if left.backups.iter().any(|entry| entry.id == base.id) {
            continue;
        }
        match repository.manifest(base).await {
            Err(error) if error.is_damage() => plan.abandon.push(unfinished.clone()),
            read => drop(read?),
        }
    }
    Ok(plan)
}

/// Counts what a prune would delete.
///
/// # Errors
/// The store fails, or a manifest of a backup that stays is damaged.
pub async fn preview(repository: &Repository, plan: &PrunePlan) -> Result<Unneeded, BackupError> {
    run(repository, plan, false).await
}

/// Removes the entries of a plan, then deletes all objects that no backup needs.
///
/// # Errors
/// The store fails, or a manifest of a backup that stays is damaged: then nothing is deleted.
pub async fn prune(repository: &Repository, plan: &PrunePlan) -> Result<Unneeded, BackupError> {
    if repository.head().await?.is_none() {
        return Ok(Unneeded::default());
    }
    repository.probe().await?;
    run(repository, plan, true).await
}

async fn run(
    repository: &Repository,
    plan: &PrunePlan,
    deletes: bool,
) -> Result<Unneeded, BackupError> {
    for _ in 0..PRUNE_TRIES_MAX {
        let listed = Listed::read(repository).await?;
        let change = |head: &mut Head| {
            apply(head, plan);
            // Also an unchanged head: a store may have answered with an old one.
            Ok(HeadChange::Store(head.clone()))
        };
        let head = match deletes {
            true => repository.change_head(change).await?,
            false => {
                let mut head = repository.head().await?.unwrap_or_default();
                apply(&mut head, plan);
                head
            }
        };
        let needed = match needed_objects(repository, &head).await? {
            Needed::Read(needed) => needed,
            // Another prune has deleted the manifest.
            Needed::Removed => continue,
        };
        let unneeded = sweep(repository, &listed, &head, &needed, deletes).await?;
        if deletes {
            for entry in head.backups.iter().filter(|entry| !listed.entries.contains(&entry.id)) {
                repository.store_entry(entry).await?;
            }
            repository.keep_key_record().await?;
        }
        return Ok(unneeded);
    }
    Err(BackupError::Busy)
}

/// Needed objects of each writer.
type Objects = BTreeMap<WriterId, BTreeSet<DataObject>>;

/// Outcome of [`needed_objects`].
enum Needed {
    Read(Objects),
    /// The head that was given is old: a backup that it needs was removed.
    Removed,
}

async fn needed_objects(repository: &Repository, head: &Head) -> Result<Needed, BackupError> {
    let mut needed = Objects::new();
    for entry in head.needed() {
        let manifest = match repository.manifest(entry).await {
            Err(error) if error.is_damage() => {
                let now = repository.head().await?.unwrap_or_default();
                if now.needed().iter().all(|other| other.id != entry.id) {
                    return Ok(Needed::Removed);
                }
                return Err(error);
            }
            manifest => manifest?,
        };
        for (writer, object, _) in manifest.objects() {
            needed.entry(writer).or_default().insert(object);
        }
    }
    Ok(Needed::Read(needed))
}

/// Folders and manifests of the store, listed before the head is read.
struct Listed {
    writers: Vec<WriterId>,
    manifests: Vec<WriterId>,
    entries: BTreeSet<WriterId>,
}

impl Listed {
    async fn read(repository: &Repository) -> Result<Listed, BackupError> {
        let writers = repository.folders(DATA).await?;
        let manifests = repository.list(MANIFESTS).await?;
        let manifest = |(name, _): &(String, u64)| parse_copy(name);
        Ok(Listed {
            entries: repository.listed_entries().await?,
            writers: writers.iter().filter_map(|name| name.parse().ok()).collect(),
            manifests: manifests.iter().filter_map(manifest).collect(),
        })
    }
}

fn parse_object(name: &str) -> Option<DataObject> {
    let number = |text: &str| text.parse().ok();
    match name.split_once('-')? {
        ("index", range) => number(range).map(DataObject::Index),
        ("pack", pack) => number(pack).map(DataObject::Pack),
        _ => None,
    }
}

async fn sweep(
    repository: &Repository,
    listed: &Listed,
    head: &Head,
    needed: &Objects,
    deletes: bool,
) -> Result<Unneeded, BackupError> {
    let running: BTreeSet<WriterId> =
        head.unfinished.iter().flat_map(|unfinished| unfinished.writers.clone()).collect();
    let needed_backups = head.needed();
    let mut unneeded = Unneeded::default();
    // First, so that no recovery of the head finds an entry whose objects are being deleted.
    let backups: BTreeSet<WriterId> = head.backups.iter().map(|entry| entry.id).collect();
    let entries = listed.entries.iter();
    let entries = entries.filter(|id| !running.contains(id) && !backups.contains(id));
    let names: Vec<String> = entries.map(|id| entry_name(*id)).collect();
    unneeded.objects += names.len() as u64;
    delete_all(repository, names, deletes).await?;
    let none = BTreeSet::new();
    for writer in listed.writers.iter().filter(|writer| !running.contains(writer)) {
        let of_writer = needed.get(writer).unwrap_or(&none);
        let folder = format!("{DATA}/{writer}");
        let mut names = repository.list(&folder).await?;
        // Objects of other names are not of this program.
        names.retain(|(name, _)| {
            parse_object(name).is_some_and(|object| !of_writer.contains(&object))
        });
        unneeded.objects += names.len() as u64;
        unneeded.bytes += names.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let names = names.into_iter().map(|(name, _)| format!("{folder}/{name}"));
        delete_all(repository, names.collect(), deletes).await?;
    }
    let is_unneeded = |id: &&WriterId| {
        !running.contains(id) && needed_backups.iter().all(|entry| entry.id != **id)
    };
    let manifests = listed.manifests.iter().filter(is_unneeded);
    let names: Vec<String> = manifests.map(|id| format!("{MANIFESTS}/{id}.json")).collect();
    unneeded.objects += names.len() as u64;
    delete_all(repository, names, deletes).await?;
    Ok(unneeded)
}

async fn delete_all(
    repository: &Repository,
    names: Vec<String>,
    deletes: bool,
) -> Result<(), BackupError> {
    if !deletes {
        return Ok(());
    }
    let deletions = names.iter().map(|name| repository.delete(name));
    stream::iter(deletions).buffer_unordered(UPLOADS_MAX).try_collect::<Vec<()>>().await.map(drop)
}
