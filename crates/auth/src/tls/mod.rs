//! Pre-shared keys of NVMe/TCP with TLS 1.3 (NVMe/TCP 3.6.1), without I/O: their interchange
//! format, the derivation of TLS PSKs and identities, and the choice of a PSK for a ClientHello.
//!
//! Invariants: keys and derived keys are erased when dropped and never printed.
//! Digests and binders are compared in constant time. A ClientHello is checked before it is used.
//!
//! Reading order: `key`, `hkdf`, `identity`, `hello`.

mod hello;
mod hkdf;
mod identity;
mod key;

pub use hello::{Hello, HelloError, IDENTITIES};
pub(crate) use identity::of_generated;
pub use identity::{Derivation, Identity, IdentityForm, Psk, derived, identities, offered};
pub use key::{PskHash, TlsKey, TlsKeyError};
