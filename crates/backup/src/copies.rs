//! Copies of the head's content in objects that never change: the record of an encrypted prefix's
//! sealed key, and the entry of each backup. A lost head is made again from them.
//!
//! Invariants:
//! - a key's record is stored before the head that has the key, and read back; records of other
//!   keys are deleted after it, so that a replaced key opens nothing;
//! - an entry is stored before the head lists it, and deleted before the objects of its backup.
//!
//! Two changes of the key at once may leave no record. The next backup or prune stores one.

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use object_store::{Error, ObjectStore as _, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::document::{BackupEntry, ENCRYPTED_FORMAT, Head};
use crate::error::BackupError;
use crate::id::WriterId;
use crate::limits::{COPY_BYTES_MAX, DOWNLOADS_MAX, KEY_RECORDS_MAX};
use crate::repository::{ENTRIES, Encryption, KEYS, Repository, entry_name};
use crate::seal::SealedKey;

/// Record of the key of an encrypted prefix.
#[derive(Serialize, Deserialize)]
struct KeyRecord {
    /// [`ENCRYPTED_FORMAT`].
    format: u32,
    /// As in the head.
    encryption: SealedKey,
}

/// Identifier in the name of an object of a folder of copies.
pub(crate) fn parse_copy(name: &str) -> Option<WriterId> {
    name.strip_suffix(".json")?.parse().ok()
}

fn decode_record(bytes: &[u8]) -> Option<SealedKey> {
    let record: KeyRecord = serde_json::from_slice(bytes).ok()?;
    (record.format == ENCRYPTED_FORMAT).then_some(record.encryption)
}

impl Repository {
    /// Stores an object that does not exist, and reads it back.
    async fn put_new(&self, name: &str, bytes: Vec<u8>) -> Result<(), BackupError> {
        let path = self.path(name);
        let put = || async {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.store.put_opts(&path, bytes.clone().into(), options).await {
                // An answer was lost, or the object is another one, as the comparison finds.
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(()),
                answer => answer.map(drop),
            }
        };
        let stored = self.repeated("storing", name, put).await;
        stored.map_err(|error| self.failed("storing", name, &error))?;
        match self.get(name, COPY_BYTES_MAX).await? == bytes {
            true => Ok(()),
            false => Err(self.damaged(name, "it is not what was stored")),
        }
    }

    /// Names of the records of keys, and the keys of those that can be read.
    pub(crate) async fn key_records(
        &self,
    ) -> Result<Vec<(String, Option<SealedKey>)>, BackupError> {
        let mut listed = self.list(KEYS).await?;
        listed.retain(|(name, _)| parse_copy(name).is_some());
        if listed.len() > KEY_RECORDS_MAX {
            return Err(BackupError::Limit(format!("{KEYS} has too many objects")));
        }
        let mut records = Vec::new();
        for (name, _) in listed {
            let name = format!("{KEYS}/{name}");
            let key = match self.get(&name, COPY_BYTES_MAX).await {
                Err(error) if error.is_damage() => None,
                bytes => decode_record(&bytes?),
            };
            records.push((name, key));
        }
        Ok(records)
    }

    /// Stores a record of a key, under a name of its own.
    pub(crate) async fn store_key_record(&self, sealed: &SealedKey) -> Result<(), BackupError> {
        let record = KeyRecord { format: ENCRYPTED_FORMAT, encryption: *sealed };
        let bytes = serde_json::to_vec(&record).expect("documents are JSON");
        self.put_new(&format!("{KEYS}/{}.json", WriterId::random()), bytes).await
    }

    /// Stores the record of the head's key if there is none, and deletes those of other keys.
    pub(crate) async fn keep_key_record(&self) -> Result<(), BackupError> {
        if matches!(self.encryption.get(), Some(Encryption::Off)) {
            return Ok(());
        }
        let records = self.key_records().await?;
        // Read after the list: the record of a later key is not in it.
        let head = self.head().await?.unwrap_or_default();
        let Some(sealed) = head.encryption else { return Ok(()) };
        if records.iter().all(|(_, key)| *key != Some(sealed)) {
            self.store_key_record(&sealed).await?;
        }
        for (name, _) in records.iter().filter(|(_, key)| *key != Some(sealed)) {
            self.delete(name).await?;
        }
        Ok(())
    }

    /// True if there is a record of the head's key, or the head has none.
    pub(crate) async fn has_key_record(&self, head: &Head) -> Result<bool, BackupError> {
        let Some(sealed) = head.encryption else { return Ok(true) };
        Ok(self.key_records().await?.iter().any(|(_, key)| *key == Some(sealed)))
    }

    /// Stores the copy of an entry.
    pub(crate) async fn store_entry(&self, entry: &BackupEntry) -> Result<(), BackupError> {
        let bytes = serde_json::to_vec(entry).expect("documents are JSON");
        self.put_new(&entry_name(entry.id), bytes).await
    }

    /// Reads the copy of an entry.
    pub(crate) async fn entry_copy(&self, id: WriterId) -> Result<BackupEntry, BackupError> {
        let name = entry_name(id);
        let bytes = self.get(&name, COPY_BYTES_MAX).await?;
        let read = serde_json::from_slice::<BackupEntry>(&bytes);
        let entry = read.map_err(|problem| self.damaged(&name, problem))?;
        entry.check().map_err(|problem| self.damaged(&name, problem))?;
        match entry.id == id {
            true => Ok(entry),
            false => Err(self.damaged(&name, "it is the entry of another backup")),
        }
    }

    /// Identifiers of the copies of entries.
    pub(crate) async fn listed_entries(&self) -> Result<BTreeSet<WriterId>, BackupError> {
        let listed = self.list(ENTRIES).await?;
        Ok(listed.iter().filter_map(|(name, _)| parse_copy(name)).collect())
    }

    /// Entries of the head whose copies are missing or damaged, with the reason.
    pub(crate) async fn wrong_entries<'a>(
        &self,
        entries: &'a [BackupEntry],
    ) -> Result<Vec<(&'a BackupEntry, BackupError)>, BackupError> {
        let read = entries.iter().map(async |entry| match self.entry_copy(entry.id).await {
            Ok(copy) if copy == *entry => Ok(None),
            Ok(_) => {
                let problem = "it differs from the list of backups";
                Ok(Some((entry, self.damaged(&entry_name(entry.id), problem))))
            }
            Err(error) if error.is_damage() => Ok(Some((entry, error))),
            Err(error) => Err(error),
        });
        let read: Vec<Option<_>> = stream::iter(read).buffered(DOWNLOADS_MAX).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }
}
