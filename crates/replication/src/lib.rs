//! The link between the replicas of a mirrored volume, over NVMe/TCP.
//!
//! The mirror knows its peer as a [`Peer`](flagstone_mirror::peer::Peer), NVMe/TCP knows vendor
//! specific commands; here is the one over the other, both ends:
//!
//! - [`NvmePeer`] is the way to the peer's replica: an NVMe/TCP host;
//! - [`serve_replica`] serves a mirror's own leg to its peers: a subsystem of its own, in no
//!   discovery log, for the hosts that are named alone.
//!
//! Between the two, [`LinkOptions`]: writes that travel compressed, and a cap on what is sent.
//!
//! The format is in `docs/nvme-vendor-commands.md`. No policy is here: who is admitted and what is
//! decided is the mirror's.

mod bandwidth;
pub mod codec;
mod limits;
mod link;
mod peer;
mod place;
mod served;
mod words;

pub use bandwidth::Bandwidth;
pub use flagstone_nvme::replica::Codec;
pub use link::LinkOptions;
pub use peer::NvmePeer;
pub use place::Place;
pub use served::{ReplicaHandler, replication_nqn, serve_replica};
