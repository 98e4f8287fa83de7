//! Bucket of an object store as the arbiter: one small object per volume, replaced by conditional
//! PUT. S3 and Azure compare entity tags, Google compares generations.
//!
//! Invariants:
//! - nothing is read or written before [`probe`] has shown that the store honors the conditions;
//! - a write that must fail and succeeds (see [`Bucket::probe_write`]) ends the use of the store;
//! - each call sends one request and repeats nothing: a repetition would answer its own success
//!   with a conflict. The race repeats, and reads first.
//!
//! An entity tag of S3 is a checksum of the content, so a record that returned to earlier bytes
//! would have its earlier version again. [`flagstone_arbiter::race`] never writes the same bytes
//! twice: revisions grow, and the number of the writer is random.

mod probe;

use std::cell::RefCell;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::limits::{CALL_MS, RECORD_BYTES_MAX};
use flagstone_arbiter::{NoAnswer, ReplicaId, Stored, StoredVersion, Written};
use flagstone_config::{BucketStore, Cloud};
use flagstone_objects::{Client, ClientOptions, Secret, cause, check, connect, secret};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use rustls::ClientConfig;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::http::tls::store_client_config;

/// Time limit of obtaining credentials, which may take several requests.
const PREPARATION: Duration = Duration::from_secs(10);
/// Longest answer, in bytes: a token, or an error.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Probes in a row without a flaw, after a flaw was found.
const SOUND_AFTER_FLAW: u32 = 3;

/// Longest part of the probe's name that is the machine's, in bytes: as long as Linux's host names.
const NODE_NAME_MAX: usize = 64;

/// Support of the store for conditional writes, as far as it is known.
enum Conditions {
    /// Not checked yet: the store has not answered, for this reason.
    Unknown(String),
    /// Honored.
    Honored,
    /// Ignored. The store is not used any more.
    Ignored(&'static str),
}

/// A client of one bucket.
pub(super) struct Bucket {
    settings: BucketStore,
    client: RefCell<Arc<RecordClient>>,
    conditions: RefCell<Conditions>,
    /// Name of the machine, in the characters of a path.
    node: String,
}

impl Bucket {
    /// Checks that the credentials and the authorities can be read. They are read again for each
    /// use.
    pub(super) fn new(settings: &BucketStore) -> io::Result<Bucket> {
        check(settings, tls)?;
        let client = client(settings, secret(settings)?)?;
        Ok(Bucket {
            settings: settings.clone(),
            client: RefCell::new(Arc::new(client)),
            conditions: RefCell::new(Conditions::Unknown("not probed yet".to_owned())),
            node: node_name(),
        })
    }

    /// Probes the store until it has answered. A flaw counts only if it is found twice: a third
    /// party that removes or restores the probe's object causes one in a sound store.
    pub(super) async fn prove(&self) {
        let mut sound = 0;
        let mut needed = 1;
        while sound < needed {
            match probe::run(self).await {
                Ok(()) => sound += 1,
                Err(flaw) if needed > 1 => return self.refuse(flaw),
                Err(flaw) => {
                    (sound, needed) = (0, SOUND_AFTER_FLAW);
                    self.unknown(NoAnswer(format!("it is probed again, because {flaw}")));
                }
            }
        }
        tracing::info!("the arbiter's object store honors conditional writes");
        self.conditions.replace(Conditions::Honored);
    }

    /// The store is not proven, for this reason.
    fn unknown(&self, NoAnswer(reason): NoAnswer) {
        let before = self.conditions.replace(Conditions::Unknown(reason.clone()));
        if !matches!(before, Conditions::Unknown(known) if known == reason) {
            tracing::warn!("the arbiter's object store cannot be checked: {reason}");
        }
    }

    fn refuse(&self, flaw: &'static str) {
        tracing::error!(
            "the arbiter's object store ignores conditional writes ({flaw}): it is not used. \
             Configure another one and restart"
        );
        self.conditions.replace(Conditions::Ignored(flaw));
    }

    pub(super) async fn read(&self, volume: ReplicaId) -> Result<Option<Stored>, NoAnswer> {
        self.proven()?;
        self.ready().await?.get(&self.path(volume)).await
    }

    pub(super) async fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> Result<Written, NoAnswer> {
        self.proven()?;
        let expected = expected.map(|stored| stored.version);
        self.ready().await?.put(&self.path(volume), expected.as_ref(), bytes).await
    }

    /// A write on a version that never existed. The store checks the permission to write first.
    pub(super) async fn probe_write(
        &self,
        volume: ReplicaId,
        bytes: Vec<u8>,
    ) -> Result<(), NoAnswer> {
        self.proven()?;
        let client = self.ready().await?;
        match client.put(&self.path(volume), Some(&client.never_stored()), bytes).await? {
            Written::Conflict => Ok(()),
            Written::Yes => {
                self.refuse("it replaced an object on a version that never existed");
                self.proven()
            }
        }
    }

    fn proven(&self) -> Result<(), NoAnswer> {
        match &*self.conditions.borrow() {
            Conditions::Honored => Ok(()),
            Conditions::Unknown(reason) => Err(NoAnswer(reason.clone())),
            Conditions::Ignored(flaw) => {
                Err(NoAnswer(format!("the object store ignores conditional writes: {flaw}")))
            }
        }
    }

    fn path(&self, volume: ReplicaId) -> Path {
        Path::from(format!("{}/failover/{volume}", self.settings.object_store.prefix))
    }

    fn probe_path(&self) -> Path {
        let prefix = &self.settings.object_store.prefix;
        Path::from(format!("{prefix}/failover/probe-{}", self.node))
    }

    /// The client with the credentials as they are in the file now. A short-lived token is obtained
    /// here, in a task that outlives a caller that gives up: obtaining one may take longer than a
    /// call may, and the next call finds it.
    async fn ready(&self) -> Result<Arc<RecordClient>, NoAnswer> {
        let no_answer = |error: io::Error| NoAnswer(error.to_string());
        let secret = secret(&self.settings).map_err(no_answer)?;
        if self.client.borrow().0.secret != secret {
            let renewed = client(&self.settings, secret).map_err(no_answer)?;
            self.client.replace(Arc::new(renewed));
        }
        let client = self.client.borrow().clone();
        let login = client.clone();
        let task = spawn_local(async move {
            let obtained = timeout(PREPARATION, login.0.authenticate()).await;
            let late = || NoAnswer("no credentials in time".to_owned());
            obtained.map_err(|_| late())?.map_err(|error| failed(&error))
        });
        task.await.unwrap_or_else(|_| Err(NoAnswer("the arbiter's thread ended".to_owned())))?;
        Ok(client)
    }
}

/// Name of this machine. Machines with the same name share a probe's object, and disturb each
/// other.
fn node_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = name.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    plain.take(NODE_NAME_MAX).collect()
}

fn tls(ca_file: Option<&FilePath>) -> io::Result<ClientConfig> {
    store_client_config(ca_file).map_err(io::Error::other)
}

fn client(settings: &BucketStore, secret: Secret) -> io::Result<RecordClient> {
    let request_limit = Duration::from_millis(CALL_MS);
    let options = ClientOptions { request_limit, answer_bytes_max: ANSWER_BYTES_MAX, tls };
    connect(settings, secret, options).map(RecordClient)
}

/// A client that reads and writes records of the arbiter.
struct RecordClient(Client);

impl RecordClient {
    async fn get(&self, path: &Path) -> Result<Option<Stored>, NoAnswer> {
        let found = match self.0.store.get_opts(path, GetOptions::default()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let version = match self.0.cloud {
            Cloud::S3 | Cloud::Azure => found.meta.e_tag.clone(),
            Cloud::Google => found.meta.version.clone(),
        };
        let version = version.and_then(|text| StoredVersion::new(&text));
        let version = version.ok_or_else(|| NoAnswer("an object without a version".to_owned()))?;
        let mut bytes = found.bytes().await.map_err(|error| failed(&error))?.to_vec();
        // One byte more than a record has: it is refused as too long.
        bytes.truncate(RECORD_BYTES_MAX + 1);
        Ok(Some(Stored { version, bytes }))
    }

    /// Stores `bytes` if `expected` is stored, where `None` means that there is no object.
    async fn put(
        &self,
        path: &Path,
        expected: Option<&StoredVersion>,
        bytes: Vec<u8>,
    ) -> Result<Written, NoAnswer> {
        let mode = match expected {
            None => PutMode::Create,
            Some(version) => {
                let text = version.as_str().to_owned();
                PutMode::Update(match self.0.cloud {
                    Cloud::S3 | Cloud::Azure => UpdateVersion { e_tag: Some(text), version: None },
                    Cloud::Google => UpdateVersion { e_tag: None, version: Some(text) },
                })
            }
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.0.store.put_opts(path, PutPayload::from(bytes), options).await {
            Ok(_) => Ok(Written::Yes),
            Err(Error::Precondition { .. }) => Ok(Written::Conflict),
            // The object exists. For a replacement it is status 409: no answer.
            Err(Error::AlreadyExists { .. }) if expected.is_none() => Ok(Written::Conflict),
            Err(error) => Err(failed(&error)),
        }
    }

    /// A version that no store gives to an object.
    fn never_stored(&self) -> StoredVersion {
        let text = match self.0.cloud {
            Cloud::S3 | Cloud::Azure => "\"00000000000000000000000000000000\"",
            Cloud::Google => "1",
        };
        StoredVersion::new(text).expect("it is neither empty nor long")
    }
}

fn failed(error: &Error) -> NoAnswer {
    NoAnswer(format!("object store: {}", cause(error)))
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
