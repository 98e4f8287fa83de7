//! Byte streams for NVMe/TCP and NBD.
//!
//! [`Rx`] receives many messages per system call, with payloads in place. [`Tx`] queues the headers
//! and payloads of the tasks of a connection, and sends what has accumulated. [`WaitGroup`] and
//! [`grace_period`] wait for work on all cores. [`RefusalLog`] logs refused peers, and
//! [`FailureDelays`] delays them. [`InFlight`] bounds handshakes, and [`HandshakeAdmission`] does
//! both. [`PskChooser`] finds the pre-shared key that a client proves.

mod admission;
mod failure_delays;
mod gather;
mod in_flight;
pub mod limits;
mod psk;
mod receive;
mod refusal;
mod send;
mod wait_group;

pub use flagstone_auth::tls::{Psk, PskHash};

pub use admission::{AdmittedHandshake, HandshakeAdmission, SharedDelays};
pub use failure_delays::{FailureDelays, FailureKind, PeerSource, source_of, source_of_peer};
pub use in_flight::{InFlight, InFlightPlace, QueuedPlace};
pub use psk::{PskChooser, PskKeys, failure_kind, proven_psk, psk_choice, tls_psk};
pub use receive::{MessageShape, Rx, RxError, ShapePredictor};
pub use refusal::RefusalLog;
pub use send::Tx;
pub use wait_group::{WaitGroup, WaitGroupPart, grace_period};
