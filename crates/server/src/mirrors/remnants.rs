//! Remnants of a missing replica: creating a new one over them needs the operator's confirmation.
//!
//! - a replica of another volume: by the volume tag in its superblock;
//! - a damaged superblock, or one for another device size: at the end of the device;
//! - a replica whose end of the device is missing: by a separate log device, or the start of a
//!   truncated log;
//! - a replica on a peer: by the peer, if reachable.
//!
//! If the device is empty and no peer is reachable, a log on the same device leaves no remnant.

use std::rc::Rc;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{Replica, ReplicaError, read_superblock};
use flagstone_mirror::ondisk::FormatError;
use flagstone_mirror::ondisk::remnant::{LogOwner, Remnant, find_remnant};
use flagstone_mirror::ondisk::superblock::Superblock;

use super::create::refuse;
use super::open::open_log_spec;
use super::{CreateError, MirrorFailure, MirroredVolume};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::names::derived_uuid;
use flagstone_units::exact_size;

/// Tag of a volume in the superblocks of its replicas: eight bytes of its name's UUID, never 0.
pub(super) fn volume_tag(replica_nqn: &flagstone_nvme::Nqn) -> u64 {
    let name = derived_uuid(&[b"volume", replica_nqn.to_string().as_bytes()]).into_bytes();
    let mut eight = [0; 8];
    eight.copy_from_slice(&name[8..]);
    u64::from_le_bytes(eight).max(1)
}

/// The replica belongs to this volume, or has no volume tag.
pub(super) fn is_own(superblock: &Superblock, volume_tag: u64) -> bool {
    superblock.volume_tag == 0 || superblock.volume_tag == volume_tag
}

impl MirroredVolume {
    /// Reads the superblock of this volume's replica. The inner error describes traces, if any.
    pub(super) async fn look(&self) -> Result<Result<Superblock, Option<String>>, MirrorFailure> {
        match read_superblock(&self.leg).await {
            Ok(superblock) if is_own(&superblock, self.volume_tag) => return Ok(Ok(superblock)),
            Ok(superblock) => return Ok(Err(Some(self.of_another_volume(&superblock)))),
            // Must not count as a device without a replica, which may be overwritten.
            Err(error @ ReplicaError::Superblock(FormatError::Version(_))) => {
                return Err(error.into());
            }
            Err(ReplicaError::Superblock(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let log = self.log_to_look_at().await?;
        let found = find_remnant(&self.leg, log.as_ref()).await.map_err(ReplicaError::Io)?;
        Ok(Err(found.map(|remnant| self.describe_remnant(&remnant))))
    }

    /// The log device. Does not create a missing file, or keep the device open.
    async fn log_to_look_at(&self) -> Result<Option<SharedDevice>, MirrorFailure> {
        let held = self.log.borrow().clone().or_else(|| self.connected_log.borrow().clone());
        if held.is_some() {
            return Ok(held);
        }
        let Some(spec) = &self.log_spec() else { return Ok(None) };
        match spec {
            DeviceSpec::Path(path) if !path.exists() => return Ok(None),
            _ if spec.is_in_memory() => return Ok(None),
            _ => {}
        }
        Ok(Some(open_log_spec(spec).await?))
    }

    fn of_another_volume(&self, superblock: &Superblock) -> String {
        format!(
            "the device of `{}` has the replica {} of another volume, of {}, or of this one under \
             another name: were devices exchanged for each other, or the volume renamed? Give each \
             volume its own device, by a path that stays, such as those of /dev/disk/by-id; or \
             give the volume the name that it had",
            self.name,
            superblock.replica,
            exact_size(superblock.geometry.usable_bytes)
        )
    }

    fn describe_remnant(&self, remnant: &Remnant) -> String {
        let name = &self.name;
        let has_bytes = self.leg.geometry().size_bytes;
        let has = exact_size(has_bytes);
        let log_of = |owner: &LogOwner, what: String| {
            let needs = owner.device_bytes();
            let then = if has_bytes < needs {
                format!(
                    "it has become smaller, or is another device: give `{name}` one of {} or more, \
                     with what was on it",
                    exact_size(needs)
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
                exact_size(owner.geometry.usable_bytes)
            )
        };
        match remnant {
            Remnant::Superblock(FormatError::Foreign) => format!(
                "at the end of the device of `{name}`, of {has}, is the superblock of a replica whose \
                 device had another size: give it the device that it had, as large as it was"
            ),
            Remnant::Superblock(why) => format!(
                "at the end of the device of `{name}` is the superblock of a replica that cannot be \
                 used ({why}), in both of its copies: bring back what was there from a backup or a \
                 snapshot, or see what damages it"
            ),
            Remnant::LogOnLogDevice(owner) => {
                let spec = self.log_spec();
                log_of(
                    owner,
                    format!("the log on {}", spec.map_or(String::new(), |s| s.to_string())),
                )
            }
            Remnant::LogOnDataDevice(owner, before_end) => {
                log_of(owner, format!("a log that begins {before_end} B before its end"))
            }
        }
    }

    pub(super) async fn refuse_over_replica(&self, explicit: &str) -> Result<(), CreateError> {
        let found = self.look().await?;
        let found = match found {
            Ok(superblock) => format!(
                "the device of `{}` has its replica {} already, which is not open: start this server \
                 again",
                self.name, superblock.replica
            ),
            Err(Some(found)) => found,
            Err(None) => return Ok(()),
        };
        refuse(format!(
            "{found}. Nothing was changed. If that replica is not needed any more, say so with {explicit}"
        ))
    }

    /// Refuses to create the volume again if a peer has a replica of it. Unreachable peers are
    /// ignored.
    pub(super) async fn refuse_peer_replica(&self) -> Result<(), CreateError> {
        for peer in self.links() {
            let asked = self.identify_peer(&peer, MirrorId::default(), self.versions.get()).await;
            let Ok(identity) = asked else { continue };
            let (name, peer) = (&self.name, &peer.name);
            return refuse(format!(
                "{peer} has replica {} of `{name}`, of {}: what is made here now would be another \
                 volume, to which that is no copy. To have a copy of it here: `flagstone mirror create \
                 {name} --target`. If what is on the device here is to be the volume, and what {peer} \
                 has is not needed: `--source --new-volume`",
                identity.view.replica,
                exact_size(identity.view.usable_bytes)
            ));
        }
        Ok(())
    }

    /// Stores the volume tag in the replica, if missing.
    pub(super) async fn keep_name(&self, replica: &Replica) -> Result<(), MirrorFailure> {
        if replica.superblock().volume_tag == 0 {
            let volume_tag = self.volume_tag;
            let keep = move |superblock: &mut Superblock| superblock.volume_tag = volume_tag;
            replica.update(keep).await.map_err(ReplicaError::Io)?;
        }
        Ok(())
    }

    pub(crate) fn missing(&self) -> Option<Rc<str>> {
        self.missing.borrow().clone().filter(|_| self.mirror().is_none())
    }

    pub(crate) fn is_without_log(&self) -> bool {
        self.without_log.get()
    }
}
