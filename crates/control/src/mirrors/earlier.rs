//! What tells, where a volume has no replica that can be used, that there was one; and what is told
//! of it. A replica is made over that on the operator's explicit word alone.
//!
//! | found | known by |
//! | --- | --- |
//! | a replica of another volume | its superblock, which keeps what its volume was called |
//! | a superblock that is damaged, or of a device of another size | the end of the device |
//! | an earlier replica whose end of the device is gone | a log on a device of its own; one that was cut off behind its beginning |
//! | a volume of which a peer has a replica | the peer, if it can be asked |
//!
//! Nothing tells of a replica whose log lay on its device when all of that is gone or empty and no
//! peer can be asked.

use std::rc::Rc;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::format::FormatError;
use flagstone_mirror::format::superblock::Superblock;
use flagstone_mirror::peer::{About, identify};
use flagstone_mirror::replica::{Replica, ReplicaError, read_superblock};
use flagstone_mirror::trace::{Owner, Trace, trace};

use super::{CreateError, Mirrored};
use crate::device_spec::DeviceSpec;
use crate::names::Uuid;
use crate::remote::Failure;
use crate::stack::{OpenOptions, open_device};
use crate::units::format_size;

/// What a volume is called in the superblocks of its replicas: eight bytes of its name, never 0.
pub(super) fn called(replica_nqn: &flagstone_nvme::Nqn) -> u64 {
    let name = Uuid::derived(&[b"volume", replica_nqn.to_string().as_bytes()]).0;
    let mut eight = [0; 8];
    eight.copy_from_slice(&name[8..]);
    u64::from_le_bytes(eight).max(1)
}

/// The replica is not one of another volume. Nobody said of which it is where that is 0.
pub(super) fn is_own(superblock: &Superblock, called: u64) -> bool {
    superblock.called == 0 || superblock.called == called
}

impl Mirrored {
    /// What is on the leg, and whether it may be used: the superblock of this volume's replica; or
    /// none, and what tells that there was one, if anything does.
    pub(super) async fn look(&self) -> Result<Result<Superblock, Option<String>>, Failure> {
        match read_superblock(&self.leg).await {
            Ok(superblock) if is_own(&superblock, self.called) => return Ok(Ok(superblock)),
            Ok(superblock) => return Ok(Err(Some(self.of_another_volume(&superblock)))),
            // Not to be taken for a device without one, on which another may be made.
            Err(error @ ReplicaError::Superblock(FormatError::Version(_))) => {
                return Err(error.into());
            }
            Err(ReplicaError::Superblock(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let log = self.log_to_look_at().await?;
        let found = trace(&self.leg, log.as_ref()).await.map_err(ReplicaError::Io)?;
        Ok(Err(found.map(|trace| self.of_trace(&trace))))
    }

    /// The device of the log, as it is: a file that is not there is not made, and none is kept open.
    async fn log_to_look_at(&self) -> Result<Option<SharedDevice>, Failure> {
        let held = self.log.borrow().clone().or_else(|| self.reached_log.borrow().clone());
        if held.is_some() {
            return Ok(held);
        }
        let Some(spec) = &self.config.bitmap else { return Ok(None) };
        match spec {
            DeviceSpec::Path(path) if !path.exists() => return Ok(None),
            _ if spec.is_in_memory() => return Ok(None),
            _ => {}
        }
        let opened = open_device(spec, &OpenOptions::default()).await;
        opened.map(Some).map_err(|error| Failure {
            problem: format!("the write-intent log on {spec}: {}", error.problem),
            may_pass: error.may_pass,
        })
    }

    fn of_another_volume(&self, superblock: &Superblock) -> String {
        format!(
            "the device of `{}` has the replica {} of another volume, of {}, or of this one under \
             another name: were devices exchanged for each other, or the volume renamed? Give each \
             volume its own device, by a path that stays, such as those of /dev/disk/by-id; or \
             give the volume the name that it had",
            self.name,
            superblock.replica,
            format_size(superblock.shape.usable_bytes)
        )
    }

    fn of_trace(&self, trace: &Trace) -> String {
        let name = &self.name;
        let has_bytes = self.leg.geometry().size_bytes;
        let has = format_size(has_bytes);
        let log_of = |owner: &Owner, what: String| {
            let needs = owner.device_bytes();
            let then = if has_bytes < needs {
                format!(
                    "it has become smaller, or is another device: give `{name}` one of {} or more, \
                     with what was on it",
                    format_size(needs)
                )
            } else {
                format!(
                    "it is another device, or an empty one, or was made larger from a size that is \
                     not looked for: give `{name}` the one that it had, as large as it was"
                )
            };
            format!(
                "{what} is that of replica {}, of {}, and the device of `{name}`, of {has}, has no \
                 replica: {then}",
                owner.replica,
                format_size(owner.shape.usable_bytes)
            )
        };
        match trace {
            Trace::Superblock(FormatError::Foreign) => format!(
                "at the end of the device of `{name}`, of {has}, is the superblock of a replica whose \
                 device had another size: give it the device that it had, as large as it was"
            ),
            Trace::Superblock(why) => format!(
                "at the end of the device of `{name}` is the superblock of a replica that cannot be \
                 used ({why}), in both of its copies: bring back what was there from a backup or a \
                 snapshot, or see what damages it"
            ),
            Trace::LogApart(owner) => {
                let spec = self.config.bitmap.as_ref();
                log_of(
                    owner,
                    format!("the log on {}", spec.map_or(String::new(), |s| s.to_string())),
                )
            }
            Trace::LogInside(owner, before_end) => {
                log_of(owner, format!("a log that begins {before_end} B before its end"))
            }
        }
    }

    /// Refuses to make a replica over what may be an earlier one.
    pub(super) async fn refuse_over_earlier(&self, explicit: &str) -> Result<(), CreateError> {
        let found = self.look().await.map_err(|failure| super::make::failed(failure.problem))?;
        let found = match found {
            Ok(superblock) => format!(
                "the device of `{}` has its replica {} already, which is not open: start this server \
                 again",
                self.name, superblock.replica
            ),
            Err(Some(found)) => found,
            Err(None) => return Ok(()),
        };
        Err(CreateError::Refused(format!(
            "{found}. Nothing was changed. If that replica is not needed any more, say so with {explicit}"
        )))
    }

    /// Refuses to set the volume up anew where a peer has a replica of it. A peer that cannot be asked
    /// says nothing.
    pub(super) async fn refuse_beside_a_peers(&self) -> Result<(), CreateError> {
        for leg in 0..self.peers.len() {
            let Some(about) = self.about_of(leg).await else { continue };
            let (name, peer) = (&self.name, &self.peers[leg]);
            return Err(CreateError::Refused(format!(
                "{peer} has replica {} of `{name}`, of {}: what is made here now would be another \
                 volume, to which that is no copy. To have a copy of it here: `flagstone mirror create \
                 {name} --target`. If what is on the device here is to be the volume, and what {peer} \
                 has is not needed: `--source --anew`",
                about.view.replica,
                format_size(about.view.usable_bytes)
            )));
        }
        Ok(())
    }

    /// What a peer says of its replica, if it has one and can be asked.
    async fn about_of(&self, leg: usize) -> Option<About> {
        let session = self.way(leg).connect().await.ok()?;
        let about = identify(&session, flagstone_mirror::id::Uuid::default(), self.versions.get())
            .await
            .ok();
        session.close();
        about
    }

    /// Has the replica know what its volume is called, if it does not.
    pub(super) async fn keep_name(&self, replica: &Replica) -> Result<(), Failure> {
        if replica.superblock().called == 0 {
            let called = self.called;
            let keep = move |superblock: &mut Superblock| superblock.called = called;
            replica.update(keep).await.map_err(ReplicaError::Io)?;
        }
        Ok(())
    }

    /// Why the replica of this volume is missing, where something tells that there was one.
    pub(crate) fn missing(&self) -> Option<Rc<str>> {
        self.missing.borrow().clone().filter(|_| self.mirror().is_none())
    }

    /// It is not the replica that is missing, but its log.
    pub(crate) fn is_without_log(&self) -> bool {
        self.without_log.get()
    }
}
