//! A log that has become too small for its replica: its file was cut off, or another device is where it
//! was.
//!
//! A file that was a log is answered as any damaged log is: by a new one, so that all counts as
//! different. What is left of it is not believed, as nobody knows what has cut it off, and what else that
//! has done: it is emptied first, durably, so that a crash before the new one is whole finds none.
//!
//! What is no log, or that of another replica, is left as it is, as `guard` has it of a name that was
//! mistyped; and a device cannot be made larger from here. Then the volume is not served before the
//! operator has acted, and all others are.

use std::io::{self, Read as _};
use std::path::Path;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::format::log_header::LogHeader;
use flagstone_mirror::format::superblock::Superblock;
use flagstone_mirror::format::{FormatError, newest};
use flagstone_mirror::id::Uuid;
use flagstone_mirror::limits::{LOG_LOOK_BYTES, PAGE_BYTES};
use flagstone_mirror::shape::log_layout;
use flagstone_mirror::vacant::may_become_log;

use super::Mirrored;
use super::open::log_on;
use crate::units::format_size;

/// What a file that is too small for a log has.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    /// Nothing, or what is left of this replica's log, as far as can be told.
    OwnOrNothing,
    /// The log of another replica.
    Others(Uuid),
    /// Something else.
    Other,
}

impl Left {
    fn of(beginning: &[u8], replica: Uuid) -> Left {
        let (pages, _) = beginning.as_chunks::<PAGE_BYTES>();
        let header = |place: usize| match pages.get(place) {
            Some(page) => LogHeader::decode(page),
            None => Err(FormatError::Absent),
        };
        let owner = newest([header(0), header(1)], |header| header.sequence);
        match owner {
            Ok((_, header)) if header.replica != replica => Left::Others(header.replica),
            _ if may_become_log(beginning) => Left::OwnOrNothing,
            _ => Left::Other,
        }
    }
}

impl Mirrored {
    /// Makes room for a new log in a file that has become too small. Gives what the operator has to do
    /// where that is not for us to do.
    pub(super) fn renew_log_file(&self, superblock: &Superblock) -> Result<Option<String>, String> {
        let Some(path) = self.log_file() else { return Ok(None) };
        let needed = log_layout(&superblock.shape).total_bytes;
        let about = |error: io::Error| format!("the write-intent log {}: {error}", path.display());
        let has = path.metadata().map_err(about)?.len();
        if has >= needed {
            return Ok(None);
        }
        let (name, file) = (&self.name, path.display());
        let what = match Left::of(&beginning(path).map_err(about)?, superblock.replica) {
            Left::OwnOrNothing => {
                make_room(path, needed).map_err(about)?;
                tracing::warn!(
                    "the write-intent log of volume `{name}` on {file} has become too small: it has \
                     {has} B, and needs {needed}. It is made anew"
                );
                return Ok(None);
            }
            Left::Others(replica) => format!("is the log of replica {replica}, of another volume"),
            Left::Other => "is no log".to_owned(),
        };
        Ok(Some(format!(
            "`bitmap` of volume `{name}` names {file}, which has {has} B, where {needed} are needed for its \
             write-intent log, and what is there {what}. If that is the wrong file, mend the configuration; \
             if it is not needed, remove it: the log is made anew then, and everything compared or copied"
        )))
    }

    /// What the operator has to do where the log's device is too small for a replica.
    pub(super) fn small_log_device(
        &self,
        device: &SharedDevice,
        superblock: &Superblock,
    ) -> Option<String> {
        let spec = self.config.bitmap.as_ref()?;
        let needed = log_layout(&superblock.shape).total_bytes;
        let has = device.geometry().size_bytes;
        (has < needed).then(|| {
            format!(
                "{} of volume `{}` has {}, and {} are needed: make it larger, or give `bitmap` another \
                 device. Where the log that it had is not on that everything is compared or copied",
                log_on(spec),
                self.name,
                format_size(has),
                format_size(needed)
            )
        })
    }
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let file = std::fs::OpenOptions::new().read(true).open(path)?;
    let mut beginning = Vec::new();
    file.take(LOG_LOOK_BYTES).read_to_end(&mut beginning)?;
    Ok(beginning)
}

/// Empties a file, and then gives it room: a crash in between finds it empty.
fn make_room(path: &Path, bytes: u64) -> io::Result<()> {
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
    fn what_a_small_file_has_is_left_alone_unless_it_was_this_replicas_log() {
        let replica = Uuid([1; 16]);
        let header = |replica: Uuid| {
            let shape = flagstone_mirror::shape::Shape::for_size(64 << 20);
            let log = Uuid([7; 16]);
            LogHeader { sequence: 1, log, replica, incarnation: 1, shape }.encode().to_vec()
        };
        let (own, others) = (header(replica), header(Uuid([2; 16])));
        let damaged = |mut page: Vec<u8>| {
            page[100] ^= 1;
            page
        };
        let cut = |page: &[u8]| page[..100].to_vec();
        for (beginning, left) in [
            (vec![], Left::OwnOrNothing),
            (vec![0; 5000], Left::OwnOrNothing),
            (own.clone(), Left::OwnOrNothing),
            ([vec![0; PAGE_BYTES], own.clone()].concat(), Left::OwnOrNothing),
            // Whose it was cannot be told: that of a volume of this name, by its place.
            (cut(&own), Left::OwnOrNothing),
            (damaged(own.clone()), Left::OwnOrNothing),
            (others.clone(), Left::Others(Uuid([2; 16]))),
            ([others.clone(), cut(&others)].concat(), Left::Others(Uuid([2; 16]))),
            (b"/dev/sda1 / ext4 defaults 0 1\n".to_vec(), Left::Other),
            ([own, vec![b'x'; PAGE_BYTES]].concat(), Left::Other),
        ] {
            let len = beginning.len();
            assert_eq!(Left::of(&beginning, replica), left, "of {len} B");
        }
    }
}
