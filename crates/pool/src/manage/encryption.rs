//! Encrypted volumes: creation, unlocking after an opening, and change of the operator's key.
//!
//! Invariants:
//! - the superblocks have the version that older programs refuse before the first record of an
//!   encrypted volume;
//! - the data key of a volume never changes, so a new key of the operator rewrites no data;
//! - a volume without its key can be moved, checked and deleted, but not opened.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::leg;
use super::pool::Pool;
use super::shared::{Shared, State};
use super::volume::{PoolVolume, VolumeOptions};
use crate::crypt::VolumeCipher;
use crate::crypt::key::{DataKey, WrappingKey};
use crate::error::VolumeError;
use crate::ondisk::volume_table::VolumeRecord;

impl State {
    /// Cipher of a volume or snapshot; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`VolumeError::Locked`].
    pub(crate) fn cipher_of(&self, id: u32) -> Result<Option<Arc<VolumeCipher>>, VolumeError> {
        let Some(volume) = self.volume_table.key_volume(id) else { return Ok(None) };
        if volume.encryption.is_none() {
            return Ok(None);
        }
        match self.ciphers.get(&volume.id) {
            Some(cipher) => Ok(Some(cipher.clone())),
            None => Err(VolumeError::Locked { name: volume.name.clone() }),
        }
    }
}

impl Shared {
    /// Makes older programs refuse the pool.
    ///
    /// # Errors
    /// Errors of the devices. The pool then fails every change.
    pub(super) async fn require_encryption(&self) -> Result<(), IoError> {
        let Some(turn) = self.superblock_turn(|state| state.superblock.encryption).await? else {
            return Ok(());
        };
        let next = self.next_update(|next| next.encryption = true);
        match turn.write(&next, None).await {
            Ok(written) => self.state.lock().updated(written),
            Err(error) => {
                self.state.lock().fail(IoError::WriteFault);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Pool {
    /// Creates an encrypted volume with a random data key, wrapped by this key.
    ///
    /// # Errors
    /// As [`Pool::create_volume`].
    pub async fn create_encrypted_volume(
        &self,
        name: &str,
        options: &VolumeOptions,
        key: &WrappingKey,
    ) -> Result<Arc<PoolVolume>, VolumeError> {
        let made = {
            let data = DataKey::random();
            (data.wrap(self.identity().id, key), data.cipher())
        };
        self.make_volume(name, options, Some(made)).await
    }

    /// The volumes that this key unlocks.
    pub fn volumes_with_key(&self, key: &WrappingKey) -> Vec<String> {
        let state = self.shared().state.lock();
        let has_key = |volume: &&VolumeRecord| {
            let wrapped = volume.encryption.as_ref();
            wrapped.is_some_and(|wrapped| wrapped.unwrap(state.superblock.pool, key).is_some())
        };
        let volumes = state.volume_table.present().filter(has_key);
        volumes.map(|volume| volume.name.clone()).collect()
    }

    /// Gives an encrypted volume its key, so that it and its snapshots can be opened until the pool
    /// is closed. Nothing changes if it has been given.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`], [`VolumeError::NotEncrypted`] and [`VolumeError::WrongKey`].
    pub fn unlock_volume(&self, name: &str, key: &WrappingKey) -> Result<(), VolumeError> {
        let mut state = self.shared().state.lock();
        let (id, data) = self.data_key(&state, name, key)?;
        if let Entry::Vacant(vacant) = state.ciphers.entry(id) {
            vacant.insert(Arc::new(data.cipher()));
            // The cleaner can free now what dead blocks hold.
            state.forget_surveys();
            drop(state);
            self.shared().progress.notify();
        }
        Ok(())
    }

    /// Checks that an encrypted volume has this key, and changes nothing.
    ///
    /// # Errors
    /// As [`Pool::unlock_volume`].
    pub fn check_key(&self, name: &str, key: &WrappingKey) -> Result<(), VolumeError> {
        self.data_key(&self.shared().state.lock(), name, key).map(drop)
    }

    fn data_key(
        &self,
        state: &State,
        name: &str,
        key: &WrappingKey,
    ) -> Result<(u32, DataKey), VolumeError> {
        let volume = state.volume_table.by_name(name).ok_or_else(|| self.unknown(name))?;
        let name = || name.to_owned();
        let wrapped =
            volume.encryption.ok_or_else(|| VolumeError::NotEncrypted { name: name() })?;
        let data = wrapped.unwrap(state.superblock.pool, key);
        data.map(|data| (volume.id, data)).ok_or_else(|| VolumeError::WrongKey { name: name() })
    }

    /// Wraps the data key of a volume with another key, and replaces the properties of the volume,
    /// in one durable step. Its clones keep their wrappings of the data key. The former key no
    /// longer opens the volume as it is now, but still opens old copies of the devices.
    ///
    /// # Errors
    /// As [`Pool::unlock_volume`] for the present key, and as [`Pool::create_volume`].
    pub async fn set_volume_key(
        &self,
        name: &str,
        keys: (&WrappingKey, &WrappingKey),
        thick: bool,
        properties: BTreeMap<String, String>,
    ) -> Result<(), VolumeError> {
        let (present, next) = keys;
        let (id, before, wrapped) = {
            let state = self.shared().state.lock();
            let (id, data) = self.data_key(&state, name, present)?;
            let before = state.volume_table.volumes[&id].encryption;
            (id, before, data.wrap(state.superblock.pool, next))
        };
        self.change(name, |record| {
            // Other orders may have come first: the name is of another volume now, or the key was
            // replaced.
            if record.id != id || record.encryption != before {
                return Err(VolumeError::WrongKey { name: name.to_owned() });
            }
            record.encryption = Some(wrapped);
            record.thick = thick;
            leg::set_properties(record, &properties);
            Ok(())
        })
        .await
    }
}
