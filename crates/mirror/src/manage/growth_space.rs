//! Room of a replica: space on its devices into which the volume could grow, and its zeroing.
//!
//! Announced space may be taken back. It is not used, and no device is extended for it, before a
//! [resize](crate::manage::resize).

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

    /// Checks that a volume of this size has room on the devices.
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

    /// Largest possible size of the volume here, in bytes. Limited by the present size of the data
    /// device, and by a log of fixed size.
    pub fn room_bytes(&self) -> u64 {
        let geometry = self.superblock().geometry;
        let here = self.0.layout;
        // An announcement does not extend the device's own size: the device may shrink again before
        // the space is used.
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

    /// Sets the largest volume, in bytes, for which the log has room, because it cannot grow.
    pub fn set_log_room(&self, bytes: u64) {
        self.0.log_room_bytes.store(bytes, Ordering::Relaxed);
    }
}
