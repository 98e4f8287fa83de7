//! Growing a mirrored volume while it is served: what `flagstone mirror grow` does at the source, and
//! what a target does when it meets a source of another size.
//!
//! The source looks what room there is on all sides, and has what is new zeroed on all of them while
//! the volume is as it was: whatever that takes, each target that is in sync can take over. Then it
//! gives its replica another size between two mirrors ([`HandOn`]): calls
//! of hosts wait for that moment. It meets its targets anew, asks them to have its size, and copies
//! what hosts wrote meanwhile; what is new only where a node does not know any more that it is zero,
//! or is of a version that could not be asked to zero it.

use std::rc::{Rc, Weak};

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::format::superblock::Role;
use flagstone_mirror::peer::identify;
use flagstone_mirror::shape::{Shape, log_layout, usable_with_log};
use flagstone_mirror::{HandOn, Mirror, Version};
use flagstone_runtime::{spawn, time};

use super::make::failed;
use super::{CreateError, Mirrored};
use crate::device_spec::DeviceSpec;
use crate::limits::GROW_PATIENCE;
use crate::units::format_size;

/// The unit of sizes of replicas, in bytes.
const PAGE_BYTES: u64 = 4096;

/// What growing comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    /// Size of the volume before, in bytes.
    pub from_bytes: u64,
    /// And after.
    pub to_bytes: u64,
    /// Who has no room for more.
    pub smallest: String,
    /// Peers of an older version, which cannot zero what is new: it is copied to them.
    pub copied_to: Vec<String>,
    /// What is new is being zeroed still: the volume grows when that has ended.
    pub goes_on: bool,
}

/// What a volume can grow to.
struct Room {
    room_bytes: u64,
    /// Who has no room for more.
    smallest: String,
    /// See [`Grown::copied_to`].
    copied_to: Vec<String>,
}

/// Says that the mirror is being replaced, until dropped.
struct Growing<'a>(&'a Mirrored);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.growing.set(false);
    }
}

/// Says to which size the volume is growing, from before what is new is zeroed, until dropped.
struct GrowingTo(Rc<Mirrored>);

impl Drop for GrowingTo {
    fn drop(&mut self) {
        self.0.growing_to.set(None);
    }
}

impl Mirrored {
    /// The size to which the volume grows when what is new has been zeroed.
    pub(crate) fn growing_to(&self) -> Option<u64> {
        self.growing_to.get()
    }

    /// Has the volume grow to `wanted` bytes, or to what all its replicas have room for.
    pub(crate) async fn grow(
        self: &Rc<Self>,
        wanted: Option<u64>,
        dry_run: bool,
    ) -> Result<Grown, CreateError> {
        let refused = |why: String| Err(CreateError::Refused(why));
        let name = &self.name;
        let Some(mirror) = self.mirror() else {
            return refused(format!(
                "this node has no replica of `{name}`: if its device has just been made larger, and \
                 what was at its end is not found any more, make it as large as it was"
            ));
        };
        let status = mirror.status();
        if status.role != Role::Source || !status.active {
            return refused(format!(
                "{} does not serve `{name}`: ask on the node that does",
                self.node
            ));
        }
        if status.local_failed {
            return refused(format!("the device of `{name}` on {} has failed", self.node));
        }
        if let Some(bytes) = self.growing_to.get() {
            return refused(format!(
                "`{name}` is growing to {} already: what is new is zeroed on all its nodes first, \
                 which takes as long as reading it",
                format_size(bytes)
            ));
        }
        let Room { room_bytes, smallest, copied_to } = self.room(&mirror).await?;
        let from_bytes = mirror.usable_bytes();
        let to_bytes = wanted.unwrap_or(room_bytes);
        if to_bytes < from_bytes {
            return refused(format!(
                "`{name}` has {}, and a mirrored volume does not shrink: what hosts have there would \
                 be lost",
                format_size(from_bytes)
            ));
        }
        if !to_bytes.is_multiple_of(PAGE_BYTES) {
            return refused(format!("{to_bytes} B are not a multiple of 4 KiB"));
        }
        if to_bytes > room_bytes {
            return refused(format!(
                "there is room for {} on {smallest}, which is less: make its device larger first",
                format_size(room_bytes)
            ));
        }
        let mut goes_on = false;
        if to_bytes > from_bytes && !dry_run {
            goes_on = self.begin_growing(mirror, to_bytes).await.map_err(failed)?;
        }
        Ok(Grown { from_bytes, to_bytes, smallest, copied_to, goes_on })
    }

    /// Has the volume grow, and waits for it for a while: true when it goes on after that.
    async fn begin_growing(self: &Rc<Self>, mirror: Mirror, bytes: u64) -> Result<bool, String> {
        if self.growing_to.get().is_some() {
            return Err("the volume grows already".to_owned());
        }
        self.growing_to.set(Some(bytes));
        let growing = GrowingTo(self.clone());
        let grows = spawn(async move {
            let GrowingTo(this) = &growing;
            let grown = this.clear_and_resize(&mirror, bytes).await;
            if let Err(error) = &grown {
                tracing::error!(volume = this.name, "the volume does not grow: {error}");
            }
            grown
        });
        match time::timeout(GROW_PATIENCE, grows).await {
            Ok(ended) => {
                ended.unwrap_or_else(|_| Err("the server is about to end".to_owned()))?;
                Ok(false)
            }
            Err(_) => Ok(true),
        }
    }

    /// Has what is new zeroed on all nodes, and then the volume grow over it.
    async fn clear_and_resize(self: &Rc<Self>, mirror: &Mirror, bytes: u64) -> Result<(), String> {
        mirror.clear_room(bytes).await.map_err(|error| {
            format!(
                "what is new cannot be zeroed on all nodes ({error}): the volume has the size that it \
                 had; ask again when they can all be reached and their devices are sound"
            )
        })?;
        // It may have taken hours.
        if mirror.is_closed() || !mirror.is_active() || mirror.usable_bytes() > bytes {
            return Err(format!(
                "{} has not served the volume as it was until what is new was zeroed: ask again, on \
                 the node that serves it",
                self.node
            ));
        }
        self.resize(mirror, bytes).await
    }

    /// What all replicas have room for, and which of them cannot zero it.
    async fn room(&self, mirror: &Mirror) -> Result<Room, CreateError> {
        let (room_bytes, smallest) = (mirror.room_bytes(), self.node.clone());
        let mut least = Room { room_bytes, smallest, copied_to: Vec::new() };
        let (volume, own) = (mirror.status().volume, mirror.status().replica);
        for (leg, name) in self.peers.iter().enumerate() {
            let way = self.way(leg);
            let answer = match way.connect().await {
                Ok(session) => {
                    let answer = identify(&session, own, mirror.versions()).await;
                    session.close();
                    answer.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let about = answer.map_err(|error| {
                CreateError::Refused(format!(
                    "{name} cannot be asked how much room it has ({error}): a mirrored volume grows \
                     when all its nodes can be reached"
                ))
            })?;
            if about.view.volume != volume || about.active {
                return Err(CreateError::Refused(format!(
                    "{name} holds another volume, or serves hosts itself: see `flagstone mirror \
                     status {}`",
                    self.name
                )));
            }
            if about.view.room_bytes < least.room_bytes {
                (least.room_bytes, least.smallest) = (about.view.room_bytes, name.clone());
            }
            let common = mirror.versions().highest_common(about.versions);
            if common.is_ok_and(|version| version < Version::CLEARS_ROOM) {
                least.copied_to.push(name.clone());
            }
        }
        Ok(least)
    }

    /// The largest volume for which the log can be made large enough; `None` when nothing limits it.
    pub(super) fn log_room_bytes(&self, shape: &Shape) -> Option<u64> {
        let log = self.log.borrow().clone()?;
        if self.log_file().is_some() {
            return None;
        }
        log.refresh();
        Some(usable_with_log(log.geometry().size_bytes, shape))
    }

    /// The path of the log's device when that is a regular file, which can be made larger.
    pub(super) fn log_file(&self) -> Option<&std::path::Path> {
        match self.config.bitmap.as_ref()? {
            DeviceSpec::Path(path) if path.is_file() => Some(path),
            _ => None,
        }
    }

    /// Makes the log's device as large as a volume of this shape needs, where that can be done.
    fn grow_log(&self, log: &SharedDevice, shape: &Shape) -> Result<(), String> {
        let needed = log_layout(shape).total_bytes;
        log.refresh();
        if log.geometry().size_bytes >= needed {
            return Ok(());
        }
        if let Some(path) = self.log_file() {
            let about = |error| format!("cannot make {} larger: {error}", path.display());
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(about)?;
            file.set_len(needed.next_multiple_of(PAGE_BYTES)).map_err(about)?;
            log.refresh();
        }
        let has = log.geometry().size_bytes;
        if has >= needed {
            return Ok(());
        }
        Err(format!(
            "the device of the write-intent log has {}, and a volume of {} needs {}: make it larger",
            format_size(has),
            format_size(shape.usable_bytes),
            format_size(needed)
        ))
    }

    /// Gives the replica another size, between this mirror and the next. Hosts wait meanwhile.
    pub(super) async fn resize(self: &Rc<Self>, mirror: &Mirror, bytes: u64) -> Result<(), String> {
        if self.growing.replace(true) {
            return Err("the volume grows already".to_owned());
        }
        let _growing = Growing(self);
        let log = self.log.borrow().clone();
        if let Some(log) = &log {
            self.grow_log(log, &Shape { usable_bytes: bytes, ..mirror.shape() })?;
        }
        self.leg.refresh();
        // What hosts are told stays as it is: they wait.
        self.watch.borrow_mut().take();
        let from = mirror.usable_bytes();
        let served = mirror.is_active();
        let resized = match mirror.hand_on().await {
            Ok(hand_on) => self.exchange(hand_on, log, bytes).await,
            Err(error) => Err(error.to_string()),
        };
        if let (Err(error), true) = (&resized, self.has_ended()) {
            self.reopen_soon();
            return Err(format!(
                "{error}: this node does not serve the volume until its replica can be opened, which \
                 is tried again"
            ));
        }
        let now = self.mirror().ok_or("there is no mirror any more")?;
        if now.is_active() != served {
            self.set_access(now.is_active());
        }
        self.follow(now.clone(), now.is_active());
        let target = self.target.borrow().clone().ok_or("the server is not up yet")?;
        target
            .resize_namespace(&self.nqn, self.namespace_id)
            .map_err(|error| format!("hosts cannot be told: {error}"))?;
        match &resized {
            Ok(()) => tracing::info!(
                volume = self.name,
                from_bytes = from,
                to_bytes = now.usable_bytes(),
                "the volume has another size"
            ),
            Err(error) => tracing::error!(volume = self.name, "its size stays: {error}"),
        }
        resized
    }

    async fn exchange(
        self: &Rc<Self>,
        hand_on: HandOn,
        log: Option<SharedDevice>,
        bytes: u64,
    ) -> Result<(), String> {
        let target = self.target.borrow().clone().ok_or("the server is not up yet")?;
        target.remove_subsystem(&self.replica_nqn).map_err(|error| error.to_string())?;
        let opened = hand_on.resize(&self.leg, log, bytes).await;
        let (replica, failed) = opened.map_err(|error| error.to_string())?;
        let next = self.mirror_of(replica)?;
        self.slot.set(Some(next.clone()));
        hand_on.finish(&next).await.map_err(|error| error.to_string())?;
        failed.map_or(Ok(()), |error| Err(error.to_string()))
    }
}

/// Has a target take over the size of its source whenever that asks for it.
pub(super) async fn follow_source(this: Weak<Mirrored>, mirror: Mirror) {
    loop {
        let bytes = mirror.resize_wanted().await;
        let Some(this) = this.upgrade() else { return };
        let old = mirror.clone();
        // A task of its own: this one ends with the mirror that it looks after.
        let resized = spawn(async move { this.resize(&old, bytes).await });
        if let Ok(Err(error)) = resized.await {
            tracing::warn!("the size of the source is not taken over: {error}");
        }
    }
}
