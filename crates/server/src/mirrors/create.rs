//! Creation and deletion of a replica: `flagstone mirror create` and `delete`.

use std::rc::Rc;

use flagstone_mirror::format::superblock::ReplicaRole;
use flagstone_mirror::id::MirrorId as Id;
use flagstone_mirror::layout::ReplicaGeometry;
use flagstone_mirror::peer::{ReplicaIdentity, identify};
use flagstone_mirror::replica::{CreateReplica, Replica};

use super::MirroredVolume;
use super::granularity::{other_granularity, shape, too_fine, with_bits};
use flagstone_units::format_size;

/// A replica created, or to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Size of the volume, in bytes.
    pub usable_bytes: u64,
    /// Space on the device taken by the mirror's metadata, in bytes.
    pub reserved_bytes: u64,
    /// The replica existed before.
    pub already: bool,
    /// ID of the volume; zero in a dry run.
    pub volume: Id,
    /// ID of the replica; zero in a dry run.
    pub replica: Id,
}

/// Failure to create, delete or grow a replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    /// The request is unsafe or impossible; contains advice.
    #[error("{0}")]
    Refused(String),
    /// A device or the peer failed.
    #[error("{0}")]
    Failed(String),
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
    /// Creates this node's replica and opens it. An existing replica of this role is accepted, so
    /// concurrent requests agree. `anew` confirms overwriting data or a possible earlier replica.
    pub(crate) async fn create(
        self: &Rc<Self>,
        role: ReplicaRole,
        anew: bool,
        dry_run: bool,
    ) -> Result<Created, CreateError> {
        let _create_lock = self.create_lock.acquire(1).await;
        if let Some(mirror) = self.mirror() {
            return self.already(&mirror, role);
        }
        if !anew {
            self.refuse_over_replica(match role {
                ReplicaRole::Source => {
                    "--anew, which makes the contents of the device a new volume"
                }
                ReplicaRole::Target => "--destroy-data",
            })
            .await?;
        }
        let (volume, shape) = match role {
            ReplicaRole::Source => {
                if !anew {
                    self.refuse_peer_replica().await?;
                }
                let shape = shape(&self.config, self.leg.geometry().size_bytes);
                if let Some(why) = too_fine(&self.name, &self.config, &shape) {
                    return Err(CreateError::Refused(why));
                }
                (Id::random(), shape)
            }
            ReplicaRole::Target => self.of_peer(anew).await?,
        };
        let layout = flagstone_mirror::layout::layout(self.leg.geometry().size_bytes, &shape);
        let room = layout.map_or(0, |layout| layout.usable_bytes);
        if role == ReplicaRole::Target && room < shape.usable_bytes {
            return Err(CreateError::Refused(format!(
                "the volume has {}, and this device has space for {}: use a larger device",
                format_size(shape.usable_bytes),
                format_size(room)
            )));
        }
        let usable_bytes = room.min(shape.usable_bytes);
        if usable_bytes != self.reported_bytes() {
            // Hosts see one volume through both nodes, so the sizes must be equal.
            let advice = other_granularity(&self.name, &self.config, &shape).unwrap_or_else(|| {
                "use devices of equal size on both nodes, and restart this server if its device or \
                 granularity was changed"
                    .to_owned()
            });
            return Err(CreateError::Refused(format!(
                "the volume has {} B, and a replica on this device would have {} B: {advice}",
                usable_bytes,
                self.reported_bytes()
            )));
        }
        let reserved_bytes = self.leg.geometry().size_bytes - usable_bytes;
        let log_shape = ReplicaGeometry { usable_bytes, ..shape };
        self.check_log(&log_shape).await?;
        if dry_run {
            let none = Id::default();
            let (volume, replica) = (none, none);
            return Ok(Created { usable_bytes, reserved_bytes, already: false, volume, replica });
        }
        let log = self.open_log(&log_shape).await.map_err(|failure| failed(failure.problem))?;
        let create =
            CreateReplica { volume, with_data: role == ReplicaRole::Source, geometry: shape };
        Replica::create_within(self.leg.clone(), log.clone(), create, usable_bytes)
            .await
            .map_err(failed)?;
        let replica = Replica::open(self.leg.clone(), log.clone()).await.map_err(failed)?;
        *self.log.borrow_mut() = log;
        self.keep_name(&replica).await.map_err(|failure| failed(failure.problem))?;
        let id = replica.superblock().replica;
        if let Err(failure) = self.run(replica).await {
            if self.has_ended() {
                self.reopen_soon();
            }
            return Err(failed(failure.problem));
        }
        Ok(Created { usable_bytes, reserved_bytes, already: false, volume, replica: id })
    }

    fn already(
        &self,
        mirror: &flagstone_mirror::Mirror,
        role: ReplicaRole,
    ) -> Result<Created, CreateError> {
        let status = mirror.status();
        let holds_data = !status.generation.is_none();
        if role == ReplicaRole::Source && !holds_data {
            return Err(CreateError::Refused(
                "this node already has a replica, a target that holds no data yet: delete it first"
                    .to_owned(),
            ));
        }
        if role == ReplicaRole::Target && status.role == ReplicaRole::Source {
            return Err(CreateError::Refused(
                "this node already has a replica, and it is the source: delete it first if its data is \
                 not needed"
                    .to_owned(),
            ));
        }
        let usable_bytes = flagstone_blockdev::BlockDevice::geometry(mirror).size_bytes;
        Ok(Created {
            usable_bytes,
            reserved_bytes: self.leg.geometry().size_bytes.saturating_sub(usable_bytes),
            already: true,
            volume: status.volume,
            replica: status.replica,
        })
    }

    /// ID and geometry of the volume according to a peer. Checks that the local device may be
    /// overwritten.
    async fn of_peer(&self, destroy_data: bool) -> Result<(Id, ReplicaGeometry), CreateError> {
        let (peer, about) = self.ask_peers().await?;
        let (usable_bytes, bit_bytes) = (about.view.usable_bytes, about.view.bit_bytes);
        let (ours, theirs) = (self.leg.geometry().block_bytes, about.view.block_bytes);
        if theirs != 0 && ours != theirs {
            let (name, node) = (&self.name, &self.node);
            let refused = block_size_mismatch(name, (node, ours), (peer, theirs));
            return Err(CreateError::Refused(refused));
        }
        if !destroy_data {
            self.check_device_empty().await?;
        }
        Ok((about.view.volume, with_bits(&self.config, bit_bytes, usable_bytes)))
    }

    /// The first reachable peer, and its identity.
    async fn ask_peers(&self) -> Result<(&str, ReplicaIdentity), CreateError> {
        let mut problem = String::new();
        for (leg, name) in self.peers.iter().enumerate() {
            let way = self.connector(leg);
            let answer = match way.connect().await {
                Ok(session) => {
                    let answer = identify(&session, Id::default(), self.versions.get()).await;
                    session.close();
                    answer.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match answer {
                Ok(about) => return Ok((name, about)),
                Err(error) => {
                    problem = format!("peer `{name}` at {}: {error}", self.links[leg].address)
                }
            }
        }
        Err(CreateError::Refused(format!(
            "no peer could be asked about the volume ({problem}): is the server there running, and does \
             its replica exist (`flagstone mirror create {} --source`)?",
            self.name
        )))
    }

    /// Deletes the replica's metadata; its data stays. A replica whose devices cannot be written is left
    /// unchanged.
    pub(crate) async fn delete(&self, force: bool, dry_run: bool) -> Result<(), CreateError> {
        // Not while it is being reopened.
        let _create_lock = self.create_lock.acquire(1).await;
        let Some(mirror) = self.mirror() else {
            return Ok(());
        };
        if self.growing.get() {
            return Err(CreateError::Refused(
                "the volume is growing: repeat the command later".to_owned(),
            ));
        }
        if mirror.is_serving() && !force {
            return Err(CreateError::Refused(
                "it serves hosts: first move the volume to the peer (flagstone mirror switchover), or \
                 use --force"
                    .to_owned(),
            ));
        }
        if self.has_ended() || self.has_failed_flush() {
            return Err(CreateError::Refused(self.not_writable()));
        }
        if dry_run {
            return Ok(());
        }
        self.set_ana_state(false);
        if let Err(error) = mirror.stop().await {
            self.set_ana_state(mirror.is_serving());
            return Err(failed(error));
        }
        self.watch.borrow_mut().take();
        *self.reopening.borrow_mut() = None;
        // Its requests in flight must end before the devices are reused.
        mirror.abandon().await;
        let target = self.target.borrow().clone();
        if let Some(target) = target {
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

    /// Why a replica with closed or failed devices cannot be deleted.
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
