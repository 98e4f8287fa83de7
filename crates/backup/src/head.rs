//! Head of a prefix: the list of its backups, replaced by compare-and-set, and the sealed key of an
//! encrypted prefix.
//!
//! A lost or damaged head is an error of every command but [`Repository::recover`], which makes it
//! again from copies.

use flagstone_pool::WrappingKey;
use object_store::{Error, GetOptions, ObjectStore as _, PutMode, PutOptions, UpdateVersion};

use crate::document::Head;
use crate::error::BackupError;
use crate::id::WriterId;
use crate::limits::{HEAD_BYTES_MAX, HEAD_TRIES_MAX};
use crate::repository::{Encryption, HEAD, MANIFESTS, PROBE, Repository, cause, in_time, may_pass};
use crate::seal::{PrefixKey, SealedKey};

/// Outcome of a change of the head.
pub(crate) enum HeadChange<T> {
    /// The head is as it must be.
    Keep(T),
    /// The changed head must be stored.
    Store(T),
}

/// Head as it was read.
pub(crate) enum StoredHead {
    Absent,
    /// The contradiction, and the version that a sound one may replace.
    Damaged(String, UpdateVersion),
    Sound(Head, UpdateVersion),
}

/// Encodes a head that is within the limits.
pub(crate) fn checked_bytes(head: &Head) -> Result<Vec<u8>, BackupError> {
    head.check().map_err(|problem| BackupError::Limit(problem.to_owned()))?;
    let bytes = head.clone().seal();
    match bytes.len() <= HEAD_BYTES_MAX {
        true => Ok(bytes),
        false => Err(BackupError::Limit("the list of backups is too long: prune".to_owned())),
    }
}

impl Repository {
    pub(crate) fn head_problem(&self, problem: impl std::fmt::Display) -> BackupError {
        BackupError::Head { object: self.shown(HEAD), problem: problem.to_string() }
    }

    pub(crate) fn key_problem(&self, problem: &'static str) -> BackupError {
        BackupError::Key { prefix: self.prefix.clone(), problem }
    }

    /// Learns the encryption from a head of the store.
    pub(crate) fn settle(&self, head: &Head) -> Result<(), BackupError> {
        let is_same = match (self.encryption.get(), &head.encryption, &self.options.key) {
            // Another command may have changed the operator's key; that of the prefix stays.
            (Some(known), now, _) => matches!(known, Encryption::Off) == now.is_none(),
            (None, None, Some(_)) => {
                return Err(self
                    .key_problem("it is not encrypted: leave the key out, or give a new prefix"));
            }
            (None, None, None) => self.encryption.set(Encryption::Off).is_ok(),
            (None, Some(_), None) => self.encryption.set(Encryption::Locked).is_ok(),
            (None, Some(sealed), Some(key)) => {
                let opened = sealed.open(key);
                let opened =
                    opened.ok_or_else(|| self.key_problem("it is encrypted with another key"))?;
                self.encryption.set(Encryption::On(opened)).is_ok()
            }
        };
        match is_same {
            true => Ok(()),
            false => Err(self.damaged(HEAD, "its encryption changed meanwhile")),
        }
    }

    /// Key of an encrypted prefix; `None` for one that is not encrypted.
    ///
    /// # Errors
    /// It is encrypted, and no key was given; or there is no head.
    pub(crate) async fn prefix_key(&self) -> Result<Option<&PrefixKey>, BackupError> {
        if self.encryption.get().is_none() {
            self.checked_head().await?;
        }
        match self.encryption.get() {
            Some(Encryption::Off) => Ok(None),
            Some(Encryption::On(key)) => Ok(Some(key)),
            Some(Encryption::Locked) => {
                Err(self.key_problem("it is encrypted: give --backup-key-file"))
            }
            None => Err(BackupError::Missing { object: self.shown(HEAD) }),
        }
    }

    /// Seals the key of an encrypted prefix with another key of the operator.
    ///
    /// # Errors
    /// The prefix is not encrypted, the key of these options is wrong, or the store fails.
    pub async fn change_key(&self, next: &WrappingKey) -> Result<(), BackupError> {
        if self.head().await?.is_none() {
            return Err(BackupError::Missing { object: self.shown(HEAD) });
        }
        let key = self.prefix_key().await?;
        let key = key.ok_or_else(|| self.key_problem("it is not encrypted"))?;
        let sealed = key.seal_with(next);
        // Before the head, so that it is never the only place of its key.
        self.store_key_record(&sealed).await?;
        let change = |head: &mut Head| match head.encryption == Some(sealed) {
            true => Ok(HeadChange::Keep(())),
            false => {
                head.encryption = Some(sealed);
                Ok(HeadChange::Store(()))
            }
        };
        self.change_head(change).await?;
        self.keep_key_record().await
    }

    /// The head as it is stored, whether or not this repository has its key.
    pub(crate) async fn read_head(&self) -> Result<StoredHead, BackupError> {
        let path = self.path(HEAD);
        let read = || self.read_once(&path, GetOptions::default(), HEAD_BYTES_MAX);
        match self.repeated("reading", HEAD, read).await {
            Ok((bytes, version)) => {
                let decoded = match bytes {
                    Some(bytes) => Head::decode(&bytes),
                    None => Err("it is too long".to_owned()),
                };
                Ok(match decoded {
                    Ok(head) => StoredHead::Sound(head, version),
                    Err(problem) => StoredHead::Damaged(problem, version),
                })
            }
            Err(Error::NotFound { .. }) => Ok(StoredHead::Absent),
            Err(error) => Err(self.failed("reading", HEAD, &error)),
        }
    }

    async fn stored_head(&self) -> Result<Option<(Head, UpdateVersion)>, BackupError> {
        match self.read_head().await? {
            StoredHead::Absent => Ok(None),
            StoredHead::Damaged(problem, _) => {
                Err(self.head_problem(format_args!("is damaged: {problem}")))
            }
            StoredHead::Sound(head, version) => {
                self.settle(&head)?;
                Ok(Some((head, version)))
            }
        }
    }

    /// The head; `None` for a prefix without backups.
    ///
    /// # Errors
    /// It cannot be read, or is missing although there are manifests.
    pub async fn head(&self) -> Result<Option<Head>, BackupError> {
        Ok(self.checked_head().await?.map(|(head, _)| head))
    }

    async fn checked_head(&self) -> Result<Option<(Head, UpdateVersion)>, BackupError> {
        if let Some(found) = self.stored_head().await? {
            return Ok(Some(found));
        }
        if self.list(MANIFESTS).await?.is_empty() {
            return Ok(None);
        }
        // The first backup of the prefix may have made both meanwhile.
        let again = self.stored_head().await?;
        again.map(Some).ok_or_else(|| self.head_problem("is missing although there are backups"))
    }

    /// Changes the head. `change` is called again after a conflict or a lost answer, and finds its
    /// own change if it was made.
    pub(crate) async fn change_head<T>(
        &self,
        mut change: impl FnMut(&mut Head) -> Result<HeadChange<T>, BackupError>,
    ) -> Result<T, BackupError> {
        let path = self.path(HEAD);
        let mut sealed: Option<SealedKey> = None;
        for tries in 0..HEAD_TRIES_MAX {
            let (mut head, mode) = match self.checked_head().await? {
                Some((head, version)) => (head, PutMode::Update(version)),
                None => {
                    if let (Some(key), None) = (&self.options.key, sealed) {
                        let made = PrefixKey::random().seal_with(key);
                        self.store_key_record(&made).await?;
                        sealed = Some(made);
                    }
                    (Head::empty(sealed), PutMode::Create)
                }
            };
            let outcome = match change(&mut head)? {
                HeadChange::Keep(outcome) => return Ok(outcome),
                HeadChange::Store(outcome) => outcome,
            };
            // A number from outside, which only has to change.
            head.epoch = head.epoch.wrapping_add(1);
            head.nonce = WriterId::random();
            let bytes = checked_bytes(&head)?;
            let options = PutOptions { mode, ..PutOptions::default() };
            let put = self.store.put_opts(&path, bytes.into(), options);
            match in_time(put).await {
                Ok(_) => {
                    self.settle(&head)?;
                    return Ok(outcome);
                }
                Err(
                    Error::Precondition { .. }
                    | Error::AlreadyExists { .. }
                    | Error::NotFound { .. },
                ) => {}
                Err(error) if may_pass(&error) => {
                    (self.options.notify)(&format!("replacing the head: {}", cause(&error)));
                }
                Err(error) => return Err(self.failed("storing", HEAD, &error)),
            }
            self.pause(tries.min(4)).await;
        }
        Err(BackupError::Busy)
    }

    /// Checks that the store honors conditions of writes, on an object of its own.
    pub(crate) async fn probe(&self) -> Result<(), BackupError> {
        let path = self.path(PROBE);
        self.put(PROBE, b"flagstone-backup\n".to_vec()).await?;
        let e_tag = Some("\"00000000000000000000000000000000\"".to_owned());
        let never = UpdateVersion { e_tag, version: Some("1".to_owned()) };
        let cases = [
            (PutMode::Create, "it created an object that exists"),
            (PutMode::Update(never), "it replaced an object on a version that never existed"),
        ];
        for (mode, flaw) in cases {
            let put = || async {
                let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
                match self.store.put_opts(&path, b"probe\n".to_vec().into(), options).await {
                    Ok(_) => Ok(false),
                    Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(true),
                    Err(error) => Err(error),
                }
            };
            let is_refused = self.repeated("probing", PROBE, put).await;
            if !is_refused.map_err(|error| self.failed("probing", PROBE, &error))? {
                return Err(BackupError::Unconditional(flaw));
            }
        }
        Ok(())
    }
}
