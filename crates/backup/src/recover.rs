//! Recovery of a lost or damaged head from the copies of its content.
//!
//! A backup is listed again if a copy of its entry is sound, as the message authentication code of
//! an encrypted prefix proves, and if its manifest and all objects are there. A backup that an
//! interrupted prune was removing may so be listed again; a prune that still runs may delete its
//! objects, which `verify` finds. Unfinished backups are lost: the same command begins them again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use object_store::{Error, ObjectStore as _, PutMode, PutOptions};
use serde::Serialize;

use crate::document::{BackupEntry, DataObject, Head};
use crate::error::BackupError;
use crate::head::{StoredHead, checked_bytes};
use crate::id::WriterId;
use crate::limits::{BACKUPS_MAX, TRIES_MAX};
use crate::repository::{
    DATA, Encryption, HEAD, Repository, cause, entry_name, in_time, index_name, may_pass, pack_name,
};
use crate::seal::{PrefixKey, SealedKey};

/// Backup that a recovery leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Number of its writer.
    pub id: WriterId,
    /// Missing or damaged object.
    pub problem: String,
}

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// The head was lost or damaged, and is made again.
    pub is_head_new: bool,
    /// Backups that the head lists.
    pub backups: Vec<BackupEntry>,
    /// Backups that it does not list, because they cannot be restored in full.
    pub left_out: Vec<LeftOut>,
    /// Copies of the head's content that were missing or damaged.
    pub copies: u64,
}

/// Objects of writers, and their lengths.
type Listings = BTreeMap<WriterId, BTreeMap<String, u64>>;

impl Repository {
    /// Makes a lost or damaged head again, and copies of a sound one. `is_dry_run` changes nothing.
    /// Only the backups `may_leave_out`, which a dry run has shown, are left out: prunes delete
    /// their objects, and an object may have been read wrongly.
    ///
    /// # Errors
    /// The key is missing or wrong, no backup is left, or fewer than were shown, another command
    /// changes the head meanwhile, or the store fails.
    pub async fn recover(
        &self,
        is_dry_run: bool,
        may_leave_out: &[WriterId],
    ) -> Result<Recovery, BackupError> {
        let mode = match self.read_head().await? {
            StoredHead::Absent => PutMode::Create,
            StoredHead::Damaged(_, version) => PutMode::Update(version),
            StoredHead::Sound(head, _) => {
                self.settle(&head)?;
                let copies = self.mend_copies(&head, is_dry_run).await?;
                return Ok(Recovery { backups: head.backups, copies, ..Recovery::default() });
            }
        };
        let (mut entries, mut left_out) = self.entries_of_copies().await?;
        let key = self.recorded_key(&entries).await?;
        let sealed = key.as_ref().map(|(sealed, _)| *sealed);
        let known = key.map_or(Encryption::Off, |(_, key)| Encryption::On(key));
        // Manifests are read with it.
        let _ = self.encryption.set(known);
        let (mut backups, mut listings) = (Vec::new(), Listings::new());
        entries.sort_by_key(|entry| {
            (entry.completed_seconds, entry.snapshot.created_seconds, entry.id)
        });
        for entry in entries {
            match self.check_complete(&entry, &mut listings).await {
                Ok(()) => backups.push(entry),
                Err(error) if error.is_damage() => {
                    left_out.push(LeftOut { id: entry.id, problem: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        if backups.is_empty() {
            let why = left_out.first().map(|left| format!(": {}", left.problem));
            let (prefix, why) = (&self.prefix, why.unwrap_or_default());
            let text = format!("{prefix} has no backup that can be recovered{why}");
            return Err(BackupError::Limit(text));
        }
        let more = left_out.iter().find(|left| !may_leave_out.contains(&left.id));
        if let Some(LeftOut { id, problem }) = more.filter(|_| !is_dry_run) {
            return Err(BackupError::Incomplete { id: *id, problem: problem.clone() });
        }
        let head = Head { backups, nonce: WriterId::random(), ..Head::empty(sealed) };
        let mut copies = 0;
        if !is_dry_run {
            self.store_recovered(&head, mode).await?;
            copies = self.mend_copies(&head, false).await?;
        }
        Ok(Recovery { is_head_new: true, backups: head.backups, left_out, copies })
    }

    async fn entries_of_copies(&self) -> Result<(Vec<BackupEntry>, Vec<LeftOut>), BackupError> {
        let listed = self.listed_entries().await?;
        if listed.len() > 2 * BACKUPS_MAX {
            return Err(BackupError::Limit("there are too many entries of backups".to_owned()));
        }
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        for id in listed {
            match self.entry_copy(id).await {
                Ok(entry) => entries.push(entry),
                Err(error) if error.is_damage() => {
                    left_out.push(LeftOut { id, problem: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok((entries, left_out))
    }

    /// Key of the entries, and its record; `None` for a prefix that is not encrypted.
    async fn recorded_key(
        &self,
        entries: &[BackupEntry],
    ) -> Result<Option<(SealedKey, PrefixKey)>, BackupError> {
        let records = self.key_records().await?;
        let Some(key) = &self.options.key else {
            let is_plain = records.is_empty() && entries.iter().all(|entry| entry.mac.is_none());
            return match is_plain {
                true => Ok(None),
                false => Err(self.key_problem("it is encrypted: give --backup-key-file")),
            };
        };
        let records: Vec<SealedKey> = records.into_iter().filter_map(|(_, key)| key).collect();
        if records.is_empty() {
            let problem = "it has no record of a key: leave the key out if it is not encrypted";
            return Err(self.key_problem(problem));
        }
        let opened = records.into_iter().filter_map(|sealed| Some((sealed, sealed.open(key)?)));
        // The first backups of two machines at once may have left a record of no entry's key.
        let made = |(_, key): &(SealedKey, PrefixKey)| {
            entries.iter().filter(|entry| key.check_entry(entry).is_ok()).count()
        };
        let key = opened.max_by_key(made);
        key.map(Some).ok_or_else(|| self.key_problem("it is encrypted with another key"))
    }

    /// Checks that the manifest of a backup is sound, and that its objects exist.
    async fn check_complete(
        &self,
        entry: &BackupEntry,
        listings: &mut Listings,
    ) -> Result<(), BackupError> {
        if let Some(Encryption::On(key)) = self.encryption.get() {
            let checked = key.check_entry(entry);
            checked.map_err(|problem| self.damaged(&entry_name(entry.id), problem))?;
        }
        let manifest = self.manifest(entry).await?;
        for (writer, object, len) in manifest.objects() {
            if let Entry::Vacant(place) = listings.entry(writer) {
                let listed = self.list(&format!("{DATA}/{writer}")).await?;
                place.insert(listed.into_iter().collect());
            }
            let name = match object {
                DataObject::Index(range) => index_name(writer, range),
                DataObject::Pack(number) => pack_name(writer, number),
            };
            let found = name.rsplit('/').next().and_then(|last| listings[&writer].get(last));
            match (found, len) {
                (None, _) => return Err(BackupError::Missing { object: self.shown(&name) }),
                (Some(found), Some(len)) if *found != len => {
                    return Err(self.damaged(&name, "its length is wrong"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn store_recovered(&self, head: &Head, mode: PutMode) -> Result<(), BackupError> {
        let (path, bytes) = (self.path(HEAD), checked_bytes(head)?);
        for tries in 0..TRIES_MAX {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            match in_time(self.store.put_opts(&path, bytes.clone().into(), options)).await {
                Ok(_) => return Ok(()),
                Err(
                    Error::Precondition { .. }
                    | Error::AlreadyExists { .. }
                    | Error::NotFound { .. },
                ) => {
                    // An answer may have been lost.
                    return match self.read_head().await? {
                        StoredHead::Sound(now, _) if now.nonce == head.nonce => Ok(()),
                        _ => Err(BackupError::Busy),
                    };
                }
                Err(error) if may_pass(&error) && tries + 1 < TRIES_MAX => {
                    (self.options.notify)(&format!("storing the head: {}", cause(&error)));
                }
                Err(error) => return Err(self.failed("storing", HEAD, &error)),
            }
            self.pause(tries).await;
        }
        Err(BackupError::Busy)
    }

    /// Stores missing and damaged copies of the head's content. Returns their number.
    async fn mend_copies(&self, head: &Head, is_dry_run: bool) -> Result<u64, BackupError> {
        let wrong = self.wrong_entries(&head.backups).await?;
        let copies = wrong.len() as u64 + u64::from(!self.has_key_record(head).await?);
        if is_dry_run {
            return Ok(copies);
        }
        for (entry, _) in wrong {
            self.delete(&entry_name(entry.id)).await?;
            self.store_entry(entry).await?;
        }
        self.keep_key_record().await?;
        Ok(copies)
    }
}
