//! Making a replica, and forgetting it: what `flagstone mirror create` and `delete` do.

use std::rc::Rc;

use flagstone_mirror::format::superblock::Role;
use flagstone_mirror::id::Uuid as Id;
use flagstone_mirror::peer::{About, identify};
use flagstone_mirror::replica::{Create, Replica};
use flagstone_mirror::shape::Shape;

use super::Mirrored;
use super::granularity::{other_granularity, shape, too_fine, with_bits};
use crate::units::format_size;

/// What a new replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateRole {
    /// Keeps what is on the device: it is the volume's data.
    Source,
    /// Takes the volume's identity from the peer, and later its data.
    Target,
}

/// A replica that was made, or is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Size of the volume, in bytes.
    pub usable_bytes: u64,
    /// What the mirror takes of the device, in bytes.
    pub reserved_bytes: u64,
    /// It was there before.
    pub already: bool,
    /// The volume; zero for one that is yet to be made.
    pub volume: Id,
    /// The replica; the same.
    pub replica: Id,
}

/// Why a replica was not made, or not forgotten.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    /// It would do harm, or cannot be: what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A device or the peer failed.
    #[error("{0}")]
    Failed(String),
}

pub(super) fn failed(error: impl ToString) -> CreateError {
    CreateError::Failed(error.to_string())
}

/// Why two nodes cannot have one volume whose logical blocks differ, in bytes, and what to do.
pub(crate) fn other_blocks(volume: &str, ours: (&str, u32), theirs: (&str, u32)) -> String {
    let ((node, own), (peer, other)) = (ours, theirs);
    format!(
        "the logical blocks of {volume} are {own} B on {node} and {other} B on {peer}: hosts would find \
         other blocks when the role goes over, and a device of larger blocks does not take what hosts of \
         smaller ones write. Have both the same: with `block_size` in [volume.{volume}] of the node whose \
         data is not kept, and its server started again; a disk whose own blocks are 4096 B cannot have \
         512, so there take another device. (`block_size` of the node whose data is kept changes what \
         hosts see: partition tables and file systems that are there count in blocks)"
    )
}

impl Mirrored {
    /// Makes this node's replica and opens it. One that is there already with this role is fine, so
    /// of two that ask at a time the second finds what the first has made. Over what may be an
    /// earlier replica, or data, one is made with `anew` alone, which is the operator's word for it.
    pub(crate) async fn create(
        self: &Rc<Self>,
        role: CreateRole,
        anew: bool,
        dry_run: bool,
    ) -> Result<Created, CreateError> {
        let _making = self.making.acquire(1).await;
        if let Some(mirror) = self.mirror() {
            return self.already(&mirror, role);
        }
        if !anew {
            self.refuse_over_earlier(match role {
                CreateRole::Source => "--anew: what is on the device is a new volume then",
                CreateRole::Target => "--destroy-data",
            })
            .await?;
        }
        let (volume, shape) = match role {
            CreateRole::Source => {
                if !anew {
                    self.refuse_beside_a_peers().await?;
                }
                let shape = shape(&self.config, self.leg.geometry().size_bytes);
                if let Some(why) = too_fine(&self.name, &self.config, &shape) {
                    return Err(CreateError::Refused(why));
                }
                (Id::random(), shape)
            }
            CreateRole::Target => self.of_peer(anew).await?,
        };
        let layout = flagstone_mirror::shape::layout(self.leg.geometry().size_bytes, &shape);
        let room = layout.map_or(0, |layout| layout.usable_bytes);
        if role == CreateRole::Target && room < shape.usable_bytes {
            return Err(CreateError::Refused(format!(
                "the volume has {}, this device has room for {}: give it a larger one",
                format_size(shape.usable_bytes),
                format_size(room)
            )));
        }
        let usable_bytes = room.min(shape.usable_bytes);
        if usable_bytes != self.slot_bytes() {
            // Hosts see one volume by both nodes: it cannot have two sizes.
            let advice = other_granularity(&self.name, &self.config, &shape).unwrap_or_else(|| {
                "give both nodes devices of one size, and start this server again if its device or \
                 granularity was changed"
                    .to_owned()
            });
            return Err(CreateError::Refused(format!(
                "the volume has {} B, the device here makes one of {} B: {advice}",
                usable_bytes,
                self.slot_bytes()
            )));
        }
        let reserved_bytes = self.leg.geometry().size_bytes - usable_bytes;
        let log_shape = Shape { usable_bytes, ..shape };
        self.check_log(&log_shape).await?;
        if dry_run {
            let none = Id::default();
            let (volume, replica) = (none, none);
            return Ok(Created { usable_bytes, reserved_bytes, already: false, volume, replica });
        }
        let log = self.open_log(&log_shape).await.map_err(|failure| failed(failure.problem))?;
        let create = Create { volume, with_data: role == CreateRole::Source, shape };
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
        role: CreateRole,
    ) -> Result<Created, CreateError> {
        let status = mirror.status();
        let holds_data = !status.generation.is_none();
        if role == CreateRole::Source && !holds_data {
            return Err(CreateError::Refused(
                "there is a replica here already, a target that holds no data yet: delete it first"
                    .to_owned(),
            ));
        }
        if role == CreateRole::Target && status.role == Role::Source {
            return Err(CreateError::Refused(
                "there is a replica here already, and it is the source: if its data is not wanted, \
                 delete it first"
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

    /// The volume as a peer has it, and that what is here may be overwritten.
    async fn of_peer(&self, destroy_data: bool) -> Result<(Id, Shape), CreateError> {
        let (peer, about) = self.ask_peers().await?;
        let (usable_bytes, bit_bytes) = (about.view.usable_bytes, about.view.bit_bytes);
        let (ours, theirs) = (self.leg.geometry().block_bytes, about.view.block_bytes);
        if theirs != 0 && ours != theirs {
            let (name, node) = (&self.name, &self.node);
            let refused = other_blocks(name, (node, ours), (peer, theirs));
            return Err(CreateError::Refused(refused));
        }
        if !destroy_data {
            self.check_leg().await?;
        }
        Ok((about.view.volume, with_bits(&self.config, bit_bytes, usable_bytes)))
    }

    /// The first peer that can be asked, and what it says.
    async fn ask_peers(&self) -> Result<(&str, About), CreateError> {
        let mut problem = String::new();
        for (leg, name) in self.peers.iter().enumerate() {
            let way = self.way(leg);
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
            "no peer tells what the volume is ({problem}): is the server there up, and has its \
             replica been made (`flagstone mirror create {} --source`)?",
            self.name
        )))
    }

    /// Forgets the replica: nobody can tell any more what it is a replica of. Its data stays. One whose
    /// devices cannot be written is not forgotten, and goes on as it is.
    pub(crate) async fn delete(&self, force: bool, dry_run: bool) -> Result<(), CreateError> {
        // Not while somebody opens it.
        let _making = self.making.acquire(1).await;
        let Some(mirror) = self.mirror() else {
            return Ok(());
        };
        if self.growing.get() {
            return Err(CreateError::Refused("the volume grows at this moment".to_owned()));
        }
        if mirror.is_active() && !force {
            return Err(CreateError::Refused(
                "it serves hosts: hand the volume to the peer first (flagstone mirror switchover), \
                 or force it"
                    .to_owned(),
            ));
        }
        if self.has_ended() || self.has_failed_flush() {
            return Err(CreateError::Refused(self.not_writable()));
        }
        if dry_run {
            return Ok(());
        }
        self.set_access(false);
        if let Err(error) = mirror.stop().await {
            self.set_access(mirror.is_active());
            return Err(failed(error));
        }
        self.watch.borrow_mut().take();
        *self.reopening.borrow_mut() = None;
        // What it has in hand ends before its disks are another's.
        mirror.give_up().await;
        let target = self.target.borrow().clone();
        if let Some(target) = target {
            target.remove_subsystem(&self.replica_nqn).map_err(failed)?;
        }
        self.slot.set(None);
        let log = self.log.borrow_mut().take();
        Replica::forget(&self.leg, log.as_ref()).await.map_err(|error| {
            failed(format!(
                "the replica was closed, and cannot be forgotten ({error}): it is there again when this \
                 server is started again"
            ))
        })
    }

    /// Why a replica is not forgotten whose devices are closed, or take no writes.
    fn not_writable(&self) -> String {
        let (name, node) = (&self.name, &self.node);
        let last = "if its device is gone for good, stop the server of this node, and give the volume \
                    another device, or none";
        let why = self.reopening().map_or(String::new(), |again| format!(" ({})", again.reason));
        match self.has_ended() {
            true => format!(
                "the replica of {name} is being opened again{why}, and can be deleted when it is open: \
                 `flagstone mirror status {name} --watch` says when; {last}"
            ),
            false => format!(
                "a flush of the device of {node}, or of its log's, failed, so that nothing can be written \
                 there: the replica can be deleted when it has been opened again, by itself or with the \
                 server; {last}"
            ),
        }
    }
}
