//! Keys of encrypted volumes, in files or from a command: read when a volume is created, gets
//! another key, or is about to be served.
//!
//! Invariants:
//! - only the path of a key file, or the name of a key, is stored. The key is dropped after use,
//!   and is part of no answer, log or error;
//! - a path or name may come from the disks of a stranger: only a regular file that others may not
//!   read is opened, in the thread of its path and with a time limit; the command is that of the
//!   configuration, and gets a name that is no option;
//! - a missing key keeps its own volume out of service, and no other. It is looked for again
//!   while the server runs.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_host::process;
use flagstone_pool::{Pool, VolumeEncryption, VolumeError, VolumeInfo, WrappingKey};
use flagstone_runtime::{spawn, time};
use flagstone_stack::private_file::{self, PrivateFileError};
use zeroize::Zeroizing;

use super::orders::Outcome;
use super::path_threads::in_thread;
use super::settings::{self, KEY_FILE_KEY, KeySource, Settings};
use super::volume_orders::problem;
use super::{PoolSlot, PoolState};
use crate::api::pool_document::EncryptionDocument;
use crate::http::Problem;
use crate::limits::{
    KEY_COMMAND_LIMIT, KEY_FILE_BYTES, KEY_FILES_AT_ONCE, NAMES_SHOWN, OPEN_TIMEOUT,
};
use crate::serve::Server;

const ALGORITHM: &str = "AES-256-XTS";

/// Reason of a locked volume until its key file was read.
const UNREAD: &str = "its key file is being read";

/// A locked volume, and its key or the reason why it has none.
type FoundKey = (VolumeInfo, Result<WrappingKey, String>);

/// Effect of an order on the key of a volume.
pub(super) enum KeyChange {
    /// None.
    Unchanged,
    /// The named file has the present key.
    Same(WrappingKey),
    /// The data key is wrapped with another key.
    Next { present: WrappingKey, next: WrappingKey },
}

/// Program of the configuration that prints keys, and its arguments; empty without one.
#[derive(Clone, Default)]
pub(crate) struct KeyCommand(Arc<[String]>);

impl KeyCommand {
    pub(crate) fn new(words: &[String]) -> KeyCommand {
        KeyCommand(words.into())
    }

    fn run(&self, name: &str) -> Result<WrappingKey, String> {
        let [program, arguments @ ..] = &self.0[..] else {
            return Err("[server] of the configuration has no key_command".to_owned());
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(name);
        let printed = process::output(&mut command, KEY_COMMAND_LIMIT, KEY_FILE_BYTES);
        let printed = printed.map_err(|error| format!("{program}: {error}"))?;
        let printed = Zeroizing::new(printed);
        let key = std::str::from_utf8(&printed).ok().and_then(WrappingKey::parse);
        key.ok_or_else(|| {
            let form = WrappingKey::TEXT_FORM;
            format!("{program} did not print a key of {form}, without other text")
        })
    }
}

/// Reads the key at a place.
///
/// # Errors
/// The reason, with the place.
async fn read(command: &KeyCommand, path: &str) -> Result<WrappingKey, String> {
    let (own, command) = (path.to_owned(), command.clone());
    let read = in_thread("key file", path, move |_| match KeySource::parse(&own) {
        Some(KeySource::File(path)) => read_now(Path::new(path)),
        Some(KeySource::Command(name)) => command.run(name),
        None => Err("it is no absolute path, and no kms:NAME".to_owned()),
    });
    let key = match time::timeout(OPEN_TIMEOUT, read).await {
        Ok(read) => read.unwrap_or_else(|error| Err(error.to_string())),
        Err(_) => Err("it does not answer".to_owned()),
    };
    key.map_err(|why| format!("key file {path}: {why}"))
}

fn read_now(path: &Path) -> Result<WrappingKey, String> {
    // Opening a pipe waits for a writer, and opening a device may change it.
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err(PrivateFileError::Kind.to_string());
    }
    let text = private_file::read(path, KEY_FILE_BYTES).map_err(|error| error.to_string())?;
    WrappingKey::parse(&text).ok_or_else(|| {
        let form = WrappingKey::TEXT_FORM;
        format!("it has no {form}: flagstone key generate FILE --volume writes a new key")
    })
}

/// The key for a new volume with these settings; `None` if it is not encrypted.
///
/// # Errors
/// 409 with the reason, 422 for an impossible path.
pub(super) async fn for_creation(
    command: &KeyCommand,
    settings: &Settings,
) -> Result<Option<WrappingKey>, Problem> {
    match settings::key_file(settings).map_err(Problem::invalid)? {
        Some(path) => read(command, path).await.map(Some).map_err(Problem::conflict),
        None => Ok(None),
    }
}

/// The key of a locked volume.
///
/// # Errors
/// The reason why the volume stays locked, and the next step.
async fn key_of(
    command: &KeyCommand,
    (pool_name, pool): (&str, &Pool),
    info: &VolumeInfo,
) -> Result<WrappingKey, String> {
    let found = async {
        let settings = settings::from_properties(&info.properties)?;
        let path = settings::key_file(&settings)?;
        let path = path.ok_or_else(|| format!("its settings have no {KEY_FILE_KEY}"))?;
        let key = read(command, path).await?;
        let checked = pool.check_key(&info.name, &key);
        checked.map(|()| key).map_err(|error| format!("key file {path}: {error}"))
    };
    found.await.map_err(|why| {
        format!(
            "{why}: put the key back, and the volume is served within seconds; flagstone pool \
             reopen {pool_name} does it at once"
        )
    })
}

/// Unlocks a volume if it is locked.
///
/// # Errors
/// The reason, and the next step.
pub(super) async fn unlock(
    command: &KeyCommand,
    (pool_name, pool): (&str, &Pool),
    info: &VolumeInfo,
) -> Result<(), String> {
    if info.encryption != VolumeEncryption::Locked {
        return Ok(());
    }
    let key = key_of(command, (pool_name, pool), info).await?;
    pool.unlock_volume(&info.name, &key).map_err(|error| error.to_string())
}

/// Effect of an order that changes the settings of a volume from `before` to `after`. A file with
/// the present key may replace a lost one.
///
/// # Errors
/// 409 if a key is missing or wrong, or the volume is not encrypted; 422 without a key file.
pub(super) async fn change_of(
    command: &KeyCommand,
    (pool_name, pool, info): (&str, &Pool, &VolumeInfo),
    before: &Settings,
    after: &Settings,
    is_given: bool,
) -> Result<KeyChange, Problem> {
    let name = &info.name;
    let path = settings::key_file(after).map_err(Problem::invalid)?;
    let path = match (path, info.encryption) {
        (None, VolumeEncryption::None) => return Ok(KeyChange::Unchanged),
        (Some(_), VolumeEncryption::None) if is_given => {
            return Err(problem(pool_name, VolumeError::NotEncrypted { name: name.clone() }));
        }
        (None, _) => {
            return Err(Problem::invalid(format!(
                "volume {name} is encrypted: name its key file with --encryption-key-file"
            )));
        }
        (Some(_), _) if !is_given => return Ok(KeyChange::Unchanged),
        (Some(path), _) => path,
    };
    let next = read(command, path).await.map_err(Problem::conflict)?;
    let wrong = match pool.check_key(name, &next) {
        Ok(()) => return Ok(KeyChange::Same(next)),
        Err(error) => format!("key file {path}: {error}"),
    };
    let former = settings::key_file(before).ok().flatten().filter(|former| *former != path);
    let Some(former) = former else {
        let how = "to change the key, name another file, and keep this one with the present key";
        return Err(Problem::conflict(format!("{wrong}; {how}")));
    };
    let present = async {
        let key = read(command, former).await?;
        let checked = pool.check_key(name, &key);
        checked.map(|()| key).map_err(|error| format!("key file {former}: {error}"))
    };
    let present = present.await.map_err(|why| {
        Problem::conflict(format!("the present key is needed to change it: {why}; and {wrong}"))
    })?;
    Ok(KeyChange::Next { present, next })
}

/// Volumes other than `name` that still have its former key, such as its clones; as the end of a
/// sentence.
pub(super) fn former_key_users(pool: &Pool, name: &str, former: &WrappingKey) -> String {
    let mut others = pool.volumes_with_key(former);
    others.retain(|other| other != name);
    let more = others.len().saturating_sub(NAMES_SHOWN);
    others.truncate(NAMES_SHOWN);
    match (others.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; these volumes still have it: {}", others.join(", ")),
        (false, more) => {
            format!("; these volumes still have it: {}, and {more} more", others.join(", "))
        }
    }
}

/// Encryption of a volume, as the API shows it.
pub(crate) fn document(pool: &str, info: &VolumeInfo) -> Option<EncryptionDocument> {
    let settings = settings::from_properties(&info.properties).unwrap_or_default();
    let locked = match info.encryption {
        VolumeEncryption::None => return None,
        VolumeEncryption::Unlocked => None,
        VolumeEncryption::Locked => Some(format!(
            "put its key back, and it is served within seconds; flagstone pool reopen {pool} \
                 does it at once"
        )),
    };
    let key_file = settings::key_file(&settings).ok().flatten().map(str::to_owned);
    Some(EncryptionDocument { algorithm: ALGORITHM.to_owned(), key_file, locked })
}

fn locked_volumes(pool: &Pool) -> Vec<VolumeInfo> {
    let is_locked = |info: &VolumeInfo| info.encryption == VolumeEncryption::Locked;
    pool.volumes().into_iter().filter(is_locked).collect()
}

/// The keys of some locked volumes, read at the same time.
async fn keys_of(
    command: &KeyCommand,
    (name, pool): (&str, &Pool),
    part: &[VolumeInfo],
) -> Vec<FoundKey> {
    let mut found = Vec::with_capacity(part.len());
    let reads: Vec<_> = part
        .iter()
        .map(|info| {
            let (name, pool, info) = (name.to_owned(), pool.clone(), info.clone());
            let command = command.clone();
            // The pool is in use while one of them runs.
            spawn(async move { key_of(&command, (&name, &pool), &info).await }).abort_on_drop()
        })
        .collect();
    for (info, mut key) in part.iter().zip(reads) {
        let key = key.handle().await;
        let key = key.unwrap_or_else(|_| Err("its key was not read".to_owned()));
        found.push((info.clone(), key));
    }
    found
}

impl Server {
    /// Notes locked volumes as not served, until [`Server::serve_locked`] has read their keys.
    pub(super) fn note_locked(&self, name: &str, info: &VolumeInfo, why: &str) {
        if self.pools.state_of(name, info).is_leg() {
            // Its mirror reports it.
            return;
        }
        self.pools.set_unserved(name, &info.name, why.to_owned());
    }

    pub(super) fn note_unread(&self, name: &str, info: &VolumeInfo) {
        self.note_locked(name, info, UNREAD);
    }

    /// The keys of all locked volumes of a pool.
    async fn keys_of_locked(&self, name: &str, pool: &Pool) -> Vec<FoundKey> {
        let mut found = Vec::new();
        for part in locked_volumes(pool).chunks(KEY_FILES_AT_ONCE) {
            found.extend(keys_of(&self.pools.key_command, (name, pool), part).await);
        }
        found
    }

    /// Unlocks and serves a volume, or notes why not.
    fn serve_with_key(
        &self,
        name: &str,
        pool: &Pool,
        info: &VolumeInfo,
        key: Result<WrappingKey, String>,
    ) -> Result<(), String> {
        let unlocked = key.and_then(|key| {
            pool.unlock_volume(&info.name, &key).map_err(|error| error.to_string())
        });
        let served = unlocked.and_then(|()| self.serve_pool_volume(name, pool, info));
        if let Err(why) = &served {
            let known =
                self.pools.slot(name).ok().and_then(|slot| slot.unserved.get(&info.name).cloned());
            if known.as_ref() != Some(why) {
                tracing::error!("volume {} of pool {name} is not served: {why}", info.name);
            }
            self.note_locked(name, info, why);
        }
        served
    }

    /// Starts looking for the keys of locked volumes in open pools on which no order runs.
    pub(super) fn begin_unlocks(self: &Rc<Self>) {
        for (name, slot) in self.pools.slots() {
            let PoolState::Open(pool) = slot.state else { continue };
            let is_begun = self.pools.openings.borrow().contains_key(&name);
            let has_order = self.pools.try_lock(&name).is_none();
            let locked = locked_volumes(&pool);
            if is_begun || has_order || locked.is_empty() {
                continue;
            }
            drop(pool);
            let (server, own) = (self.clone(), name.clone());
            let unlocking = spawn(async move {
                for part in locked.chunks(KEY_FILES_AT_ONCE) {
                    let slot = server.pools.slot(&own);
                    let Ok(PoolSlot { state: PoolState::Open(pool), .. }) = slot else { break };
                    // Without the lock, because key files may hang.
                    let command = &server.pools.key_command;
                    let found = keys_of(command, (&own, &pool), part).await;
                    drop(pool);
                    let _order = server.pools.lock(&own).await;
                    server.serve_found(&own, found);
                }
                // Removing the opening ends this task.
                let opening = server.pools.openings.borrow_mut().remove(&own);
                drop(opening);
            });
            self.pools.openings.borrow_mut().insert(name, unlocking.abort_on_drop());
        }
    }

    /// Serves volumes whose keys were found. An order may have changed them meanwhile.
    fn serve_found(&self, name: &str, found: Vec<FoundKey>) {
        let Ok(PoolSlot { state: PoolState::Open(pool), .. }) = self.pools.slot(name) else {
            return;
        };
        for (before, key) in found {
            let now = pool.volume(&before.name).filter(|now| now.uuid == before.uuid);
            let Some(info) = now.filter(|now| now.encryption == VolumeEncryption::Locked) else {
                continue;
            };
            let is_leg = self.pools.state_of(name, &info).is_leg();
            // The mirror of a leg reports its reason.
            if key.is_ok() || !is_leg {
                // The reason is noted.
                let served = self.serve_with_key(name, &pool, &info, key);
                if served.is_ok() {
                    tracing::info!("volume {} of pool {name} has its key back", info.name);
                }
            }
        }
    }

    /// Serves the locked volumes of a pool that was just opened. The caller has its lock.
    pub(super) async fn serve_locked(&self, name: &str, pool: &Pool) {
        for (info, key) in self.keys_of_locked(name, pool).await {
            // The reason is noted.
            let _ = self.serve_with_key(name, pool, &info, key);
        }
    }

    /// Serves locked volumes of a pool that has not failed, and disturbs no other.
    ///
    /// # Errors
    /// 409 with the reason if a volume stays locked. The others are served.
    pub(super) async fn reopen_locked(
        &self,
        name: &str,
        pool: &Pool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let (mut served, mut refused) = (Vec::new(), Vec::new());
        for (info, key) in self.keys_of_locked(name, pool).await {
            let done = match dry_run {
                true => key.map(drop),
                false => self.serve_with_key(name, pool, &info, key),
            };
            match done {
                Ok(()) => served.push(info.name),
                Err(why) => refused.push(format!("volume {} is not served: {why}", info.name)),
            }
        }
        if !refused.is_empty() {
            return Err(Problem::conflict(refused.join("; ")));
        }
        Ok(match served.is_empty() {
            true => Outcome::unchanged(format!("pool {name} has not failed: nothing to do")),
            false => Outcome::changed(format!("volumes are unlocked: {}", served.join(", "))),
        })
    }
}
