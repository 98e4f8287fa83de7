//! Volume handle: state of a volume that its open handles share, and that the data path reads
//! without a lock. Orders change it when they take effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::compress::{Compression, GiveUp};
use crate::crypt::VolumeCipher;
use crate::ondisk::volume_table::VolumeRecord;

/// State of an open volume.
#[derive(Debug)]
pub(crate) struct VolumeHandle {
    pub(crate) blocks: AtomicU64,
    pub(crate) deleted: AtomicBool,
    pub(crate) thick: AtomicBool,
    /// A number of [`Compression::ALL`].
    compression: AtomicU8,
    pub(crate) give_up: GiveUp,
    /// True for a snapshot.
    pub(crate) read_only: bool,
    /// Of an encrypted volume.
    pub(crate) cipher: Option<Arc<VolumeCipher>>,
}

impl VolumeHandle {
    pub(crate) fn new(
        blocks: u64,
        read_only: bool,
        record: Option<&VolumeRecord>,
        cipher: Option<Arc<VolumeCipher>>,
    ) -> VolumeHandle {
        let handle = VolumeHandle {
            blocks: AtomicU64::new(blocks),
            deleted: AtomicBool::new(false),
            thick: AtomicBool::new(false),
            compression: AtomicU8::new(0),
            give_up: GiveUp::default(),
            read_only,
            cipher,
        };
        if let Some(record) = record {
            handle.set(record);
        }
        handle
    }

    /// Applies the settings of a record. The size is separate.
    pub(crate) fn set(&self, record: &VolumeRecord) {
        self.thick.store(record.thick, Ordering::Release);
        let setting = Compression::of(&record.properties);
        let number = Compression::ALL.iter().position(|other| *other == setting);
        self.compression.store(number.unwrap_or(0) as u8, Ordering::Release);
    }

    pub(crate) fn compression(&self) -> Compression {
        Compression::ALL[usize::from(self.compression.load(Ordering::Acquire))]
    }
}
