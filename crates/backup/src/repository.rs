//! Repository of backups: the objects below one prefix of an object store.
//!
//! | object | content | changes |
//! |---|---|---|
//! | `head.json` | list of backups and of unfinished ones | replaced by conditional PUT |
//! | `keys/NUMBER.json` | sealed key of an encrypted prefix, as in the head | never |
//! | `entries/WRITER.json` | entry of a backup, as in the head | never |
//! | `manifests/WRITER.json` | all objects that a backup needs | never |
//! | `data/WRITER/index-RANGE` | index of a range | never |
//! | `data/WRITER/pack-NUMBER` | pieces of a range | never |
//!
//! A request that fails for a reason that may pass is repeated, a bounded number of times. Each
//! object but the head is written by one process with one content, so that a repetition is safe; a
//! change of the head looks first whether it was made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flagstone_pool::WrappingKey;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutOptions, PutPayload,
    UpdateVersion,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::document::{BackupEntry, Manifest, SnapshotIdentity};
use crate::error::BackupError;
use crate::id::{Checksum, WriterId};
use crate::index::Extent;
use crate::limits::{
    INDEX_OBJECT_BYTES_MAX, LISTED_MAX, MANIFEST_BYTES_MAX, OBJECT_NAME_BYTES_MAX, REQUEST_S,
    TRIES_MAX,
};
use crate::seal::{Place, PrefixKey};

/// Name of the head.
pub(crate) const HEAD: &str = "head.json";
/// Name of the object on which conditions of writes are tried.
pub(crate) const PROBE: &str = "probe";
/// Folder of the records of an encrypted prefix's key.
pub(crate) const KEYS: &str = "keys";
/// Folder of the copies of the head's entries.
pub(crate) const ENTRIES: &str = "entries";
/// Folder of the manifests.
pub(crate) const MANIFESTS: &str = "manifests";
/// Folder of indexes and packs.
pub(crate) const DATA: &str = "data";

/// Surroundings of a repository.
pub struct Options {
    /// Pause before the first repetition of a request. Each pause is twice as long as the last.
    pub pause: Duration,
    /// Seconds since 1970.
    pub now: fn() -> u64,
    /// Key of the operator: a new prefix is encrypted, and an encrypted one can be read.
    pub key: Option<WrappingKey>,
    /// Receives messages about requests that are repeated.
    pub notify: Box<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// Usual surroundings, and this receiver of messages.
    pub fn new(notify: impl Fn(&str) + Send + Sync + 'static) -> Options {
        let now = || clock_gettime(ClockId::Realtime).tv_sec.try_into().unwrap_or_default();
        let pause = Duration::from_millis(250);
        Options { pause, now, key: None, notify: Box::new(notify) }
    }
}

/// Objects below a prefix of a store.
pub struct Repository {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: String,
    pub(crate) options: Options,
    /// Known from the first head on.
    pub(crate) encryption: OnceLock<Encryption>,
    /// An upload did not end in time: several at once may share too little bandwidth.
    is_slow: AtomicBool,
    /// Held by the upload in flight to a slow store.
    turn: Mutex<()>,
}

/// Encryption of a prefix.
#[derive(Debug)]
pub(crate) enum Encryption {
    /// Not encrypted.
    Off,
    /// Encrypted, and no key was given.
    Locked,
    On(PrefixKey),
}

/// Name of a manifest.
pub(crate) fn manifest_name(id: WriterId) -> String {
    format!("{MANIFESTS}/{id}.json")
}

/// Name of the copy of a backup's entry.
pub(crate) fn entry_name(id: WriterId) -> String {
    format!("{ENTRIES}/{id}.json")
}

/// Name of an index.
pub(crate) fn index_name(writer: WriterId, range: u32) -> String {
    format!("{DATA}/{writer}/index-{range:06}")
}

/// Name of a pack.
pub(crate) fn pack_name(writer: WriterId, number: u32) -> String {
    format!("{DATA}/{writer}/pack-{number:08}")
}

fn is_short(name: &str) -> bool {
    name.len() <= OBJECT_NAME_BYTES_MAX
}

/// True if a repetition may succeed.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

pub(crate) fn cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn late() -> Error {
    Error::Generic { store: "object store", source: format!("no answer in {REQUEST_S} s").into() }
}

pub(crate) async fn in_time<T>(
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(Duration::from_secs(REQUEST_S), request).await.unwrap_or_else(|_| Err(late()))
}

impl Repository {
    /// The objects below `prefix`. Sends nothing.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, options: Options) -> Repository {
        let (encryption, is_slow) = (OnceLock::new(), AtomicBool::new(false));
        let turn = Mutex::new(());
        Repository { store, prefix: prefix.to_owned(), options, encryption, is_slow, turn }
    }

    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        (self.options.now)()
    }

    pub(crate) fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    /// Name of an object as operators see it.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(crate) fn damaged(&self, name: &str, problem: impl std::fmt::Display) -> BackupError {
        BackupError::damaged(self.shown(name), problem)
    }

    pub(crate) fn failed(&self, action: &'static str, name: &str, error: &Error) -> BackupError {
        let (object, cause) = (self.shown(name), cause(error));
        match error {
            Error::NotFound { .. } => BackupError::Missing { object },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                BackupError::Access { action, object, cause }
            }
            _ => BackupError::Store { action, object, cause },
        }
    }

    pub(crate) async fn pause(&self, tries: u32) {
        sleep(self.options.pause * 2_u32.pow(tries.min(6))).await;
    }

    pub(crate) async fn repeated<T, F>(
        &self,
        action: &'static str,
        name: &str,
        request: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let request = &request;
        self.repeated_pages(action, name, || async move { in_time(request()).await }).await
    }

    /// As `repeated`, for several requests, each with a time limit of its own.
    async fn repeated_pages<T, F>(
        &self,
        action: &'static str,
        name: &str,
        requests: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut tries = 1;
        loop {
            match requests().await {
                Err(error) if may_pass(&error) && tries < TRIES_MAX => {
                    let text = format!(
                        "{action} {}: {}; try {} of {TRIES_MAX} follows",
                        self.shown(name),
                        cause(&error),
                        tries + 1
                    );
                    (self.options.notify)(&text);
                    self.pause(tries - 1).await;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// Stores an object that no other process writes.
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), BackupError> {
        let payload = PutPayload::from(bytes);
        let path = self.path(name);
        let put = || async {
            let _turn = match self.is_slow.load(Ordering::Relaxed) {
                true => Some(self.turn.lock().await),
                false => None,
            };
            let put = self.store.put_opts(&path, payload.clone(), PutOptions::default());
            let answer = timeout(Duration::from_secs(REQUEST_S), put).await;
            answer.unwrap_or_else(|_| {
                self.is_slow.store(true, Ordering::Relaxed);
                Err(late())
            })
        };
        // The time in which an upload waits for its turn does not count.
        let stored = self.repeated_pages("storing", name, put).await;
        stored.map(drop).map_err(|error| self.failed("storing", name, &error))
    }

    pub(crate) async fn read_once(
        &self,
        path: &Path,
        options: GetOptions,
        max: usize,
    ) -> Result<(Option<Vec<u8>>, UpdateVersion), Error> {
        let found = self.store.get_opts(path, options).await?;
        let version =
            UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        if found.range.end - found.range.start > max as u64 {
            return Ok((None, version));
        }
        let bytes = found.bytes().await?;
        Ok((Some(bytes.to_vec()).filter(|bytes| bytes.len() <= max), version))
    }

    /// Reads an object of at most `max` bytes.
    pub(crate) async fn get(&self, name: &str, max: usize) -> Result<Vec<u8>, BackupError> {
        let path = self.path(name);
        let read = || self.read_once(&path, GetOptions::default(), max);
        let (bytes, _) = self
            .repeated("reading", name, read)
            .await
            .map_err(|error| self.failed("reading", name, &error))?;
        bytes.ok_or_else(|| self.damaged(name, format_args!("it is longer than {max} bytes")))
    }

    /// Reads a part of an object.
    pub(crate) async fn get_part(
        &self,
        name: &str,
        offset: u32,
        len: u32,
    ) -> Result<Vec<u8>, BackupError> {
        let path = self.path(name);
        let (start, end) = (u64::from(offset), u64::from(offset) + u64::from(len));
        let read = || async {
            let range = Some(GetRange::Bounded(start..end));
            let options = GetOptions { range, ..GetOptions::default() };
            match self.read_once(&path, options, len as usize).await {
                Ok((bytes, _)) => Ok(bytes.filter(|bytes| bytes.len() == len as usize)),
                // Some stores refuse a range beyond the end without a code of its own.
                Err(error) if may_pass(&error) => match self.store.head(&path).await {
                    Ok(meta) if meta.size < end => Ok(None),
                    Err(error @ Error::NotFound { .. }) => Err(error),
                    _ => Err(error),
                },
                Err(error) => Err(error),
            }
        };
        let bytes = self
            .repeated("reading", name, read)
            .await
            .map_err(|error| self.failed("reading", name, &error))?;
        bytes.ok_or_else(|| self.damaged(name, "it is too short"))
    }

    /// Deletes objects that may not exist.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), BackupError> {
        let path = self.path(name);
        let delete = || async {
            match self.store.delete(&path).await {
                Err(Error::NotFound { .. }) => Ok(()),
                answer => answer,
            }
        };
        let deleted = self.repeated("deleting", name, delete).await;
        deleted.map_err(|error| self.failed("deleting", name, &error))
    }

    /// Objects of a folder: their names in it, sorted, and their sizes.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, BackupError> {
        let path = self.path(folder);
        let list = || async {
            let (mut names, mut seen) = (Vec::new(), 0);
            let mut listing = self.store.list(Some(&path));
            while let Some(meta) = in_time(listing.try_next()).await? {
                if seen == LISTED_MAX {
                    return Ok(None);
                }
                // Longer ones are not of this program, and would take any amount of memory.
                let own = meta.location.filename().filter(|name| is_short(name));
                seen += 1;
                names.extend(own.map(|name| (name.to_owned(), meta.size)));
            }
            names.sort();
            names.dedup();
            Ok(Some(names))
        };
        let listed = self
            .repeated_pages("listing", folder, list)
            .await
            .map_err(|error| self.failed("listing", folder, &error))?;
        listed.ok_or_else(|| BackupError::Limit(format!("{folder} has too many objects")))
    }

    /// Folders of a folder.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>, BackupError> {
        let path = self.path(folder);
        let listed = self
            .repeated("listing", folder, || self.store.list_with_delimiter(Some(&path)))
            .await
            .map_err(|error| self.failed("listing", folder, &error))?;
        if listed.common_prefixes.len() > LISTED_MAX {
            return Err(BackupError::Limit(format!("{folder} has too many folders")));
        }
        let names = listed.common_prefixes.iter().filter_map(Path::filename).map(str::to_owned);
        Ok(names.collect())
    }

    /// Reads and checks the manifest of a backup.
    ///
    /// # Errors
    /// It is missing or damaged, or the store fails.
    pub async fn manifest(&self, entry: &BackupEntry) -> Result<Manifest, BackupError> {
        let name = manifest_name(entry.id);
        if let Some(Encryption::On(key)) = self.encryption.get() {
            key.check_entry(entry).map_err(|problem| self.head_problem(problem))?;
        }
        let bytes = self.get(&name, MANIFEST_BYTES_MAX).await?;
        Manifest::decode(entry, &bytes).map_err(|problem| self.damaged(&name, problem))
    }

    /// Reads and checks the index of a range of a backup.
    pub(crate) async fn index(
        &self,
        manifest: &Manifest,
        range: u32,
    ) -> Result<Vec<Extent>, BackupError> {
        let Some(entry) = manifest.range(range) else { return Ok(Vec::new()) };
        let writer = manifest.writer(entry.writer).expect("a manifest is checked");
        let name = index_name(writer, range);
        let bytes = self.get(&name, INDEX_OBJECT_BYTES_MAX).await?;
        if bytes.len() as u64 != entry.index_bytes || Checksum::of(&bytes) != entry.index_sha256 {
            return Err(self.damaged(&name, "its length or its checksum is wrong"));
        }
        let extents = self.decode_index(writer, range, &bytes).await?;
        self.check_end(&manifest.snapshot, (writer, range), &extents)?;
        Ok(extents)
    }

    /// Decodes the index object of a writer.
    pub(crate) async fn decode_index(
        &self,
        writer: WriterId,
        range: u32,
        bytes: &[u8],
    ) -> Result<Vec<Extent>, BackupError> {
        let decoded = match self.prefix_key().await? {
            Some(key) => key
                .open(writer, Place::Index(range), bytes)
                .and_then(|index| crate::index::decode(range, writer, &index)),
            None => crate::index::decode(range, writer, bytes),
        };
        decoded.map_err(|problem| self.damaged(&index_name(writer, range), problem))
    }

    /// Checks that the extents of a writer's index are within a volume that has it.
    pub(crate) fn check_end(
        &self,
        snapshot: &SnapshotIdentity,
        (writer, range): (WriterId, u32),
        extents: &[Extent],
    ) -> Result<(), BackupError> {
        let start = u64::from(range) * crate::limits::RANGE_BYTES;
        let end = extents.last().map_or(0, |last| u64::from(last.first + last.blocks));
        if start + end * crate::limits::BLOCK_BYTES <= snapshot.size_bytes {
            return Ok(());
        }
        Err(self.damaged(&index_name(writer, range), "an extent is beyond the end of the volume"))
    }
}
