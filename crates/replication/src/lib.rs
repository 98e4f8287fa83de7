//! Replication link: the connection between the replicas of a mirrored volume, over NVMe/TCP.
//!
//! The mirror defines its peer as a [`PeerConnector`](flagstone_mirror::wire::peer::PeerConnector),
//! and NVMe/TCP has vendor-specific commands. This crate implements one on top of the other, at
//! both ends:
//!
//! - [`NvmePeer`] connects to the peer's replica as an NVMe/TCP host;
//! - [`serve_replica`] serves a mirror's own leg to its peers: as a separate subsystem that appears
//!   in no discovery log and admits only the named hosts.
//!
//! [`LinkOptions`] adds compression of writes and a bandwidth limit.
//!
//! `docs/nvme-vendor-commands.md` specifies the format. There is no policy in this crate: the
//! mirror decides.

mod address;
mod bandwidth;
pub mod codec;
mod convert;
mod limits;
mod link;
mod peer;
mod served;

pub use address::PeerAddress;
pub use bandwidth::Bandwidth;
pub use flagstone_nvme::replica::Codec;
pub use link::LinkOptions;
pub use peer::NvmePeer;
pub use served::{ReplicaHandler, replication_nqn, serve_replica};
