//! Creation and deletion of a replica: `flagstone mirror create` and `delete`.

use std::rc::Rc;

use flagstone_mirror::id::{Generation, MirrorId as Id};
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::wire::peer::ReplicaIdentity;

use super::MirroredVolume;
use super::granularity::{other_granularity, shape, too_fine, with_bits};
use super::grow::Changing;
use super::open::MirrorFailure;
use flagstone_units::exact_size;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Size of the volume, in bytes.
    pub usable_bytes: u64,
    /// Space on the device taken by the mirror's metadata, in bytes.
    pub reserved_bytes: u64,
    /// The replica existed before.
    pub already: bool,
    /// Role of the replica.
    pub role: ReplicaRole,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    /// The request is unsafe or impossible; contains advice.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

impl From<MirrorFailure> for CreateError {
    fn from(failure: MirrorFailure) -> CreateError {
        CreateError::Failed(failure.problem)
    }
}

pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, CreateError> {
    Err(CreateError::Refused(why.into()))
}

pub(super) fn failed(error: impl ToString) -> CreateError {
    CreateError::Failed(error.to_string())
}

/// Advice about nodes whose logical block sizes differ, in bytes.
pub(crate) fn block_size_mismatch(volume: &str, ours: (&str, u32), theirs: (&str, u32)) -> String {
    let ((node, own), (peer, other)) = (ours, theirs);
    format!(
        "the logical blocks of {volume} are {own} B on {node} and {other} B on {peer}: the block size must \
         not change in a switchover, and a device with larger blocks rejects smaller writes. Make them \
         equal: set `block_size` in [volume.{volume}] on the node whose data is not kept, and restart its \
         server; a disk with blocks of 4096 B cannot use 512, so replace it. (On the node whose data is \
         kept, `block_size` changes the blocks that partition tables and file systems count in)"
    )
}

impl MirroredVolume {
    /// [`MirroredVolume::create_from`] a device with any content.
    #[cfg(test)]
    pub(crate) async fn create(
        self: &Rc<Self>,
        role: ReplicaRole,
        confirmed: bool,
        dry_run: bool,
    ) -> Result<Created, CreateError> {
        self.create_from(role, confirmed, false, dry_run).await
    }

    /// Creates this node's replica and opens it. An existing replica of this role is accepted, so
    /// concurrent requests agree. `confirmed` allows overwriting data or a possible earlier
    /// replica. With `empty`, the device has to read as zeroes, which is checked, and the peer's
    /// too: then only what hosts write is copied.
    pub(crate) async fn create_from(
        self: &Rc<Self>,
        role: ReplicaRole,
        confirmed: bool,
        empty: bool,
        dry_run: bool,
    ) -> Result<Created, CreateError> {
        let _create_lock = self.create_lock.acquire(1).await;
        if let Some(mirror) = self.mirror() {
            return self.already(&mirror, role);
        }
        if !confirmed {
            self.refuse_over_replica(match role {
                ReplicaRole::Source => {
                    "--new-volume, which makes the contents of the device a new volume"
                }
                ReplicaRole::Target | ReplicaRole::Deposed => "--destroy-data",
            })
            .await?;
        }
        let (volume, shape) = match role {
            ReplicaRole::Source => {
                if !confirmed {
                    self.refuse_peer_replica().await?;
                }
                let shape = shape(&self.config, self.leg.geometry().size_bytes);
                if let Some(why) = too_fine(&self.name, &self.config, &shape) {
                    return refuse(why);
                }
                (Id::random(), shape)
            }
            ReplicaRole::Target | ReplicaRole::Deposed => self.of_peer(confirmed, empty).await?,
        };
        let layout =
            flagstone_mirror::ondisk::layout::layout(self.leg.geometry().size_bytes, &shape);
        let room = layout.map_or(0, |layout| layout.usable_bytes);
        if role == ReplicaRole::Target && room < shape.usable_bytes {
            return refuse(format!(
                "the volume has {}, and this device has space for {}: use a larger device",
                exact_size(shape.usable_bytes),
                exact_size(room)
            ));
        }
        let usable_bytes = room.min(shape.usable_bytes);
        if usable_bytes != self.reported_bytes() {
            // Hosts see one volume through both nodes, so the sizes must be equal.
            let advice = other_granularity(&self.name, &self.config, &shape).unwrap_or_else(|| {
                "use devices of equal size on both nodes, and restart this server if its device or \
                 granularity was changed"
                    .to_owned()
            });
            return refuse(format!(
                "the volume has {} B, and a replica on this device would have {} B: {advice}",
                usable_bytes,
                self.reported_bytes()
            ));
        }
        let reserved_bytes = self.leg.geometry().size_bytes - usable_bytes;
        let log_shape = ReplicaGeometry { usable_bytes, ..shape };
        self.check_log(&log_shape).await?;
        if empty {
            self.check_zeroes(usable_bytes).await?;
        }
        if dry_run {
            return Ok(Created { usable_bytes, reserved_bytes, already: false, role });
        }
        let log = self.open_log(&log_shape).await?;
        let create = CreateReplica {
            volume,
            with_data: role == ReplicaRole::Source,
            zeroes: empty,
            geometry: shape,
        };
        Replica::create_within(self.leg.clone(), log.clone(), create, usable_bytes)
            .await
            .map_err(failed)?;
        let replica = Replica::open(self.leg.clone(), log.clone()).await.map_err(failed)?;
        *self.log.borrow_mut() = log;
        self.keep_name(&replica).await?;
        if let Err(failure) = self.run(replica).await {
            if self.has_ended() {
                self.reopen_soon();
            }
            return Err(failure.into());
        }
        Ok(Created { usable_bytes, reserved_bytes, already: false, role })
    }

    fn already(
        &self,
        mirror: &flagstone_mirror::Mirror,
        role: ReplicaRole,
    ) -> Result<Created, CreateError> {
        let status = mirror.status();
        let holds_data = !status.generation.is_none();
        if role == ReplicaRole::Source && !holds_data {
            return refuse(
                "this node already has a replica, a target that holds no data yet: delete it first",
            );
        }
        if role == ReplicaRole::Source && status.role != ReplicaRole::Source {
            return refuse(format!(
                "this node already has a replica, and it is a target: `flagstone mirror switchover {}` \
                 makes this node the source",
                self.name
            ));
        }
        if role == ReplicaRole::Target && status.role == ReplicaRole::Source {
            return refuse(
                "this node already has a replica, and it is the source: delete it first if its data is \
                 not needed",
            );
        }
        let usable_bytes = flagstone_blockdev::BlockDevice::geometry(mirror).size_bytes;
        Ok(Created {
            usable_bytes,
            reserved_bytes: self.leg.geometry().size_bytes.saturating_sub(usable_bytes),
            already: true,
            role: status.role,
        })
    }

    /// ID and geometry of the volume, from a peer. Checks that the device may be overwritten.
    async fn of_peer(
        &self,
        destroy_data: bool,
        empty: bool,
    ) -> Result<(Id, ReplicaGeometry), CreateError> {
        let (peer, identity) = self.ask_peers().await?;
        let (usable_bytes, bit_bytes) = (identity.view.usable_bytes, identity.view.bit_bytes);
        let (ours, theirs) = (self.leg.geometry().block_bytes, identity.view.block_bytes);
        if theirs != 0 && ours != theirs {
            let (name, node) = (&self.name, &self.node);
            return refuse(block_size_mismatch(name, (node, ours), (&peer, theirs)));
        }
        let zeroes = Generation::of_zeroes(identity.view.volume);
        if empty && !identity.view.generations.bases.contains(zeroes) {
            return refuse(format!(
                "the replica of {} on {peer} was not created with --empty, or has met another target \
                 since: leave --empty out, and everything is copied",
                self.name
            ));
        }
        if !destroy_data {
            self.check_device_empty().await?;
        }
        Ok((identity.view.volume, with_bits(&self.config, bit_bytes, usable_bytes)))
    }

    async fn ask_peers(&self) -> Result<(String, ReplicaIdentity), CreateError> {
        let mut problem = String::new();
        for peer in self.links() {
            match self.identify_peer(&peer, Id::default(), self.versions.get()).await {
                Ok(identity) => return Ok((peer.name, identity)),
                Err(error) => {
                    problem = format!("peer `{}` at {}: {error}", peer.name, peer.address)
                }
            }
        }
        refuse(format!(
            "no peer could be asked about the volume ({problem}): is the server there running, and does \
             its replica exist (`flagstone mirror create {} --source`)?",
            self.name
        ))
    }

    /// Deletes the replica's metadata, unless a device cannot be written; its data stays.
    pub(crate) async fn delete(
        self: &Rc<Self>,
        force: bool,
        dry_run: bool,
    ) -> Result<(), CreateError> {
        // Not while it is being reopened.
        let _create_lock = self.create_lock.acquire(1).await;
        let Some(mirror) = self.mirror() else {
            return Ok(());
        };
        if self.growing.get() {
            return refuse("the volume is growing: repeat the command later");
        }
        // The source of a target may ask it to grow at any moment. The mirror that replaces this
        // one would not be deleted.
        let _changing = Changing::new(self);
        if mirror.is_serving() && !force {
            return refuse(
                "it serves hosts: first move the volume to the peer (flagstone mirror switchover), or \
                 use --force",
            );
        }
        if self.has_ended() || self.has_failed_flush() {
            return refuse(self.not_writable());
        }
        if dry_run {
            return Ok(());
        }
        self.set_ana_state(false);
        mirror.leave_group_sessions();
        if let Err(error) = mirror.stop().await {
            self.set_ana_state(mirror.is_serving());
            return Err(failed(error));
        }
        self.watch.borrow_mut().take();
        *self.reopening.borrow_mut() = None;
        // Its requests in flight must end before the devices are reused.
        mirror.abandon().await;
        if let Ok(target) = self.target() {
            target.remove_subsystem(&self.replica_nqn).map_err(failed)?;
        }
        self.handle.set(None);
        let log = self.log.borrow_mut().take();
        Replica::forget(&self.leg, log.as_ref()).await.map_err(|error| {
            failed(format!(
                "the replica was closed, but cannot be deleted ({error}): it returns when this server \
                 restarts"
            ))
        })
    }

    fn not_writable(&self) -> String {
        let (name, node) = (&self.name, &self.node);
        let last = "if its device is lost, stop this server, and give the volume another device, or \
                    remove it";
        let why = self.reopening().map_or(String::new(), |again| format!(" ({})", again.reason));
        match self.has_ended() {
            true => format!(
                "the replica of {name} is being reopened{why}, and can be deleted when it is open: see \
                 `flagstone mirror status {name} --watch`; {last}"
            ),
            false => format!(
                "a flush of the data or log device of {node} failed, so it takes no writes: the replica \
                 can be deleted when it has been reopened, automatically or by a restart; {last}"
            ),
        }
    }
}
