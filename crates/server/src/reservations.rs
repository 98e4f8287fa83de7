//! Reservation records of volumes: files `reservations/UUID` in the state directory.
//!
//! A file is replaced as a whole, and is durable when the save returns. A volume whose file cannot
//! be read is not served, because hosts that were excluded could write to it again.
//!
//! The peers of a mirrored volume have the same record ([`flagstone_mirror::reservations`]).
//!
//! Orders take a volume out of service and serve it again. Its reservations are kept meanwhile,
//! also those without a file, until the volume is deleted ([`KeptReservations`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_config::names::Uuid;
use flagstone_mirror::{Mirror, ReservationObstacle, ReservationRecords};
use flagstone_nvme::Status;
use flagstone_nvmf_target::{
    RESERVATION_RECORD_MAX_BYTES, ReservationReplication, ReservationState, ReservationStore,
    Target,
};
use flagstone_pool::PoolId;
use flagstone_runtime::spawn_blocking;
use parking_lot::Mutex;

use crate::mirrors::MirrorHandle;
use crate::serve::{ServeError, Server};
use crate::subsystems::unservable;
use crate::volume::ServedVolume;

/// Record file of one volume.
pub(crate) struct RecordFile {
    path: PathBuf,
}

impl RecordFile {
    fn new(state: &Path, uuid: &Uuid) -> RecordFile {
        RecordFile { path: state.join("reservations").join(uuid.to_string()) }
    }

    /// The stored record; `None` if there is none. Longer files are cut after one byte too many,
    /// which makes them invalid.
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let file = match File::options().read(true).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut record = Vec::new();
        file.take(RESERVATION_RECORD_MAX_BYTES as u64 + 1).read_to_end(&mut record)?;
        Ok(Some(record))
    }

    /// The same, for a volume that is about to be served.
    fn stored(&self) -> Result<Option<Vec<u8>>, ServeError> {
        self.read().map_err(|error| {
            let path = self.path.display();
            unservable(format!("{path}: the reservations cannot be read: {error}"))
        })
    }

    /// Removes the record, if there is one.
    fn remove(&self) -> io::Result<()> {
        if self.path.try_exists()? { self.save(None) } else { Ok(()) }
    }

    fn directory(&self) -> &Path {
        self.path.parent().expect("the path has a directory")
    }
}

impl ReservationStore for RecordFile {
    fn save(&self, record: Option<&[u8]>) -> io::Result<()> {
        let directory = self.directory();
        fs::create_dir_all(directory)?;
        // Before anything changes: a save that fails later has perhaps taken effect.
        let directories = [Some(directory), directory.parent()].into_iter().flatten();
        let open = |path: &Path| File::options().read(true).open(path);
        let directories = directories.map(open).collect::<io::Result<Vec<_>>>()?;
        match record {
            Some(record) => {
                let new = self.path.with_extension("new");
                let mut file =
                    File::options().create(true).write(true).truncate(true).open(&new)?;
                file.write_all(record)?;
                file.sync_all()?;
                fs::rename(new, &self.path)?;
            }
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        directories.iter().try_for_each(File::sync_all)
    }
}

/// Reservations of a mirrored volume: the record file of this node, and the mirror that takes the
/// record to its peers.
struct MirroredRecord {
    file: RecordFile,
    mirror: Mutex<Arc<MirrorHandle>>,
}

impl MirroredRecord {
    fn mirror(&self) -> Option<Mirror> {
        self.mirror.lock().mirror()
    }
}

impl ReservationStore for MirroredRecord {
    fn save(&self, record: Option<&[u8]>) -> io::Result<()> {
        self.file.save(record)
    }

    fn replication(&self) -> Option<&dyn ReservationReplication> {
        Some(self)
    }
}

impl ReservationReplication for MirroredRecord {
    fn check(&self) -> Result<(), Status> {
        let mirror = self.mirror().ok_or(Status::INTERNAL_PATH_ERROR)?;
        mirror.check_reservable().map_err(|obstacle| match obstacle {
            ReservationObstacle::NotServing => Status::INTERNAL_PATH_ERROR,
            ReservationObstacle::Peer => {
                tracing::warn!("a reservation command of a host is refused: {obstacle}");
                Status::INVALID_OPCODE.dnr()
            }
        })
    }

    fn replicate(&self, record: &[u8]) -> IoFuture<()> {
        match self.mirror() {
            Some(mirror) => mirror.replicate_reservations(record),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

/// Reservations of a mirrored volume, as its mirror sees them.
struct HostReservations {
    target: Arc<Target>,
    state: ReservationState,
}

impl ReservationRecords for HostReservations {
    fn record(&self) -> Vec<u8> {
        self.state.replicated_record()
    }

    fn replace(&self, record: Vec<u8>) -> IoFuture<()> {
        let (target, state) = (self.target.clone(), self.state.clone());
        IoFuture::later(async move {
            target.replace_reservations(&state, record).await.map_err(|error| {
                tracing::error!("the reservations of the source cannot be stored: {error}");
                IoError::WriteFault
            })
        })
    }
}

/// Support of reservations by a volume.
pub(crate) enum ReservationSupport {
    /// None: a mirrored volume, of a server without a state directory.
    None,
    /// Until the server ends; with a state directory also across restarts, if a host asks for that.
    Hosts(ReservationState),
}

/// Reservations of the volumes of this process, by UUID: at most one for each volume that is served
/// or has registered hosts.
#[derive(Default)]
pub(crate) struct KeptReservations(RefCell<BTreeMap<[u8; 16], KeptState>>);

struct KeptState {
    /// The volume, if it is in a pool.
    volume: Option<PoolId>,
    state: ReservationState,
    /// Its storage, if it is mirrored.
    mirrored: Option<Arc<MirroredRecord>>,
}

impl KeptReservations {
    /// Forgets the reservations of a deleted volume. Returns the UUIDs by which it was served.
    fn forget(&self, volume: PoolId) -> Vec<[u8; 16]> {
        let mut kept = self.0.borrow_mut();
        let is_of = |kept: &KeptState| kept.volume == Some(volume);
        let uuids = kept.iter().filter(|(_, kept)| is_of(kept)).map(|(uuid, _)| *uuid).collect();
        kept.retain(|_, kept| !is_of(kept));
        uuids
    }

    fn has(&self, uuid: &[u8; 16]) -> bool {
        self.0.borrow().contains_key(uuid)
    }
}

impl Server {
    /// Forgets the reservations of a deleted volume, and returns the records to remove
    /// ([`remove_records`]): a later volume may have its UUID, of which `uuid` is the configured
    /// one.
    pub(crate) fn forget_reservations(
        &self,
        volume: PoolId,
        uuid: Option<Uuid>,
    ) -> Vec<RecordFile> {
        let mut uuids = self.pools.reservations.forget(volume);
        uuids.push(volume.0);
        // If another volume has it, this one was not served.
        let own = uuid.map(Uuid::into_bytes);
        uuids.extend(own.filter(|uuid| !self.pools.reservations.has(uuid)));
        let Some(state) = self.pools.directory() else { return Vec::new() };
        uuids.iter().map(|uuid| RecordFile::new(state, &Uuid::from_bytes(*uuid))).collect()
    }

    /// The reservations of a volume: as they were when it was last served, or what was stored
    /// of them.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn reservations_of(
        &self,
        volume: &ServedVolume,
    ) -> Result<ReservationSupport, ServeError> {
        if volume.config.mirror().is_some() {
            let kept = self.pools.reservations.0.borrow();
            let known = kept.get(&volume.uuid.into_bytes()).filter(|kept| kept.mirrored.is_some());
            return Ok(known.map_or(ReservationSupport::None, |known| {
                ReservationSupport::Hosts(known.state.clone())
            }));
        }
        let mut kept = self.pools.reservations.0.borrow_mut();
        if let Some(known) = kept.get(&volume.uuid.into_bytes()) {
            return Ok(ReservationSupport::Hosts(known.state.clone()));
        }
        let state = stored_reservations(self.pools.directory(), &volume.uuid)?;
        kept.retain(|_, kept| kept.state.is_needed());
        let place = volume.pool.as_ref().map(|place| place.id);
        let added = KeptState { volume: place, state: state.clone(), mirrored: None };
        kept.insert(volume.uuid.into_bytes(), added);
        Ok(ReservationSupport::Hosts(state))
    }

    /// What keeps the reservations of a mirrored volume on this node; `None` without a state
    /// directory. Before its mirror starts: a source may replace them at once.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn mirrored_reservations(
        &self,
        volume: &ServedVolume,
        mirror: &Arc<MirrorHandle>,
    ) -> Result<Option<Arc<dyn ReservationRecords>>, ServeError> {
        let Some(directory) = self.pools.directory() else { return Ok(None) };
        let mut kept = self.pools.reservations.0.borrow_mut();
        let uuid = volume.uuid.into_bytes();
        let known = kept.get(&uuid).and_then(|kept| Some((&kept.state, kept.mirrored.as_ref()?)));
        let state = match known {
            Some((state, record)) => {
                // An earlier attempt to start it has failed.
                *record.mirror.lock() = mirror.clone();
                state.clone()
            }
            None => {
                let file = RecordFile::new(directory, &volume.uuid);
                let stored = file.stored()?;
                let record = Arc::new(MirroredRecord { file, mirror: Mutex::new(mirror.clone()) });
                let store: Arc<dyn ReservationStore> = record.clone();
                let state = ReservationState::open(Some(store), stored.as_deref());
                let state = state.map_err(unservable)?;
                let added =
                    KeptState { volume: None, state: state.clone(), mirrored: Some(record) };
                kept.insert(uuid, added);
                state
            }
        };
        Ok(Some(Arc::new(HostReservations { target: self.target.clone(), state })))
    }
}

/// Durably removes the records of a deleted volume. The volume is deleted whether that fails or
/// not.
pub(crate) async fn remove_records(files: Vec<RecordFile>) {
    let removed = spawn_blocking("reservations", move || {
        for file in files {
            if let Err(error) = file.remove() {
                let path = file.path.display();
                tracing::warn!("the reservations of a deleted volume stay in {path}: {error}");
            }
        }
    });
    if let Err(error) = removed.await {
        tracing::warn!("the reservations of a deleted volume stay: {error}");
    }
}

fn stored_reservations(
    directory: Option<&Path>,
    uuid: &Uuid,
) -> Result<ReservationState, ServeError> {
    let Some(directory) = directory else {
        return ReservationState::open(None, None).map_err(unservable);
    };
    let file = Arc::new(RecordFile::new(directory, uuid));
    let record = file.stored()?;
    ReservationState::open(Some(file), record.as_deref()).map_err(unservable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_record_is_replaced_and_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let file = RecordFile::new(scratch.path(), &Uuid::from_bytes([7; 16]));
        assert_eq!(file.read().unwrap(), None);
        file.save(None).unwrap();
        for record in [&b"first"[..], b"second"] {
            file.save(Some(record)).unwrap();
            assert_eq!(file.read().unwrap().as_deref(), Some(record));
        }
        fs::write(&file.path, vec![0; 2 * RESERVATION_RECORD_MAX_BYTES]).unwrap();
        assert_eq!(file.read().unwrap().unwrap().len(), RESERVATION_RECORD_MAX_BYTES + 1);
        file.save(None).unwrap();
        assert_eq!(file.read().unwrap(), None);
    }
}
