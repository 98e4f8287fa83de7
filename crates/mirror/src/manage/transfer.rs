//! Transfer: moving a replica from one mirror to its replacement while hosts keep running.
//! Properties that are fixed while a mirror runs, above all its size, change in between.
//!
//! 1. New host calls wait; calls in flight complete.
//! 2. The mirror ends as at a shutdown of its node, and writes nothing afterwards.
//! 3. The replica is changed on its devices ([`ReplicaTransfer::resize`]) and opened again.
//! 4. The replacement serves if this mirror did, and the waiting calls move to it.
//!
//! A source records its peers as out of date in the same write that changes its size, as before a
//! write that they lack. So it may serve without asking them, and they get its data and size at the
//! next handshake. If step 3 fails, only that record is written.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;

use crate::agree::versions::LinkVersions;
use crate::io::new_generation::NewGeneration;
use crate::manage::command::role_error;
use crate::manage::order::Progress;
use crate::manage::replica::{Replica, ReplicaError};
use crate::manage::roles::{RoleChange, RoleError};
use crate::mirror::{Inner, Mirror};
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::superblock::Superblock;
use crate::state::machine::{Event, next};

/// A mirror that has ended so that another takes over its replica. If it is dropped before
/// [`ReplicaTransfer::finish`], waiting calls fail.
pub struct ReplicaTransfer {
    inner: Arc<Inner>,
    was_serving: bool,
    _role_change: RoleChange,
}

impl Drop for ReplicaTransfer {
    fn drop(&mut self) {
        self.inner.change(|state| state.migrating = false);
    }
}

/// Releases waiting host calls if the transfer fails.
struct Migrating(Option<Arc<Inner>>);

impl Drop for Migrating {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            inner.change(|state| state.migrating = false);
        }
    }
}

impl Mirror {
    /// Ends this mirror so that another can take over its replica, as described in this module.
    /// Host calls wait meanwhile.
    ///
    /// # Errors
    /// Of the local leg, or [`RoleError::LocalFailed`] if it failed earlier. Hosts are not served
    /// then. If the leg failed just now, the mirror has ended as after a crash
    /// ([`Mirror::is_closed`]).
    pub async fn begin_transfer(&self) -> Result<ReplicaTransfer, RoleError> {
        let inner = &self.0;
        let _order = inner.running_order();
        let role_change = inner.begin_role_change().await;
        let (after, actions) = next(&inner.machine_state(), Event::Transferred)?;
        let mut migrating = Migrating(Some(inner.clone()));
        let was_serving = inner.change(|state| {
            state.migrating = true;
            state.serving
        });
        let stopped = inner.perform(after, actions.iter(), Progress::default()).await;
        self.close();
        inner.local.retire().await;
        role_error(stopped)?;
        migrating.0 = None;
        Ok(ReplicaTransfer { inner: inner.clone(), was_serving, _role_change: role_change })
    }

    /// Waits until a source requests another size for this replica, and returns it, in bytes. The
    /// request is repeated until the replica has that size.
    pub async fn resize_requested(&self) -> u64 {
        self.0.wait(|state| state.requested_bytes.take()).await
    }

    /// True after [`Mirror::close`] or [`Mirror::begin_transfer`].
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Size and granularities of the local replica.
    pub fn replica_geometry(&self) -> ReplicaGeometry {
        self.0.local.superblock().geometry
    }

    /// Versions of the link that this node speaks.
    pub fn versions(&self) -> LinkVersions {
        self.0.versions
    }

    /// Size of the volume here, in bytes.
    pub fn usable_bytes(&self) -> u64 {
        self.0.local.superblock().geometry.usable_bytes
    }

    /// The largest size possible here, in bytes. Checks whether the devices have grown.
    pub fn room_bytes(&self) -> u64 {
        self.0.local.room_bytes()
    }
}

impl ReplicaTransfer {
    /// Resizes the replica and opens it. Space zeroed in advance ([`Mirror::zero_new_space`]) does
    /// not count as different. A replica that cannot be resized is opened as it is, and the second
    /// value is the error.
    ///
    /// # Errors
    /// When the replica cannot be opened.
    pub async fn resize(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
    ) -> Result<(Replica, Option<ReplicaError>), ReplicaError> {
        let new_generation = self.was_serving.then(|| NewGeneration::new(&self.inner));
        let change = move |superblock: &mut Superblock| {
            if let Some(new_generation) = new_generation {
                new_generation.apply(superblock);
            }
        };
        let cleared = self.inner.local.zeroed_bytes();
        let resized = Replica::resize(device, log.clone(), usable_bytes, cleared, change).await;
        let replica = Replica::open(device.clone(), log).await?;
        Ok((replica, resized.err()))
    }

    /// Lets the replacement take over.
    ///
    /// # Errors
    /// See [`RoleError`]. Hosts are not served then, and waiting calls fail at the replacement.
    pub async fn finish(self, next: &Mirror) -> Result<(), RoleError> {
        let served = if self.was_serving { self.serve(next).await } else { Ok(()) };
        self.inner.change(|state| {
            state.replacement = Some(next.clone());
            state.migrating = false;
        });
        served
    }

    async fn serve(&self, next: &Mirror) -> Result<(), RoleError> {
        if !next.0.serve_after_start(false).await? {
            // The size is unchanged, so the peers are not recorded as out of date yet.
            let new_generation = NewGeneration::new(&self.inner);
            next.0.local.update(move |superblock| new_generation.apply(superblock)).await?;
            next.0.serve_after_start(false).await?;
        }
        Ok(())
    }
}
