//! DH-HMAC-CHAP, the in-band authentication of NVMe over Fabrics (Base 8.3.5): secrets, messages
//! and both sides of the exchange, without I/O, clocks or randomness of their own. Beside it, the
//! pre-shared keys of TLS ([`tls`]).
//!
//! Invariants: secrets and derived keys are erased when dropped and never printed.
//! Responses are compared in constant time. Every message is bounded by [`message::MESSAGE_BYTES`]
//! and checked before it is used. An exchange succeeds once; anything unexpected ends it.
//!
//! The exponentiations in [`ControllerExchange`] and [`HostExchange`] take up to some tens of
//! milliseconds of CPU, so callers run them off the data path.
//!
//! Reading order: [`secret`], `ring`, `hash`, [`group`], `response` and
//! `concatenation` (the formulas), [`message`], [`controller`] and [`host`] (the exchange).

mod concatenation;
pub mod controller;
pub mod group;
mod hash;
pub mod host;
pub mod message;
mod response;
mod ring;
pub mod secret;
pub mod tls;

#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod relay_tests;

pub use concatenation::Concatenation;
pub use controller::{ControllerExchange, ControllerOptions, ExchangeProgress, Randomness};
pub use group::DhGroup;
pub use hash::Hash;
pub use host::{HostExchange, HostFailure, HostStep};
pub use message::{Explanation, Message};
pub use response::Names;
pub use ring::{KeyDemand, KeyPair, KeyRing, KeyUse, KeyVersion, RING_SECRETS, Ring, TlsRing};
pub use secret::{Secret, SecretError};
