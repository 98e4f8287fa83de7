//! Undersized log: a log file that was truncated, or another device in its place.
//!
//! A truncated log file is replaced by a new log, which treats all blocks as out of sync. Its
//! remains are not trusted, because the cause of the truncation is unknown: the file is emptied
//! durably first, so that a crash before the new log is complete finds none.
//!
//! Other contents, including the log of another replica, are never overwritten (see
//! `overwrite_check`), and a device cannot be enlarged from here. The volume is then not served
//! until the operator acts; all other volumes are.

use std::io::{self, Read as _};
use std::path::Path;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::intent_log::log_device::may_become_log;
use flagstone_mirror::limits::{LOG_PROBE_BYTES, PAGE_BYTES};
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, log_layout};
use flagstone_mirror::ondisk::log_header::LogHeader;
use flagstone_mirror::ondisk::superblock::Superblock;
use flagstone_mirror::ondisk::{FormatError, newest};

use super::MirroredVolume;
use super::open::log_on;
use flagstone_units::exact_size;

#[derive(Debug, PartialEq, Eq)]
enum LogFileContents {
    /// Nothing, or probably remains of this replica's log.
    OwnOrEmpty,
    Others(MirrorId),
    Other,
}

impl LogFileContents {
    fn of(beginning: &[u8], replica: MirrorId) -> LogFileContents {
        let (pages, _) = beginning.as_chunks::<PAGE_BYTES>();
        let header = |place: usize| match pages.get(place) {
            Some(page) => LogHeader::decode(page),
            None => Err(FormatError::Absent),
        };
        let owner = newest([header(0), header(1)], |header| header.sequence);
        match owner {
            Ok((_, header)) if header.replica != replica => LogFileContents::Others(header.replica),
            _ if may_become_log(beginning) => LogFileContents::OwnOrEmpty,
            _ => LogFileContents::Other,
        }
    }
}

impl MirroredVolume {
    /// Prepares an undersized log file for a new log. Returns advice if its contents forbid that.
    pub(super) fn recreate_log_file(
        &self,
        superblock: &Superblock,
    ) -> Result<Option<String>, String> {
        let Some(path) = &self.log_file() else { return Ok(None) };
        let needed = log_layout(&superblock.geometry).total_bytes;
        let about = |error: io::Error| format!("the write-intent log {}: {error}", path.display());
        let has = path.metadata().map_err(about)?.len();
        if has >= needed {
            return Ok(None);
        }
        let (name, file) = (&self.name, path.display());
        let what = match LogFileContents::of(&beginning(path).map_err(about)?, superblock.replica) {
            LogFileContents::OwnOrEmpty => {
                empty_and_resize(path, needed).map_err(about)?;
                tracing::warn!(
                    "the write-intent log of volume `{name}` on {file} was truncated: it has {has} B, and \
                     needs {needed}. It is created again"
                );
                return Ok(None);
            }
            LogFileContents::Others(replica) => {
                format!("is the log of replica {replica}, of another volume")
            }
            LogFileContents::Other => "is no log".to_owned(),
        };
        Ok(Some(format!(
            "`intent_log` of volume `{name}` names {file}, which has {has} B, where {needed} are needed for its \
             write-intent log, and what is there {what}. If that is the wrong file, correct the configuration; \
             if it is not needed, remove it: a new log is created, and everything compared or copied"
        )))
    }

    pub(super) fn undersized_log_device(
        &self,
        device: &SharedDevice,
        shape: &ReplicaGeometry,
    ) -> Option<String> {
        let spec = &self.log_spec()?;
        let needed = log_layout(shape).total_bytes;
        let has = device.geometry().size_bytes;
        (has < needed).then(|| {
            format!(
                "{} of volume `{}` has {}, and needs {}: make it larger, or give `intent_log` another device. \
                 A device without the replica's log makes everything be compared or copied",
                log_on(spec),
                self.name,
                exact_size(has),
                exact_size(needed)
            )
        })
    }
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let file = std::fs::OpenOptions::new().read(true).open(path)?;
    let mut beginning = Vec::new();
    file.take(LOG_PROBE_BYTES).read_to_end(&mut beginning)?;
    Ok(beginning)
}

/// Empties a file, then resizes it; a crash in between leaves it empty.
fn empty_and_resize(path: &Path, bytes: u64) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    for len in [0, bytes.next_multiple_of(PAGE_BYTES as u64)] {
        file.set_len(len)?;
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undersized_log_of_others_is_kept() {
        let replica = MirrorId([1; 16]);
        let header = |replica: MirrorId| {
            let shape = ReplicaGeometry::for_size(64 << 20);
            let log = MirrorId([7; 16]);
            LogHeader { sequence: 1, log, replica, incarnation: 1, geometry: shape }
                .encode()
                .to_vec()
        };
        let (own, others) = (header(replica), header(MirrorId([2; 16])));
        let damaged = |mut page: Vec<u8>| {
            page[100] ^= 1;
            page
        };
        let cut = |page: &[u8]| page[..100].to_vec();
        for (beginning, left) in [
            (vec![], LogFileContents::OwnOrEmpty),
            (vec![0; 5000], LogFileContents::OwnOrEmpty),
            (own.clone(), LogFileContents::OwnOrEmpty),
            ([vec![0; PAGE_BYTES], own.clone()].concat(), LogFileContents::OwnOrEmpty),
            // Its owner is unreadable; the path says that it belonged to this volume.
            (cut(&own), LogFileContents::OwnOrEmpty),
            (damaged(own.clone()), LogFileContents::OwnOrEmpty),
            (others.clone(), LogFileContents::Others(MirrorId([2; 16]))),
            ([others.clone(), cut(&others)].concat(), LogFileContents::Others(MirrorId([2; 16]))),
            (b"/dev/sda1 / ext4 defaults 0 1\n".to_vec(), LogFileContents::Other),
            ([own, vec![b'x'; PAGE_BYTES]].concat(), LogFileContents::Other),
        ] {
            let len = beginning.len();
            assert_eq!(LogFileContents::of(&beginning, replica), left, "of {len} B");
        }
    }
}
