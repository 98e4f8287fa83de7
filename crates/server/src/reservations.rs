//! Reservation records of volumes: files `reservations/UUID` in the state directory.
//!
//! A file is replaced as a whole, and is durable when the save returns. A volume whose file cannot
//! be read is not served, because hosts that were excluded could write to it again.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_config::names::Uuid;
use flagstone_nvmf_target::{RESERVATION_RECORD_MAX_BYTES, ReservationStore};

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

    fn directory(&self) -> &Path {
        self.path.parent().expect("the path has a directory")
    }
}

impl ReservationStore for RecordFile {
    fn save(&self, record: Option<&[u8]>) -> io::Result<()> {
        let directory = self.directory();
        fs::create_dir_all(directory)?;
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
        for path in [Some(directory), directory.parent()].into_iter().flatten() {
            File::options().read(true).open(path)?.sync_all()?;
        }
        Ok(())
    }
}

/// Support of reservations by a volume.
pub(crate) enum ReservationSupport {
    /// None: the peers of a mirrored volume would not know them after a switchover.
    None,
    /// Until the server ends.
    Volatile,
    /// Across restarts, if a host asks for that.
    Persistent { file: Arc<RecordFile>, record: Option<Vec<u8>> },
}

impl Server {
    /// The reservations of a volume, with what was stored of them.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn reservations_of(
        &self,
        volume: &ServedVolume,
    ) -> Result<ReservationSupport, ServeError> {
        if volume.config.mirror().is_some() {
            return Ok(ReservationSupport::None);
        }
        let Some(state) = self.pools.directory() else { return Ok(ReservationSupport::Volatile) };
        let file = Arc::new(RecordFile::new(state, &volume.uuid));
        let record = file.read().map_err(|error| {
            unservable(format!("{}: the reservations cannot be read: {error}", file.path.display()))
        })?;
        Ok(ReservationSupport::Persistent { file, record })
    }
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
