//! Room of a replica: space on its devices into which the volume could grow, and zeroing it.
//!
//! Space that is only announced may be taken back. It is not used, and no device is made larger for
//! it, before a [resize](crate::manage::resize).

use super::*;

impl Replica {
    /// Durably zeroes the space that a volume of `usable_bytes` would gain.
    ///
    /// # Errors
    /// Of the device; [`IoError::OutOfRange`] if there is no room for that size, and
    /// [`IoError::Unreachable`] if the replica is retired.
    pub(crate) async fn zero_new_space(&self, usable_bytes: u64) -> Result<(), IoError> {
        if usable_bytes > self.room_bytes() {
            return Err(IoError::OutOfRange);
        }
        self.0.new_space.zero(usable_bytes).await
    }

    /// The size up to which the volume could grow into zeroed space, in bytes.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        self.0.new_space.zeroed_bytes()
    }

    /// Whether a volume of this size has room on the devices.
    ///
    /// # Errors
    /// [`ReplicaError::DataTooSmall`] or [`ReplicaError::LogTooSmall`].
    pub(crate) fn check_room(
        &self,
        log: Option<&SharedDevice>,
        usable_bytes: u64,
    ) -> Result<(), ReplicaError> {
        if usable_bytes > self.room_bytes() {
            return Err(ReplicaError::DataTooSmall);
        }
        let geometry = ReplicaGeometry { usable_bytes, ..self.superblock().geometry };
        let fits = |log: &SharedDevice| LogArea::new(log.clone(), 0, &geometry).is_some();
        if log.is_none_or(fits) { Ok(()) } else { Err(ReplicaError::LogTooSmall) }
    }

    /// The largest size that the volume could have here, in bytes. Limited by the data device,
    /// whose current size is queried, and by a log of fixed size.
    pub fn room_bytes(&self) -> u64 {
        let geometry = self.superblock().geometry;
        let here = self.0.layout;
        // Space may be announced, and the device be shrunk before it is used: the device's own size
        // is not raised for an announcement.
        let end = match self.0.device.present_bytes() {
            Some(present) => present & !(PAGE_BYTES as u64 - 1),
            None => {
                self.0.device.refresh();
                end_of(&self.0.device)
            }
        };
        let end = end.max(here.end());
        let layout = follow(here.end(), end, &geometry).unwrap_or(here);
        self.0.new_space.limit(layout.usable_bytes);
        let regions = u64::from(geometry.region_bytes).saturating_mul(REGIONS_MAX);
        let log = self.0.log_room_bytes.load(Ordering::Relaxed);
        layout.usable_bytes.min(regions).min(log).max(geometry.usable_bytes)
    }

    /// Sets the size in bytes of the largest volume that the log, which cannot grow, has room for.
    pub fn set_log_room(&self, bytes: u64) {
        self.0.log_room_bytes.store(bytes, Ordering::Relaxed);
    }
}
