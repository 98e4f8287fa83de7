//! A mirror gives its replica to another that takes its place, while hosts go on: what is fixed while
//! a mirror runs, its size above all, is changed between the two.
//!
//! 1. New calls of hosts wait; those under way end.
//! 2. The mirror ends as it does when its node is shut down, and writes nothing from then on.
//! 3. The replica is changed on its disks ([`HandOn::resize`]), and opened again.
//! 4. The other mirror serves if this one did, and calls that waited go there.
//!
//! A source records its peers as out of date in the step in which its size changes, as before a
//! write that they lack: so it may serve without asking them, and they are brought up to date, and
//! to its size, when they are met. If step 3 fails the same is recorded and nothing else.

use std::sync::Arc;

use flagstone_blockdev::{IoError, SharedDevice};

use crate::format::superblock::{Role, Superblock};
use crate::mint::Minting;
use crate::mirror::{Inner, Mirror};
use crate::replica::{Replica, ReplicaError};
use crate::roles::{Changing, RoleError};
use crate::shape::Shape;
use crate::versions::Versions;

/// A mirror that has ended in favour of another. When it is dropped before there is one, calls that
/// wait fail.
pub struct HandOn {
    inner: Arc<Inner>,
    was_active: bool,
    _changing: Changing,
}

impl Drop for HandOn {
    fn drop(&mut self) {
        self.inner.change(|state| state.moving = false);
    }
}

/// Ends the wait of hosts when what was begun comes to nothing.
struct Moving(Option<Arc<Inner>>);

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            inner.change(|state| state.moving = false);
        }
    }
}

impl Mirror {
    /// Ends this mirror so that another can have its replica: see the module. Calls of hosts wait.
    ///
    /// # Errors
    /// Of the local leg, or that it has failed. Nobody is served then, and where the leg failed just
    /// now the mirror has ended as a crash would end it ([`Mirror::is_closed`]).
    pub async fn hand_on(&self) -> Result<HandOn, RoleError> {
        let inner = &self.0;
        let changing = inner.changing().await;
        if inner.lock().closed {
            return Err(RoleError::Io(IoError::Unreachable));
        }
        if inner.lock().local_failed {
            return Err(RoleError::LocalFailed);
        }
        let mut moving = Moving(Some(inner.clone()));
        let was_active = inner.change(|state| {
            state.moving = true;
            state.active
        });
        let inactive = inner.deactivate(Role::Source).await;
        inner.end_attachment().await;
        self.close();
        inner.local.retire().await;
        inactive?;
        moving.0 = None;
        Ok(HandOn { inner: inner.clone(), was_active, _changing: changing })
    }

    /// Waits until a source wants this replica to have another size, and says which. For whoever can
    /// have the volume's mirror replaced; asked again until it has that size.
    pub async fn resize_wanted(&self) -> u64 {
        self.0.wait(|state| state.wanted_bytes.take()).await
    }

    /// True when it has ended for good: [`Mirror::close`], [`Mirror::hand_on`].
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Size and granularities of the volume here.
    pub fn shape(&self) -> Shape {
        self.0.local.superblock().shape
    }

    /// The versions of the link that this node speaks.
    pub fn versions(&self) -> Versions {
        self.0.versions
    }

    /// Size of the volume here, in bytes.
    pub fn usable_bytes(&self) -> u64 {
        self.0.local.superblock().shape.usable_bytes
    }

    /// The largest size that the volume could have here, in bytes: devices that have grown are
    /// noticed.
    pub fn room_bytes(&self) -> u64 {
        self.0.local.room_bytes()
    }
}

impl HandOn {
    /// Changes the size of the replica, and opens it. What was zeroed for it ([`Mirror::clear_room`])
    /// is no difference. A replica that cannot be changed is opened as
    /// it is: the error comes second.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn resize(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
    ) -> Result<(Replica, Option<ReplicaError>), ReplicaError> {
        let minting = self.was_active.then(|| Minting::new(&self.inner));
        let change = move |superblock: &mut Superblock| {
            if let Some(minting) = minting {
                minting.apply(superblock);
            }
        };
        let cleared = self.inner.local.cleared_bytes();
        let resized = Replica::resize(device, log.clone(), usable_bytes, cleared, change).await;
        let replica = Replica::open(device.clone(), log).await?;
        Ok((replica, resized.err()))
    }

    /// Has the other mirror take over.
    ///
    /// # Errors
    /// See [`RoleError`]: it serves nobody then, and calls that waited fail there.
    pub async fn finish(self, next: &Mirror) -> Result<(), RoleError> {
        let served = if self.was_active { self.serve(next).await } else { Ok(()) };
        self.inner.change(|state| {
            state.successor = Some(next.clone());
            state.moving = false;
        });
        served
    }

    async fn serve(&self, next: &Mirror) -> Result<(), RoleError> {
        if !next.start().await? {
            // Its size is as it was, so the peers are not recorded as out of date yet.
            let minting = Minting::new(&self.inner);
            next.0.local.update(move |superblock| minting.apply(superblock)).await?;
            next.start().await?;
        }
        Ok(())
    }
}
