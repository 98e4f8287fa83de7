//! Choice of a backup's base, and its record in the head.

use crate::document::{BackupEntry, Head, SnapshotIdentity, UnfinishedBackup};
use crate::error::BackupError;
use crate::head::HeadChange;
use crate::id::WriterId;
use crate::limits::ATTEMPTS_MAX;
use crate::repository::{DATA, Repository};

/// Way in which a snapshot is backed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// There is a backup of it.
    Exists(BackupEntry),
    /// A backup is made.
    Make {
        /// Backup whose unchanged ranges are used.
        base: Option<BackupEntry>,
        /// True if an unfinished backup continues.
        continues: bool,
    },
}

/// Chooses the base: that of an unfinished backup, or the last backup of the volume, no larger than
/// the snapshot, whose snapshot the pool still has, as `is_available` finds out.
///
/// # Errors
/// Those of `is_available`.
pub fn plan<E>(
    head: &Head,
    snapshot: &SnapshotIdentity,
    is_full: bool,
    mut is_available: impl FnMut(&BackupEntry) -> Result<bool, E>,
) -> Result<Plan, E> {
    let same =
        |other: &SnapshotIdentity| snapshot.is_of_same_volume(other) && snapshot.is_same(other);
    let existing = head.backups.iter().find(|entry| same(&entry.snapshot));
    if let Some(existing) = existing.filter(|_| !is_full) {
        return Ok(Plan::Exists(existing.clone()));
    }
    for unfinished in head.unfinished.iter().rev().filter(|other| same(&other.snapshot)) {
        let is_usable = match &unfinished.base {
            None => true,
            Some(base) => !is_full && snapshot.can_have_base(&base.snapshot) && is_available(base)?,
        };
        if is_usable {
            return Ok(Plan::Make { base: unfinished.base.clone(), continues: true });
        }
    }
    let mut earlier = head.backups.iter().rev();
    while let Some(entry) = earlier.next().filter(|_| !is_full) {
        if snapshot.can_have_base(&entry.snapshot) && is_available(entry)? {
            return Ok(Plan::Make { base: Some(entry.clone()), continues: false });
        }
    }
    Ok(Plan::Make { base: None, continues: false })
}

/// Answer to a volume whose name another volume of the prefix has: one that was deleted and created
/// anew, or one of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameName {
    /// The backup is refused.
    Refuse,
    /// Both have backups, which share no chain and no count of a prune.
    Separate,
}

/// Refuses a volume that has no backup here, if another volume of its name has.
fn check_name(head: &Head, snapshot: &SnapshotIdentity) -> Result<(), BackupError> {
    let listed = head.backups.iter().map(|entry| &entry.snapshot);
    let all = listed.chain(head.unfinished.iter().map(|unfinished| &unfinished.snapshot));
    let named: Vec<_> = all.filter(|other| other.volume == snapshot.volume).collect();
    match named.last() {
        Some(other) if !named.iter().any(|other| snapshot.is_of_same_volume(other)) => {
            Err(BackupError::OtherVolume {
                volume: other.volume.clone(),
                volume_id: other.volume_id.clone(),
                pool_id: other.pool_id.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// Result of [`register`].
pub(crate) enum Registered {
    Exists(BackupEntry),
    Running { own: Vec<WriterId>, base: Option<BackupEntry> },
}

/// Writers of an unfinished backup that finished no range, if there is no place for a further
/// writer. A writer that still runs may finish one later: it is then made again.
async fn idle_writers(
    repository: &Repository,
    snapshot: &SnapshotIdentity,
) -> Result<Vec<WriterId>, BackupError> {
    let head = repository.head().await?.unwrap_or_default();
    let full = head
        .unfinished
        .iter()
        .filter(|record| record.snapshot.is_same(snapshot) && record.writers.len() >= ATTEMPTS_MAX);
    let mut idle = Vec::new();
    for writer in full.flat_map(|record| &record.writers) {
        let names = repository.list(&format!("{DATA}/{writer}")).await?;
        if !names.iter().any(|(name, _)| name.starts_with("index-")) {
            idle.push(*writer);
        }
    }
    Ok(idle)
}

/// Records the unfinished backup in the head, or this writer of it.
pub(crate) async fn register(
    repository: &Repository,
    snapshot: &SnapshotIdentity,
    base: Option<&BackupEntry>,
    id: WriterId,
    same_name: SameName,
) -> Result<Registered, BackupError> {
    let idle = idle_writers(repository, snapshot).await?;
    let change = |head: &mut Head| {
        let now = repository.now();
        if same_name == SameName::Refuse {
            check_name(head, snapshot)?;
        }
        let same =
            |other: &SnapshotIdentity| snapshot.is_of_same_volume(other) && snapshot.is_same(other);
        let existing = head.backups.iter().find(|entry| same(&entry.snapshot));
        if let Some(existing) = existing.filter(|_| base.is_some()) {
            return Ok(HeadChange::Keep(Registered::Exists(existing.clone())));
        }
        let base_id = base.map(|entry| entry.id);
        let place = head.unfinished.iter().position(|unfinished| {
            same(&unfinished.snapshot) && unfinished.base.as_ref().map(|entry| entry.id) == base_id
        });
        if let Some(place) = place {
            let unfinished = &mut head.unfinished[place];
            let registered = |unfinished: &UnfinishedBackup| Registered::Running {
                own: unfinished.writers.clone(),
                base: unfinished.base.clone(),
            };
            if unfinished.writers.last() == Some(&id) {
                return Ok(HeadChange::Keep(registered(unfinished)));
            }
            unfinished.writers.retain(|writer| !idle.contains(writer));
            if unfinished.writers.len() < ATTEMPTS_MAX {
                unfinished.writers.push(id);
                unfinished.renewed_seconds = now;
                return Ok(HeadChange::Store(registered(unfinished)));
            }
            head.unfinished.remove(place);
        } else if base.is_some_and(|base| head.backups.iter().all(|entry| entry.id != base.id)) {
            let text = "the base of this backup was pruned meanwhile: repeat the command";
            return Err(BackupError::Limit(text.to_owned()));
        }
        let (base, own) = (base.cloned(), vec![id]);
        head.unfinished.push(UnfinishedBackup {
            snapshot: snapshot.clone(),
            base: base.clone(),
            writers: own.clone(),
            renewed_seconds: now,
        });
        Ok(HeadChange::Store(Registered::Running { own, base }))
    };
    repository.change_head(change).await
}

/// The writer's record in the head, which others remove or continue.
pub(crate) fn record_of(head: &Head, id: WriterId) -> Result<usize, BackupError> {
    let found = head.unfinished.iter().position(|record| record.writers.last() == Some(&id));
    found.ok_or(BackupError::Fenced)
}

/// Removes the writer's record from the head.
pub(crate) async fn forget(repository: &Repository, id: WriterId) -> Result<(), BackupError> {
    let change = |head: &mut Head| {
        let place = record_of(head, id)?;
        head.unfinished.remove(place);
        Ok(HeadChange::Store(()))
    };
    repository.change_head(change).await
}
