//! Online growth of a mirrored volume: on its source, and on a target that follows its source.
//!
//! The source checks the space on all nodes, and zeroes the new space on all of them while the
//! volume keeps its size. Targets in sync can take over during that time. The source then resizes
//! its replica between two mirrors ([`ReplicaTransfer`]), while host I/O waits. It reconnects its
//! targets, asks them to take its size, and copies the writes made meanwhile. It copies the new
//! space only to nodes that do not know that it is zero, or whose version could not zero it.

use std::rc::{Rc, Weak};

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::manage::replica::ReplicaError;
use flagstone_mirror::ondisk::layout::{ReplicaGeometry, log_layout, usable_with_log};
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::{LinkVersion, Mirror, PeerChange, ReplicaTransfer};
use flagstone_runtime::{spawn, time};

use super::create::{failed, refuse};
use super::{CreateError, MirroredVolume};
use crate::limits::GROW_TIMEOUT;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_units::exact_size;

/// Unit of replica sizes, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Change that a replacement of the mirror makes.
pub(super) enum Replacement {
    /// Size of the volume, in bytes.
    Size(u64),
    Peers(PeerChange),
}

/// A change for which the mirror is replaced or deleted. Others are refused until it is dropped.
pub(super) struct Changing(Rc<MirroredVolume>);

impl Changing {
    /// The caller has checked that no other change is in progress.
    pub(super) fn new(volume: &Rc<MirroredVolume>) -> Changing {
        volume.growing.set(true);
        Changing(volume.clone())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.growing.set(false);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    /// Size of the volume before, in bytes.
    pub from_bytes: u64,
    /// Size of the volume after, in bytes.
    pub to_bytes: u64,
    /// The node with the least space.
    pub smallest: String,
    /// Peers whose version cannot zero the new space: it is copied to them.
    pub copied_to: Vec<String>,
    /// The new space is still being zeroed; the volume grows after that.
    pub in_progress: bool,
}

impl MirroredVolume {
    pub(crate) fn growing_to(&self) -> Option<u64> {
        self.growing_to.get()
    }

    /// Grows the volume to `wanted` bytes, or to the largest size that fits on all nodes.
    pub(crate) async fn grow(
        self: &Rc<Self>,
        wanted: Option<u64>,
        dry_run: bool,
    ) -> Result<Grown, CreateError> {
        let name = &self.name;
        let Some(mirror) = self.mirror() else {
            return refuse(format!(
                "this node has no replica of `{name}`: if its device was just enlarged, and the metadata \
                 at its end is not found any more, restore its former size"
            ));
        };
        let status = mirror.status();
        if status.role != ReplicaRole::Source || !status.serving {
            return refuse(format!(
                "{} does not serve `{name}`: repeat the command on the node that does",
                self.node
            ));
        }
        if status.local_device_failed {
            return refuse(format!("the device of `{name}` on {} has failed", self.node));
        }
        if let Some(bytes) = self.growing_to.get() {
            // Its answer may have been lost.
            if wanted.is_none_or(|wanted| wanted == bytes) {
                return Ok(Grown {
                    from_bytes: mirror.usable_bytes(),
                    to_bytes: bytes,
                    smallest: self.node.clone(),
                    copied_to: Vec::new(),
                    in_progress: true,
                });
            }
            return refuse(format!(
                "`{name}` is already growing to {}: the new space is being zeroed on all nodes",
                exact_size(bytes)
            ));
        }
        let mut grown = self.largest(&mirror).await?;
        let (from_bytes, room_bytes) = (grown.from_bytes, grown.to_bytes);
        let to_bytes = wanted.unwrap_or(room_bytes);
        if to_bytes < from_bytes {
            return refuse(format!(
                "`{name}` has {}, and a mirrored volume does not shrink: data would be lost",
                exact_size(from_bytes)
            ));
        }
        if !to_bytes.is_multiple_of(PAGE_BYTES) {
            let size = exact_size(to_bytes);
            return refuse(format!(
                "the size {size} is not a multiple of {}",
                exact_size(PAGE_BYTES)
            ));
        }
        if to_bytes > room_bytes {
            return refuse(format!(
                "{} has space for just {}: first enlarge its device",
                grown.smallest,
                exact_size(room_bytes)
            ));
        }
        grown.to_bytes = to_bytes;
        if to_bytes > from_bytes && !dry_run {
            grown.in_progress = self.start_growing(mirror, to_bytes).await.map_err(failed)?;
        }
        Ok(grown)
    }

    /// Starts to grow the volume, and waits up to [`GROW_TIMEOUT`]. True if it is still growing
    /// then.
    async fn start_growing(self: &Rc<Self>, mirror: Mirror, bytes: u64) -> Result<bool, String> {
        if self.growing_to.get().is_some() {
            return Err("the volume is already growing".to_owned());
        }
        self.check_log_rests()?;
        self.growing_to.set(Some(bytes));
        let this = self.clone();
        let grows = spawn(async move {
            let grown = this.zero_and_resize(&mirror, bytes).await;
            this.growing_to.set(None);
            if let Err(error) = &grown {
                tracing::error!(volume = this.name, "the volume did not grow: {error}");
            }
            grown
        });
        match time::timeout(GROW_TIMEOUT, grows).await {
            Ok(ended) => {
                ended.unwrap_or_else(|_| Err("the server is stopping".to_owned()))?;
                Ok(false)
            }
            Err(_) => Ok(true),
        }
    }

    async fn zero_and_resize(self: &Rc<Self>, mirror: &Mirror, bytes: u64) -> Result<(), String> {
        mirror.zero_new_space(bytes).await.map_err(|error| {
            format!(
                "cannot zero the new space on all nodes ({error}): the volume keeps its size; repeat the \
                 command when all nodes are reachable and their devices work"
            )
        })?;
        // Zeroing may have taken hours.
        if mirror.is_closed() || !mirror.is_serving() || mirror.usable_bytes() > bytes {
            return Err(format!(
                "{} stopped serving the volume while the new space was zeroed: repeat the command on the \
                 node that serves it",
                self.node
            ));
        }
        self.resize(mirror, bytes).await
    }

    /// Growth to the largest size that fits on all nodes.
    async fn largest(&self, mirror: &Mirror) -> Result<Grown, CreateError> {
        let mut grown = Grown {
            from_bytes: mirror.usable_bytes(),
            to_bytes: mirror.room_bytes(),
            smallest: self.node.clone(),
            copied_to: Vec::new(),
            in_progress: false,
        };
        let (volume, own) = (mirror.status().volume, mirror.status().replica);
        for peer in self.links() {
            let name = &peer.name;
            let identity = self.identify_peer(&peer, own, mirror.versions()).await.or_else(|error| {
                refuse(format!(
                    "{name} does not report its space ({error}): a mirrored volume can grow when all its \
                     nodes are reachable"
                ))
            })?;
            if identity.view.volume != volume || identity.is_serving {
                return refuse(format!(
                    "{name} has another volume, or serves hosts itself: see `flagstone mirror status {}`",
                    self.name
                ));
            }
            if identity.view.room_bytes < grown.to_bytes {
                (grown.to_bytes, grown.smallest) = (identity.view.room_bytes, name.clone());
            }
            let common = mirror.versions().highest_common(identity.versions);
            if common.is_ok_and(|version| version < LinkVersion::ZEROES_NEW_SPACE) {
                grown.copied_to.push(name.clone());
            }
        }
        Ok(grown)
    }

    /// The largest volume that the log device has space for; `None` without a limit.
    pub(super) fn log_room_bytes(&self, shape: &ReplicaGeometry) -> Option<u64> {
        let log = self.log.borrow().clone()?;
        if self.log_file().is_some() {
            return None;
        }
        // Space that is announced may be taken back: only growth makes the device larger.
        let size_bytes = log.present_bytes().unwrap_or_else(|| {
            log.refresh();
            log.geometry().size_bytes
        });
        Some(usable_with_log(size_bytes, shape))
    }

    /// Path of the log device if it is a regular file, which can be enlarged.
    pub(super) fn log_file(&self) -> Option<std::path::PathBuf> {
        match self.log_spec()? {
            DeviceSpec::Path(path) if path.is_file() => Some(path),
            _ => None,
        }
    }

    /// Enlarges the log device to the size that this geometry needs, if possible.
    fn grow_log(&self, log: &SharedDevice, shape: &ReplicaGeometry) -> Result<(), String> {
        let needed = log_layout(shape).total_bytes;
        if log.geometry().size_bytes >= needed {
            return Ok(());
        }
        if log.present_bytes().is_none_or(|present| present >= needed) {
            log.refresh();
        }
        if let Some(path) = self.log_file() {
            let about = |error| format!("cannot enlarge {}: {error}", path.display());
            let file = std::fs::OpenOptions::new().write(true).open(&path).map_err(about)?;
            if file.metadata().map_err(about)?.len() < needed {
                file.set_len(needed.next_multiple_of(PAGE_BYTES)).map_err(about)?;
            }
            log.refresh();
        }
        let has = log.geometry().size_bytes;
        if has >= needed {
            return Ok(());
        }
        Err(format!(
            "the device of the write-intent log has {}, and a volume of {} needs {}: enlarge it",
            exact_size(has),
            exact_size(shape.usable_bytes),
            exact_size(needed)
        ))
    }

    /// Resizes the replica between this mirror and the next. Host I/O waits meanwhile.
    pub(super) async fn resize(self: &Rc<Self>, mirror: &Mirror, bytes: u64) -> Result<(), String> {
        self.check_log_rests()?;
        if self.growing.replace(true) {
            return Err("the volume is already growing".to_owned());
        }
        let resized = self.resize_now(mirror, bytes).await;
        self.growing.set(false);
        resized
    }

    /// Refuses another size while the log moves: the replica would be opened with the old log.
    pub(super) fn check_log_rests(&self) -> Result<(), String> {
        match self.moving_log.get() || self.log_moves.borrow().are_running() {
            true => Err(format!("{}: repeat the command after that", ReplicaError::LogBusy)),
            false => Ok(()),
        }
    }

    async fn resize_now(self: &Rc<Self>, mirror: &Mirror, bytes: u64) -> Result<(), String> {
        let log = self.log.borrow().clone();
        if let Some(log) = &log {
            self.grow_log(
                log,
                &ReplicaGeometry { usable_bytes: bytes, ..mirror.replica_geometry() },
            )?;
        }
        let from = mirror.usable_bytes();
        let (resized, now) = self.replace_mirror(mirror, Replacement::Size(bytes)).await?;
        self.target()?
            .resize_namespace(&self.nqn, self.namespace_id)
            .map_err(|error| format!("cannot notify hosts: {error}"))?;
        match &resized {
            Ok(()) => tracing::info!(
                volume = self.name,
                from_bytes = from,
                to_bytes = now.usable_bytes(),
                "the volume has a new size"
            ),
            Err(error) => tracing::error!(volume = self.name, "the size is unchanged: {error}"),
        }
        resized
    }

    /// Replaces the mirror of the replica while host I/O waits. The first value is whether the
    /// change was made, and the second the mirror that runs now. The caller has set `growing`.
    ///
    /// # Errors
    /// When no mirror runs now.
    pub(super) async fn replace_mirror(
        self: &Rc<Self>,
        mirror: &Mirror,
        change: Replacement,
    ) -> Result<(Result<(), String>, Mirror), String> {
        // The ANA state stays unchanged, because host I/O waits.
        self.watch.borrow_mut().take();
        let served = mirror.is_serving();
        let changed = match mirror.begin_transfer().await {
            Ok(begin_transfer) => self.exchange(begin_transfer, change).await,
            Err(error) => Err(error.to_string()),
        };
        if let (Err(error), true) = (&changed, self.has_ended()) {
            // Peers would wait for the consent of a mirror that has ended.
            let _ = self.target().map(|target| target.remove_subsystem(&self.replica_nqn));
            self.reopen_soon();
            let advice = match served {
                true => format!(
                    ". To serve it from a peer now, run `flagstone mirror failover {} --force` there",
                    self.name
                ),
                false => String::new(),
            };
            return Err(format!(
                "{error}: this node does not serve the volume until its replica can be reopened, which \
                 is retried{advice}"
            ));
        }
        let now = self.mirror().ok_or("the mirror was deleted")?;
        if now.is_serving() != served {
            self.set_ana_state(now.is_serving());
        }
        self.follow(now.clone(), now.is_serving());
        Ok((changed, now))
    }

    async fn exchange(
        self: &Rc<Self>,
        mut begin_transfer: ReplicaTransfer,
        change: Replacement,
    ) -> Result<(), String> {
        let (target, log) = (self.target()?, self.log.borrow().clone());
        target.remove_subsystem(&self.replica_nqn).map_err(|error| error.to_string())?;
        let opened = match change {
            Replacement::Size(bytes) => begin_transfer.resize(&self.leg, log, bytes).await,
            Replacement::Peers(peers) => {
                let changed = begin_transfer.change_peers(&self.leg, log, peers).await;
                changed.map(|replica| (replica, None))
            }
        };
        let (replica, failed) = opened.map_err(|error| error.to_string())?;
        if self.ending.get() {
            return Err("the server is stopping".to_owned());
        }
        let next = self.new_mirror(replica)?;
        begin_transfer.begin_replacement(&next);
        self.handle.set(Some(next.clone()));
        begin_transfer.finish(&next).await.map_err(|error| error.to_string())?;
        failed.map_or(Ok(()), |error| Err(error.to_string()))
    }
}

/// Makes a target take the size of its source whenever the source asks for it.
pub(super) async fn follow_source(this: Weak<MirroredVolume>, mirror: Mirror) {
    loop {
        let bytes = mirror.resize_requested().await;
        let Some(this) = this.upgrade() else { return };
        let old = mirror.clone();
        // A separate task, because this one ends with its mirror.
        let resized = spawn(async move { this.resize(&old, bytes).await });
        if let Ok(Err(error)) = resized.await {
            tracing::warn!("cannot take the size of the source: {error}");
        }
    }
}
