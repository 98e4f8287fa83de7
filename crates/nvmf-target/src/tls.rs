//! TLS of the target: keys of hosts, the choice of a key for a ClientHello, and results by reason.
//!
//! Invariants:
//! - a key opens one pair of host and subsystem, which its identity names, and the discovery
//!   subsystem for that host. Connect has to give the same names (`connection::tls`);
//! - so does a key that concatenation has generated, but for discovery (`generated_psks`), and only
//!   on listeners with optional TLS;
//! - handshakes are admitted by [`HandshakeAdmission`];
//! - each failed handshake is counted once, with its reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flagstone_auth::tls::{Identity, Psk, TlsKey, derived};
use flagstone_auth::{KeyUse, TlsRing};
use flagstone_nvme::Nqn;
use flagstone_runtime::time::Instant;
use flagstone_runtime::tls::{PskChoice, PskRefusal, PskServer, TlsFailure, TlsRecordLayer};
use flagstone_transport::{
    HandshakeAdmission, InFlight, PskKeys, SharedDelays, proven_psk, psk_choice,
};
use parking_lot::{Mutex, RwLock};

use crate::generated_psks::GeneratedPsks;
use crate::limits::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE};

/// Encryption of a listener's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// Optional: a host may begin it.
    Allowed,
    /// Required: hosts without it are refused.
    Required,
}

/// TLS keys between one host and one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTls {
    /// The keys: one, or two while one replaces the other.
    pub keys: TlsRing,
    /// True if the host cannot connect without TLS, whatever the listener allows.
    pub required: bool,
}

/// Why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailureReason {
    /// The host speaks no TLS, which its listener requires.
    Plain,
    /// The host begins TLS, which its listener does not have.
    Off,
    /// The host offers no pre-shared key.
    NoKey,
    /// No key belongs to the host's identity.
    UnknownIdentity,
    /// The host has another key.
    WrongKey,
    /// The handshake broke the protocol, or has no suite in common.
    Protocol,
    /// The host refused.
    Refused,
    /// The host closed the connection.
    Closed,
    /// It took too long.
    Timeout,
    /// Too many handshakes are in flight.
    Busy,
}

impl TlsFailureReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::Off,
        Self::NoKey,
        Self::UnknownIdentity,
        Self::WrongKey,
        Self::Protocol,
        Self::Refused,
        Self::Closed,
        Self::Timeout,
        Self::Busy,
    ];

    /// Name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Off => "off",
            Self::NoKey => "no-key",
            Self::UnknownIdentity => "unknown-identity",
            Self::WrongKey => "wrong-key",
            Self::Protocol => "protocol",
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Busy => "busy",
        }
    }

    pub(crate) fn of(failure: &TlsFailure) -> Self {
        match failure {
            TlsFailure::Psk(PskRefusal::NoneOffered) => Self::NoKey,
            TlsFailure::Psk(PskRefusal::UnknownIdentity(_)) => Self::UnknownIdentity,
            TlsFailure::Psk(PskRefusal::WrongKey(_)) => Self::WrongKey,
            TlsFailure::Psk(PskRefusal::Malformed)
            | TlsFailure::Protocol(_)
            | TlsFailure::Certificate(_) => Self::Protocol,
            TlsFailure::Alert(_) => Self::Refused,
            TlsFailure::Closed | TlsFailure::Io(_) => Self::Closed,
        }
    }
}

impl std::fmt::Display for TlsFailureReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "the listener requires TLS, which the host does not begin",
            Self::Off => "the host begins TLS, which its listener does not have",
            Self::NoKey => "the host offers no pre-shared key",
            Self::UnknownIdentity => "no key has this PSK identity",
            Self::WrongKey => "the host has another key for this PSK identity",
            Self::Protocol => "the handshake broke the protocol",
            Self::Refused => "the host refused",
            Self::Closed => "the host closed the connection during the handshake",
            Self::Timeout => "the host took too long",
            Self::Busy => "too many TLS handshakes in progress",
        })
    }
}

/// Results of TLS handshakes since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsTotals {
    /// Handshakes that succeeded: one per connection.
    pub succeeded: u64,
    /// Those whose records the kernel encrypts and decrypts.
    pub by_kernel: u64,
    /// Failures, in the order of [`TlsFailureReason::ALL`].
    pub failed: [u64; TlsFailureReason::ALL.len()],
}

/// Names that a host has proven by TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProvenNames {
    pub(crate) host: Nqn,
    pub(crate) subsystem: Nqn,
}

/// Proof of a host's identity by the channel of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChannelProof<'a> {
    /// No proof: the connection has no TLS.
    Plain,
    /// The host has a configured TLS key, with this use.
    ConfiguredKey(&'a KeyUse),
    /// The host authenticated earlier, by secure channel concatenation, which generated the PSK
    /// with this identity.
    GeneratedPsk(&'a [u8]),
}

impl ProvenNames {
    pub(crate) fn of(identity: &[u8]) -> Option<Self> {
        let identity = Identity::parse(identity)?;
        let host = Nqn::new(identity.host).ok()?;
        Some(Self { host, subsystem: Nqn::new(identity.subsystem).ok()? })
    }
}

type HostKeys = BTreeMap<Nqn, HostTls>;

/// TLS settings and keys of a target.
#[derive(Debug)]
pub(crate) struct TlsKeys {
    /// By subsystem and host.
    keys: RwLock<BTreeMap<Nqn, HostKeys>>,
    pub(crate) generated: GeneratedPsks,
    pub(crate) admission: HandshakeAdmission,
    succeeded: AtomicU64,
    by_kernel: AtomicU64,
    failed: [AtomicU64; TlsFailureReason::ALL.len()],
}

impl TlsKeys {
    /// No keys yet. `delays` apply to all handshakes of the target.
    pub(crate) fn new(delays: SharedDelays) -> Self {
        let in_flight = InFlight::new(TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE);
        Self {
            keys: RwLock::default(),
            generated: GeneratedPsks::default(),
            admission: HandshakeAdmission::new(in_flight, delays),
            succeeded: AtomicU64::default(),
            by_kernel: AtomicU64::default(),
            failed: Default::default(),
        }
    }

    pub(crate) fn set(&self, subsystem: &Nqn, hosts: HostKeys) {
        let mut keys = self.keys.write();
        match hosts.is_empty() {
            true => keys.remove(subsystem),
            false => keys.insert(*subsystem, hosts),
        };
    }

    /// True if `host` cannot connect to `subsystem` without TLS. If all hosts with TLS keys have to
    /// use it, then hosts without any key have to as well. `authenticates` says that the host has
    /// another key.
    pub(crate) fn requires(
        &self,
        subsystem: &Nqn,
        host: Option<&Nqn>,
        authenticates: bool,
    ) -> bool {
        let keys = self.keys.read();
        let Some(hosts) = keys.get(subsystem) else { return false };
        match host.and_then(|host| hosts.get(host)) {
            Some(known) => known.required,
            None => !authenticates && hosts.values().all(|known| known.required),
        }
    }

    /// True if there is a configured key of the pair.
    pub(crate) fn has_key(&self, subsystem: &Nqn, host: &Nqn) -> bool {
        self.keys.read().get(subsystem).is_some_and(|hosts| hosts.contains_key(host))
    }

    /// Keys of the pair; for the discovery subsystem, all keys of the host.
    fn keys_of(&self, names: ProvenNames) -> Vec<(TlsKey, KeyUse)> {
        let keys = self.keys.read();
        let subsystems = match names.subsystem.is_discovery() {
            true => keys.values().collect(),
            false => Vec::from_iter(keys.get(&names.subsystem)),
        };
        let mut found: Vec<(TlsKey, KeyUse)> = Vec::new();
        for known in subsystems.into_iter().filter_map(|hosts| hosts.get(&names.host)) {
            for (key, used) in known.keys.uses() {
                if !found.iter().any(|(other, _)| *other == key) {
                    found.push((key, used));
                }
            }
        }
        found
    }

    /// PSKs that may belong to an identity, as received, each with the use of its key.
    fn configured(&self, identity: &[u8]) -> Vec<(Psk, KeyUse)> {
        let (Some(names), Some(parsed)) = (ProvenNames::of(identity), Identity::parse(identity))
        else {
            return Vec::new();
        };
        let keys = self.keys_of(names).into_iter();
        keys.flat_map(|(key, used)| {
            derived(&key, &parsed).into_iter().map(move |psk| (psk, used.clone()))
        })
        .collect()
    }

    pub(crate) fn succeeded(&self, layer: TlsRecordLayer) {
        self.succeeded.fetch_add(1, Relaxed);
        if layer == TlsRecordLayer::Kernel {
            self.by_kernel.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn failed(&self, reason: TlsFailureReason) {
        let at = TlsFailureReason::ALL.iter().position(|known| *known == reason);
        self.failed[at.expect("all reasons are listed")].fetch_add(1, Relaxed);
    }

    pub(crate) fn totals(&self) -> TlsTotals {
        TlsTotals {
            succeeded: self.succeeded.load(Relaxed),
            by_kernel: self.by_kernel.load(Relaxed),
            failed: std::array::from_fn(|at| self.failed[at].load(Relaxed)),
        }
    }
}

/// Configured keys alone.
impl PskKeys for TlsKeys {
    fn candidates(&self, identity: &[u8]) -> Vec<Psk> {
        self.configured(identity).into_iter().map(|(psk, _)| psk).collect()
    }
}

/// Origin of a key.
#[derive(Clone, Debug)]
pub(crate) enum KeyOrigin {
    Configured(KeyUse),
    Generated,
}

/// Keys for one handshake. Records the origin of the key that the host used.
#[derive(Debug)]
pub(crate) struct HandshakeKeys {
    keys: Arc<TlsKeys>,
    /// Time at which generated PSKs must be valid. `None` excludes them: with required TLS, there
    /// are no plain connections that could generate PSKs.
    generated: Option<Instant>,
    used: Mutex<Option<KeyOrigin>>,
}

impl HandshakeKeys {
    /// Keys for a connection of a listener that begins TLS now.
    pub(crate) fn new(keys: Arc<TlsKeys>, mode: TlsMode, now: Instant) -> Self {
        let generated = (mode == TlsMode::Allowed).then_some(now);
        Self { keys, generated, used: Mutex::default() }
    }

    /// Origin of the key that the host has proven.
    pub(crate) fn used(&self) -> Option<KeyOrigin> {
        self.used.lock().clone()
    }

    fn candidates(&self, identity: &[u8]) -> Vec<(Psk, KeyOrigin)> {
        let configured = self.keys.configured(identity).into_iter();
        let generated = self.generated.and_then(|now| self.keys.generated.find(identity, now));
        let configured = configured.map(|(psk, used)| (psk, KeyOrigin::Configured(used)));
        configured.chain(generated.map(|psk| (psk, KeyOrigin::Generated))).collect()
    }
}

impl PskServer for HandshakeKeys {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        let proven = proven_psk(hello, |identity| self.candidates(identity));
        psk_choice(proven.map(|(psk, origin)| {
            *self.used.lock() = Some(origin);
            psk
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.test:{name}")).unwrap()
    }

    fn keys(host: &str, byte: u8, required: bool) -> HostKeys {
        let key = TlsKey::new(&[byte; 32], None).unwrap();
        BTreeMap::from([(nqn(host), HostTls { keys: TlsRing::new(vec![key]), required })])
    }

    #[test]
    fn keys_open_their_pair_and_discovery() {
        let all = TlsKeys::new(SharedDelays::default());
        all.set(&nqn("a"), keys("host", 1, true));
        all.set(&nqn("b"), keys("host", 2, true));
        let found = |host, subsystem| all.keys_of(ProvenNames { host, subsystem }).len();
        assert_eq!(found(nqn("host"), nqn("a")), 1);
        assert_eq!(found(nqn("host"), Nqn::discovery()), 2);
        assert_eq!((found(nqn("host"), nqn("c")), found(nqn("other"), nqn("a"))), (0, 0));
        all.set(&nqn("a"), BTreeMap::new());
        assert_eq!(found(nqn("host"), nqn("a")), 0);
    }

    #[test]
    fn required_tls_holds_for_hosts_without_keys_too() {
        let all = TlsKeys::new(SharedDelays::default());
        let (host, other) = (nqn("host"), nqn("other"));
        let requires = |host, keyed| all.requires(&nqn("a"), host, keyed);
        assert!(!requires(Some(&host), false));
        all.set(&nqn("a"), keys("host", 1, false));
        assert!(!requires(Some(&host), false) && !requires(None, false));
        all.set(&nqn("a"), keys("host", 1, true));
        assert!([Some(&host), Some(&other), None].iter().all(|one| requires(*one, false)));
        // A host that authenticates with another key does not need TLS, unless it has both.
        assert!(requires(Some(&host), true) && !requires(Some(&other), true));
    }
}
