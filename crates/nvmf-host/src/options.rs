//! Host options: identity, queues and timeouts.

use std::sync::Arc;
use std::time::Duration;

use flagstone_auth::{KeyPair, TlsRing};
use flagstone_nvme::Nqn;
use flagstone_nvme::pdu::Digests;
use flagstone_runtime::spawn_blocking;

use super::HostError;
use crate::limits::{END_MARGIN, END_TIMEOUT_MAX, QUEUE_DEPTH_MAX, QUEUES_MAX};

/// Host options. The defaults suit a local network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Host NQN; derived from a random UUID when `None`.
    pub host_nqn: Option<Nqn>,
    /// Host identifier; random when `None`.
    pub host_id: Option<[u8; 16]>,
    /// Keys between this host and the subsystem, for targets that require authentication. With a
    /// controller key, the target has to prove that it knows that key, unless they are optional.
    pub keys: Option<KeyPair>,
    /// Interval at which each queue that has authenticated does so again, with the keys of then. A
    /// failure ends the association. Zero disables it. Not after secure concatenation.
    pub reauthentication_interval: Duration,
    /// Reads the keys again, before each connection and each re-authentication.
    pub key_reload: Option<KeyReload>,
    /// TLS with the target; `None` for none.
    pub tls: Option<RemoteTls>,
    /// Secure channel concatenation: authenticate with `keys` first, then connect all queues with
    /// TLS by the PSK that this generates. Needs a controller key, and excludes `tls`.
    pub concatenate: bool,
    /// Namespace identifier; the subsystem's only one when `None`.
    pub nsid: Option<u32>,
    /// I/O queues per core that uses the device, 1 to 128.
    pub queues: u16,
    /// Commands in flight per queue, 1 to 1,023; reduced to the controller's queue size.
    pub queue_depth: u16,
    /// Digests to request; the target may decline.
    pub digests: Digests,
    /// Keep alive timeout, after which the target drops a silent host. Zero disables it.
    pub keep_alive: Duration,
    /// A command that takes longer breaks the association.
    pub command_timeout: Duration,
    /// Time limit for connecting, until the first command can be sent.
    pub connect_timeout: Duration,
    /// Pause before the second attempt to connect; it doubles with each attempt.
    pub reconnect_delay: Duration,
    /// Longest such pause.
    pub reconnect_delay_max: Duration,
    /// Calls wait this long for a reconnect before they fail.
    pub loss_timeout: Duration,
    /// The target never loses completed writes, not even in a crash, although it reports a volatile
    /// write cache: a restart endangers nothing.
    pub target_is_durable: bool,
}

/// Reads the keys of a host again, and replaces the keys in its rings. Runs on a thread of its own,
/// as it may block.
#[derive(Clone)]
pub struct KeyReload(Arc<dyn Fn() + Send + Sync>);

impl KeyReload {
    /// Calls `reload`, which reports its errors itself: the keys stay.
    pub fn new(reload: impl Fn() + Send + Sync + 'static) -> KeyReload {
        KeyReload(Arc::new(reload))
    }

    /// Runs to its end, whether or not the caller waits.
    pub(super) async fn run(&self) {
        let KeyReload(reload) = self.clone();
        if let Err(error) = spawn_blocking("key-reload", move || reload()).await {
            tracing::warn!("cannot read the keys again: {error}");
        }
    }
}

impl PartialEq for KeyReload {
    fn eq(&self, other: &KeyReload) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KeyReload {}

impl std::fmt::Debug for KeyReload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyReload")
    }
}

/// TLS of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteTls {
    /// Keys between this host and the subsystem; the first is offered.
    pub keys: TlsRing,
    /// If TLS fails, as the target speaks none or lacks the key, connect without. An attacker on
    /// the way can bring that about, so it is for the time in which the nodes of a pair change to
    /// TLS.
    pub allow_plain: bool,
    /// Version of the PSK identity that is offered first. Some targets, among them SPDK's, which
    /// know version 0 only, refuse a handshake whose first identity they do not know.
    pub first_identity: IdentityVersion,
}

impl RemoteTls {
    /// TLS with the first of `keys`, or no connection.
    pub fn required(keys: TlsRing) -> RemoteTls {
        RemoteTls { keys, allow_plain: false, first_identity: IdentityVersion::One }
    }
}

/// Version of a PSK identity (NVMe/TCP 3.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// Names host, subsystem and hash.
    Zero,
    /// Also has a digest of the key.
    One,
}

impl HostOptions {
    /// Validates the ranges.
    pub(super) fn check(&self) -> Result<(), HostError> {
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(HostError::Options("the number of I/O queues must be 1 to 128 per core"));
        }
        if !(1..=QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return Err(HostError::Options("the queue depth must be 1 to 1023"));
        }
        let proves = |keys: &KeyPair| keys.controller.is_some();
        if self.concatenate && !self.keys.as_ref().is_some_and(proves) {
            return Err(HostError::Options(
                "secure concatenation needs a key of this host and a key of the controller",
            ));
        }
        if self.concatenate && self.tls.is_some() {
            return Err(HostError::Options("secure concatenation excludes a TLS key"));
        }
        if self.host_id == Some([0; 16]) {
            return Err(HostError::Options("the host identifier must not be zero"));
        }
        if u32::try_from(self.keep_alive.as_millis()).is_err() {
            return Err(HostError::Options("the keep alive timeout must be at most 49 days"));
        }
        let zero = |span: Duration| span.is_zero();
        if zero(self.command_timeout) || zero(self.connect_timeout) {
            return Err(HostError::Options("timeouts must not be zero"));
        }
        Ok(())
    }

    /// Time that the target may take to end a connection that this host ended: the keep alive
    /// timeout and a quarter of it, as targets look a few times per timeout, plus a margin, within
    /// bounds.
    pub(super) fn end_timeout(&self) -> Duration {
        match self.keep_alive {
            Duration::ZERO => END_TIMEOUT_MAX,
            keep_alive => (keep_alive + keep_alive / 4 + END_MARGIN).min(END_TIMEOUT_MAX),
        }
    }
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            host_nqn: None,
            host_id: None,
            keys: None,
            reauthentication_interval: Duration::from_secs(3600),
            key_reload: None,
            tls: None,
            concatenate: false,
            nsid: None,
            queues: 1,
            queue_depth: 127,
            digests: Digests::default(),
            keep_alive: Duration::from_secs(15),
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            reconnect_delay: Duration::from_millis(50),
            reconnect_delay_max: Duration::from_secs(5),
            loss_timeout: Duration::from_secs(600),
            target_is_durable: false,
        }
    }
}
