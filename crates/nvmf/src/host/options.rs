//! How a host connects, and for how long it tries.

use std::time::Duration;

use flagstone_nvme::Nqn;
use flagstone_nvme::pdu::Digests;

use super::HostError;
use crate::limits::{HOST_END_MARGIN, HOST_END_TIMEOUT_MAX, HOST_QUEUE_DEPTH_MAX, HOST_QUEUES_MAX};

/// See each field. The default suits a local network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// This host's name; one made of a random UUID when `None`.
    pub host_nqn: Option<Nqn>,
    /// This host's identifier; random when `None`.
    pub host_id: Option<[u8; 16]>,
    /// The namespace; the subsystem's first when `None`.
    pub nsid: Option<u32>,
    /// I/O queues of each core that uses the device, 1 to 128.
    pub queues: u16,
    /// Commands in flight on each queue, 1 to 1,023: fewer when the controller's queues are
    /// shorter.
    pub queue_depth: u16,
    /// Digests to ask for; the target may decline.
    pub digests: Digests,
    /// Keep alive time-out: the target gives us up after as long without a word. Zero for none.
    pub keep_alive: Duration,
    /// A command that takes longer breaks the association.
    pub command_timeout: Duration,
    /// Connecting, until the first command can be sent.
    pub connect_timeout: Duration,
    /// Pause before the second attempt to connect; it doubles from attempt to attempt.
    pub reconnect_delay: Duration,
    /// Longest such pause.
    pub reconnect_delay_max: Duration,
    /// Calls wait this long for a connection to come back before they fail.
    pub loss_timeout: Duration,
}

impl HostOptions {
    /// Checks the ranges.
    pub(super) fn check(&self) -> Result<(), HostError> {
        if !(1..=HOST_QUEUES_MAX).contains(&self.queues) {
            return Err(HostError::Options("a host has 1 to 128 I/O queues a core"));
        }
        if !(1..=HOST_QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return Err(HostError::Options("a queue takes 1 to 1023 commands"));
        }
        if self.host_id == Some([0; 16]) {
            return Err(HostError::Options("a host identifier of zero names no host"));
        }
        if u32::try_from(self.keep_alive.as_millis()).is_err() {
            return Err(HostError::Options("a keep alive time-out is 49 days at most"));
        }
        let zero = |span: Duration| span.is_zero();
        if zero(self.command_timeout) || zero(self.connect_timeout) {
            return Err(HostError::Options("a time-out must not be zero"));
        }
        Ok(())
    }

    /// How long the target may take to end a connection that we ended: as long as a target takes to
    /// give us up, and a little more for its clock, within bounds.
    pub(super) fn end_patience(&self) -> Duration {
        match self.keep_alive {
            Duration::ZERO => HOST_END_TIMEOUT_MAX,
            keep_alive => (keep_alive + HOST_END_MARGIN).min(HOST_END_TIMEOUT_MAX),
        }
    }
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            host_nqn: None,
            host_id: None,
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
        }
    }
}
